"""The stages of ``join``: over two inputs, and over one input with a table that every task has.

Guarantee: the rows are those of Spark's join, also if neither side fits the memory (``joining.hash_join`` has the
bounds of result batches).

Held rows
    The stage reads both inputs, always from the one of which it has read fewer bytes, until one ends: that one is
    held, with an index, and the other is streamed past it. If half of the budget is read before, both go through
    ``spill.key_windows``, and each window is joined so. Rows of one hash that exceed the budget are joined block by
    block.

Memory
    The budget, for the rows read and the copy of those held.

A table that every task has
    Each batch is joined as it comes, and nothing is gathered. The table is indexed once per process
    (``joining.held_rows``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from spark_client.arrow import Declared, gathered
from spark_client.joining import INDEX_ROW_BYTES, JoinPlan, Probing, held_table
from spark_client.placement import PlacedKeys
from spark_client.spill import Gathered, Rows, Window, fit, windows

from .one_pass import Both, OwnStage, Pass, drained

SMALL_ROWS = 8 * 1024
SMALL_BYTES = 256 * 1024
"""Smaller batches of a result are joined: where few rows match, a function would be given thousands of a few rows."""


@dataclass(frozen=True)
class JoinStage(OwnStage):
    """``join`` of two inputs. ``left_placed`` and ``right_placed`` check that an exchange would place the sides' keys
    here; None for no check.
    """

    declared: Declared
    plan: JoinPlan
    left_placed: PlacedKeys | None = None
    right_placed: PlacedKeys | None = None

    divisible = False

    @property
    def divisible_sides(self) -> frozenset[str]:
        """The sides whose rows may be cut into parts, each joined with the whole other side."""
        sides = {"inner": ("left", "right"), "right": ("right",), "full": ()}.get(self.plan.how, ("left",))
        return frozenset(sides)

    def run(self, both: Both, how: Pass) -> Iterator[Any]:
        """The join's rows.

        Raises:
            InvalidRequest: a row's key belongs to another partition.
            OutOfBudget: rows beyond the budget cannot be written to a file.
        """
        return gathered(self._join(both, how), SMALL_ROWS, SMALL_BYTES)

    def _join(self, both: Both, how: Pass) -> Iterator[Any]:
        budget_bytes = how.memory.budget_bytes
        sides = (
            _Side(checked(both.left, self.left_placed, how, self.declared.stage)),
            _Side(checked(both.right, self.right_placed, how, self.declared.stage)),
        )
        while fit([side.gathered for side in sides], budget_bytes * 2 // 3):
            smaller = min(sides, key=lambda side: side.gathered.weight_bytes)
            if smaller.read():
                continue
            probing = Probing(self.plan, holds_left=smaller is sides[0])
            held = probing.hold(smaller.gathered.take())
            yield from probing.run(held, sides[smaller is sides[0]])
            return
        hashes = (self.plan.left.hashes, self.plan.right.hashes)
        # The right side's rows wait in RAM until the left side is read.
        waiting_bytes = sides[1].gathered.weight_bytes
        with how.memory.part(budget_bytes - waiting_bytes) as memory:
            for window in windows([iter(side) for side in sides], hashes, memory):
                yield from self._window(window, budget_bytes)

    def _window(self, window: Window, budget_bytes: int) -> Iterator[Any]:
        left, right = window.sides
        holds_left = _held_bytes(left) <= _held_bytes(right)
        probing = Probing(self.plan, holds_left=holds_left)
        held, streamed = (left, right) if holds_left else (right, left)
        first = True
        for block, last in _blocks(held, budget_bytes // 3) if window.one_hash else [(held.take_all(), True)]:
            rows = probing.hold(block)
            block.clear()
            yield from probing.run(rows, streamed, first=first, last=last)
            first = False


def checked(batches: Iterator[Any], placed: PlacedKeys | None, how: Pass, stage: str) -> Iterator[Any]:
    """The batches; InvalidRequest at the first one with a key that belongs to another partition."""
    for batch in batches:
        if placed is not None and how.partition is not None:
            placed.check(batch.select(placed.keys.names), how.partition, stage, "rows")
        yield batch


class _Side:
    """An input that is read ahead."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self.gathered = Gathered()

    def read(self) -> bool:
        """Read one batch ahead; False at the end."""
        batch = next(self._batches, None)
        if batch is not None and batch.num_rows:
            self.gathered.add(batch)
        return batch is not None

    def __iter__(self) -> Iterator[Any]:
        """All batches; those read ahead are released one by one."""
        yield from drained(self.gathered.take())
        yield from (batch for batch in self._batches if batch.num_rows)


def _held_bytes(rows: Rows) -> int:
    return int(rows.size_bytes + INDEX_ROW_BYTES * rows.rows)


def _blocks(rows: Iterable[Any], size_bytes: int) -> Iterator[tuple[list[Any], bool]]:
    """The batches in blocks of about this size, at least one, and whether a block is the last."""
    block: list[Any] = []
    held_bytes = 0
    for batch in rows:
        batch_bytes = batch.nbytes + INDEX_ROW_BYTES * batch.num_rows
        if block and held_bytes + batch_bytes > size_bytes:
            yield block, False
            block, held_bytes = [], 0
        block.append(batch)
        held_bytes += batch_bytes
    yield block, True


class HasTable(Protocol):
    """Pickled into tasks; gives the same object again in a process as long as a task there uses it. ``size_bytes`` is
    about that of the table.
    """

    @property
    def size_bytes(self) -> int: ...

    def table(self) -> pa.Table: ...


@dataclass(frozen=True)
class TableJoinStage(OwnStage):
    """``join`` whose right side is a table: inner, left, semi or anti, because those have no rows of the right side
    alone, which each task would give again. ``table`` declares the types that its columns are cast to.
    """

    declared: Declared
    plan: JoinPlan
    right: HasTable
    table: Declared

    def run(self, batches: Iterator[Any], how: Pass) -> Iterator[Any]:  # noqa: ARG002 - results are not views
        probing = Probing(self.plan, holds_left=False)
        # The reference keeps the index until the last batch.
        table = self.right.table()
        held = held_table(table, probing.held_side, self.table.cast)
        yield from gathered(probing.run(held, batches), SMALL_ROWS, SMALL_BYTES)
