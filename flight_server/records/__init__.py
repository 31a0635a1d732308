"""What a restart needs to know: one SQLite database in the data directory, and its tables."""

from .database import DATABASE_NAME, WITNESS_NAME, Change, Damaged, Database
from .quarantine import Quarantine, Quarantined, delete_quarantined, put_quarantined
from .salvage import Lost, files_of, salvage
from .tables import DamagedRow
from .trouble import DiskTrouble, OtherFormat, trouble_with
