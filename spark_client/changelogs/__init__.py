"""Changelogs: how they are declared, written, read and followed."""

from .changelog_handle import Changelog
from .declared_rules import Columns, declaration, latest, pair, top_k, until_closed
from .gathered_puts import GatheringWriter
from .version_follower import Change, Follower
from .version_holds import HeldVersion, HeldVersions, NamedHold, VersionHold
from .version_reads import Deltas, Snapshot, VersionBatches, fetch
