"""Files that a pipeline's last tasks write, and the driver makes visible: Parquet below a path, or of a table.

Guarantee: what a write makes visible are the files of exactly the attempts whose reports Spark handed to the driver,
all of them or none. A failed, killed or speculative task leaves nothing visible, and neither does a driver that dies
before its commit. No row goes through the JVM.

The stage that writes files is one like all others, so a write runs as ``count`` does, also in the driver where it is
little, and again where a server was lost. A :class:`Publication` owns the commit.

What each crash leaves
    ==========================================  ====================================================================
    a task, before its report                   hidden files; the end of the write removes them
    a task, after its report, or beside it      the same: files of the other attempt have other names
    a task that outlives the write              hidden files, which the next write removes; of a table a file in the
                                                write's folder, which the table's own clean-up removes (Delta's
                                                full ``vacuum``, Iceberg's ``remove_orphan_files``)
    the driver, before its commit               hidden files, which the next write removes
    the driver, in its commit                   a journal, and some of the new files: the next write undoes it
    the driver, after the last file's name      a journal, and perhaps old files beside the new ones: the next write
                                                does the rest
    the store, so that the driver's commit      as a driver that died there; the error is raised
    cannot go on
    ==========================================  ====================================================================
"""

from .delta_table import DeltaFiles
from .file_stage import FileLayout, FileStage, WrittenFile
from .iceberg_table import IcebergFiles
from .parquet_folder import ParquetFolder
from .publication import MODES, Publication
from .storage_place import Place
from .stored_types import layout_of
