"""What a plan consists of: stages that run in one pass, and the exchange after them."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import StructType

from spark_client.arrow import Declared
from spark_client.jobs import WRITE_BUDGET_BYTES, Stage


@dataclass(frozen=True)
class Exchange:
    """The arguments of :meth:`Pipeline.exchange`; ``label`` replaces it in what a user sees."""

    partitions: int
    keys: tuple[str, ...]
    budget_bytes: int = WRITE_BUDGET_BYTES
    tasks: int | None = None
    label: str = ""

    def __str__(self) -> str:
        return self.label or f"exchange({', '.join([str(self.partitions), *map(repr, self.keys)])})"


@dataclass(frozen=True)
class Leg:
    """The stages of one pass, their result's schema, and the exchange after them, if any."""

    stages: tuple[Stage, ...]
    struct: StructType
    declared: Declared
    exchange: Exchange | None = None
