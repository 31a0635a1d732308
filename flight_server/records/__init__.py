"""What a restart needs to know: one SQLite database in the data directory, and its tables."""

from .changelog_records import (
    BegunFold,
    ChangelogRecords,
    DeclaredChangelog,
    NoDatabase,
    RecordGone,
    StoredChangelog,
    StoredHold,
    StoredRange,
    StoredVersions,
    changelogs,
)
from .database import Change, Database
from .dataset_records import (
    DatasetRecord,
    DictionaryRecord,
    Facts,
    FileRecord,
    PartitionRecord,
    datasets,
    delete,
    delete_left,
    index,
    insert,
    leave_name,
    named_files,
)
from .quarantine import Quarantine, Quarantined, delete_quarantined, put_quarantined
from .salvage import files_of, renew
from .sqlite_connections import DamagedDatabase
from .tables import DamagedRow
from .transaction_records import Entry
from .trouble import DiskTrouble, OtherFormat, trouble_with
from .whole_database import DATABASE_NAME, is_whole_alone
