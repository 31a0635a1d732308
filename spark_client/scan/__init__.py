"""What a pipeline reads without the JVM: files and datasets of pyarrow, as splits that tasks read."""

from .holdable import struct_of
from .scans import Scan
