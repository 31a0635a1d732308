"""The stage of ``join`` with a table that every task has: each batch is joined as it comes, and nothing is gathered.

The table is indexed once per process (``joining.held_tables``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from spark_client.arrow import Declared
from spark_client.joining import JoinPlan, Probing, gathered, held_table

from .one_pass import Pass


class HasTable(Protocol):
    """Pickled into tasks; gives the same object again in a process as long as a task there uses it. ``size_bytes`` is
    about that of the table.
    """

    @property
    def size_bytes(self) -> int: ...

    def table(self) -> pa.Table: ...


@dataclass(frozen=True)
class TableJoinStage:
    """``join`` whose right side is a table: inner, left, semi or anti, because those have no rows of the right side
    alone, which each task would give again. ``table`` declares the types that its columns are cast to.
    """

    declared: Declared
    plan: JoinPlan
    right: HasTable
    table: Declared

    divisible = True
    ours = True

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - results are not views
        probing = Probing(self.plan, holds_left=False)
        # The reference keeps the index until the last batch.
        table = self.right.table()
        yield from gathered(probing.run(held_table(table, probing.held_side, self.table.cast), batches))
