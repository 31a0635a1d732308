"""Files on disk: the data directory, its folder of files, segments, deletion, objects outside."""

from .data_dir import MARKER_NAME, DataDir, DataDirUnusable, raise_open_files_limit
from .disk import Disk
from .disk_files import NotAFile, open_regular
from .disposal import Disposal
from .file_header import FileHeader, read_header
from .folder import SEGMENTS_NAME, Folder
from .opened_records import RECORDS_NAME
from .segments import Segment, SegmentSlice, SegmentWriter
from .stored_object import StoredObject
