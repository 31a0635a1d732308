"""Accepting attempts in one step, for tests of what comes after it."""

from __future__ import annotations

from flight_server.concurrency import at_once
from flight_server.datasets.dataset import Dataset


def accept(dataset: Dataset, wanted: dict[int, str] | None, partition_bytes: int | None = None) -> bool:
    """All steps of ``accepting``."""
    return at_once(dataset.accepting(wanted, partition_bytes))
