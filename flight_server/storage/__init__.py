"""Files on disk and their formats: the data directory, segments, manifests, deletion and quarantine."""

from .data_dir import DataDir, DataDirUnusable, raise_open_files_limit
from .disk import Disk
from .disk_files import NotAFile, open_regular, read_regular, sync_directory, sync_file, write_file
from .disposal import Disposal
from .durable_files import MANIFEST_NAME, DurableFiles, Forgotten, Leaving
from .file_header import FileHeader, read_header
from .folder import SEGMENTS_NAME, Folder
from .manifest import (
    DictionaryRecord,
    FrameRecord,
    Manifest,
    PackedFrames,
    PartitionRecord,
    Torn,
    TransactionEntry,
    parse_transaction,
)
from .ownership import (
    DATASETS_NAME,
    DIRECTORY_LOCK,
    MARKER_NAME,
    Marker,
    make_dataset_directory,
    remove_unused_directory,
    sweep_staging,
)
from .quarantine import DAMAGE_NAME, NOTE_NAME, Quarantined, listed, noted_damage, put_aside
from .segments import Segment, SegmentSlice, SegmentWriter
from .stored_object import StoredObject
