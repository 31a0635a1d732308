"""What a pipeline reads without the JVM: files and datasets of pyarrow, as splits that tasks read.

For ``pipeline`` and ``client``.
"""

from .holdable import struct_of
from .scans import Scan

__all__ = [
    "Scan",
    "struct_of",
]
