"""Lookups against changelogs: per host one mapped snapshot with an index, which deltas keep current. For ``client``."""

from .lookups import Lookups

__all__ = [
    "Lookups",
]
