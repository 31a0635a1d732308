"""A catalogue with pools and a disk of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.memory.accounts import Budget
from flight_server.storage.disk import Disk


def new_catalogue(
    directory: Path | None, limit_bytes: int, *, disk_limit_bytes: int | None = None, **options: Any
) -> Catalogue:
    """An empty one, whose files go below ``directory``."""
    budget = Budget(limit_bytes, disk_limit_bytes)
    return Catalogue(budget, Disk(budget.disk, directory), **options)


def expired(catalogue: Catalogue) -> list[Dataset]:
    """The datasets that are taken away now."""
    return [dataset for dataset in catalogue.expire() if dataset is not None]
