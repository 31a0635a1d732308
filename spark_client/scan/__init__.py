"""Scans: files and datasets of pyarrow that a pipeline reads without the JVM, as splits for tasks."""

from .discovery import is_hidden, located
from .folder_values import NULL
from .holdable import struct_of
from .scans import Scan
from .spark_footers import footer_of
