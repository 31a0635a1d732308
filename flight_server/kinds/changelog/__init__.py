"""Changelogs: keyed collections of updates that compact themselves by declared rules.

``changelog_kind`` is where the server's other rooms begin. ``store`` creates and finds changelogs, takes writes and
holds, and serves reads. ``changelog`` has the state of one; ``commits`` adds versions to it, ``compactor`` and
``merges`` take away updates that its rule does not need, ``views`` and ``folding`` give the rows at a version.
``journal`` describes the files.
"""

from .changelog import Changelog, ChangelogState
from .changelog_kind import CHANGELOGS_AT_ONCE, ChangelogKind
from .restoring import recover_changelogs
from .store import Store
from .version_appends import VersionAppends
from .writes import ChangelogWrite, Committed
