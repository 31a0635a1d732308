"""Changelogs: how they are declared, written, read and followed."""

from .changelog_handle import Changelog
from .declared_rules import Columns, encoded_schema, latest, pair, top_k, until_closed
from .put_rows import counted, with_diff
from .version_holds import HeldVersions, NamedHold, VersionHold
from .version_reads import VersionBatches
