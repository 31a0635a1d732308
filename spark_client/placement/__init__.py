"""Computes each row's partition by Spark's hash."""

from .hashing import (
    PlacedKeys,
    check_groupable,
    partition_ids,
    round_robin_ids,
    round_robin_start,
)
