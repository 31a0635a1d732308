"""Durable datasets."""

from __future__ import annotations

from collections.abc import Iterable

from .core import Core
from .dataset import Dataset


async def persist(core: Core, dataset: Dataset, partitions: Iterable[int]) -> None:
    """Put the partitions on disk."""
    raise NotImplementedError
