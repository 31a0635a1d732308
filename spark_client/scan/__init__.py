"""Scans: files and datasets of pyarrow that a pipeline reads without the JVM, as splits for tasks."""

from .holdable import struct_of
from .scans import Scan
