"""Changelogs: keyed collections of updates that compact themselves by declared rules.

``store`` is where the server's other rooms begin: it creates and finds changelogs, takes writes and holds, and serves
reads. ``changelog`` has the state of one, ``contents`` say where its updates are; ``commits`` adds versions to it,
``compactor``, ``planning`` and ``compaction`` take away updates that its rule does not need, ``views`` and ``folding``
give the rows at a version. ``records.changelog_records`` has what is on disk beside the run files.
"""

from .store import ChangelogKind
