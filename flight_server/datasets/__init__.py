"""Datasets, partitions and attempts: their states, leases and retention, and the catalogue of their names."""

from .attempts import Attempt
from .catalogue import Catalogue
from .counters import Counters
from .dataset import Dataset
from .partition import Partition, PartitionState, Totals

__all__ = [
    "Attempt",
    "Catalogue",
    "Counters",
    "Dataset",
    "Partition",
    "PartitionState",
    "Totals",
]
