"""Changelogs: how they are declared, written, read and followed."""

from .changelog_handle import Changelog
from .declared_rules import Columns, latest, pair, top_k, until_closed
from .version_holds import HeldVersions, NamedHold, VersionHold
from .version_reads import VersionBatches
