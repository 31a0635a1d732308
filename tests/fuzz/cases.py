"""What a case is made of: plain values whose ``repr`` makes the same case again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyspark.sql import types


@dataclass(frozen=True)
class Table:
    """A table, whose values follow from its name, its columns' names and types, and the case's seed.

    Args:
        schema: DDL.
        form: ``frame``, or what a ``scan`` reads: ``parquet`` or ``ipc`` (with dictionaries).
        parts: of the frame, or files.
        keys: names of an exchange that stands before what uses the table; none without one.
    """

    name: str
    schema: str
    rows: int
    form: str = "frame"
    parts: int = 2
    keys: tuple[str, ...] = ()


Step = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A program over a table.

    Args:
        tame: numbers whose sums are exact; sums, means and deviations are computed only of them.
        held_bytes: the budget of a merge and of a step that gathers; None for the default.
        numbers: instead of those that the seed draws.
        holds: whether joins may hold a small side.
        as_frame: whether the result is read as a DataFrame, or by ``collect``.
    """

    seed: int
    table: Table
    steps: tuple[Step, ...] = ()
    ending: Step = ("rows", {})
    tame: bool = False
    held_bytes: int | None = None
    holds: bool = True
    as_frame: bool = False
    zone: str = "UTC"
    numbers: tuple[float | int | str, ...] = ()

    def with_step(self, step: Step) -> Case:
        return replace(self, steps=(*self.steps, step))


def struct_of(ddl: str) -> types.StructType:
    """The columns of a schema."""
    return cast(types.StructType, types.StructType.fromDDL(ddl))


@dataclass
class Column:
    """A column of a state.

    Args:
        exact: whether its values may be keys.
        loose: lists have no certain order, and 0.0 may be -0.0.
        rounded: doubles are compared to nine digits.
    """

    name: str
    kind: Any
    exact: bool = True
    loose: bool = False
    rounded: bool = False


@dataclass
class State:
    """The same rows as a pipeline and as a DataFrame, and as an Arrow table where a broadcast may be made of it."""

    ours: Any
    theirs: Any
    columns: list[Column] = field(default_factory=list)
    rows: Any = None

    def named(self, *names: str) -> list[Column]:
        return [next(each for each in self.columns if each.name == name) for name in names]
