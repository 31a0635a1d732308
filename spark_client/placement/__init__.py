"""Computes each row's partition by Spark's hash, and a partition's groups of rows."""

from .grouping import CHUNK_BYTES, PlacedKeys, check_groupable, groups
from .hashing import find_keys, partition_ids, round_robin_ids, round_robin_start
