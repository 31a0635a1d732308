"""Changelogs: keyed collections of updates that compact themselves by declared rules.

``store`` is where the server's other parts begin: it creates and finds changelogs, takes writes and holds, and serves
reads. ``changelog`` has the state of one; ``commits`` adds versions to it, ``compactor`` and ``merges`` take away what
its rule does not need, ``views`` and ``folding`` say what it amounts to. ``journal`` says what is on disk.
"""

from .changelog import Changelog, ChangelogState
from .encoding import VersionedMessage, schema_header
from .reads import ChangelogReads, Part
from .restoring import recover_changelogs
from .store import Store
from .writes import ChangelogWrite, Committed
