"""What a pipeline reads without the JVM: files and datasets of pyarrow, as splits that tasks read.

For ``pipeline`` and ``client``.
"""

from .scans import Scan

__all__ = [
    "Scan",
]
