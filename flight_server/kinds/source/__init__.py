"""Datasets of kind ``source``: the server pulls them itself, from files, S3 or another server, when they are read."""

from .pulls import Pulling
from .source_kind import SourceKind
