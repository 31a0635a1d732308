"""Files on disk: the data directory, its folder of files, segments, deletion, objects outside."""

from .data_dir import MARKER_NAME, DataDir, DataDirUnusable, raise_open_files_limit
from .disk import Disk
from .disk_files import NotAFile, open_regular
from .file_header import FileHeader
from .folder import Folder
from .segments import Segment, SegmentSlice, SegmentWriter
from .stored_object import StoredObject
