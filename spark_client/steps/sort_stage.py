"""The stage of ``exchange(…, sort=…)``: the rows of a partition in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flight_server.keys import SortKey
from spark_client.arrow import Declared
from spark_client.spill import sorted_batches

from .one_pass import Pass


@dataclass(frozen=True)
class SortStage:
    """Sorts each partition by ``keys``, whose columns have types that Spark orders; equal rows stay in their order."""

    declared: Declared
    keys: tuple[SortKey, ...]

    divisible = False

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:
        """The rows in order. Raises OutOfBudget: no room for the rows beyond the budget in the scratch directory."""
        return sorted_batches(batches, self.keys, how.memory)
