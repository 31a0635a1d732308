"""Computes each row's partition by Spark's hash, and a partition's groups of rows.

For ``jobs``, ``pipeline`` and ``lookup``.
"""

from .grouping import PlacedKeys, check_groupable, groups
from .hashing import find_keys, partition_ids, round_robin_ids, round_robin_start
from .wide_hashes import row_hashes

__all__ = [
    "PlacedKeys",
    "check_groupable",
    "find_keys",
    "groups",
    "partition_ids",
    "round_robin_ids",
    "round_robin_start",
    "row_hashes",
]
