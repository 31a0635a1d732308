"""Changelogs: keyed collections of updates that compact themselves by declared rules.

``changelog_kind`` is where the server's other rooms begin. ``store`` creates and finds changelogs, takes writes and
holds, and serves reads. ``changelog`` has the state of one; ``commits`` adds versions to it, ``compactor`` and
``merges`` take away updates that its rule does not need, ``views`` and ``folding`` give the rows at a version.
``records.changelog_records`` says what is on disk.
"""

from .changelog_kind import ChangelogKind
from .store import Store
from .version_appends import VersionAppends
