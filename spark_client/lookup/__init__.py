"""Lookups against changelogs: per host one mapped snapshot with an index, which deltas keep current."""

from .lookups import Lookups
