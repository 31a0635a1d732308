"""The nodes of a plan: legs, the exchanges between them, and the origins of each leg's rows.

A plan is a tree of immutable nodes, from the last leg back to the DataFrames and scans: a :class:`Leg` has
:class:`PlanPart` s, a part has an *origin* and the stages over it, and an origin is

    ==================  ==============================================================================
    :class:`Input`      the rows of a DataFrame, or what tasks read of a scan
    :class:`Exchange`   the partitions to which it sends the rows of another leg
    :class:`Pair`       the partitions of two exchanges, side by side: the first stage takes both
    ==================  ==============================================================================

A leg has several parts after a union: each stage after it is added to all of them. Nodes are equal only if they are the
same object: a plan that uses one exchange twice runs it once (``decided_jobs``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from spark_client.arrow import Declared, SortKey
from spark_client.jobs import (
    NO_SHARES,
    ByRange,
    Shares,
    TaskNumbers,
    TaskRows,
    TaskSource,
)
from spark_client.steps import (
    FilterStage,
    FinalStage,
    KeepStage,
    MapStage,
    MergeStage,
    PartialStage,
    SelectStage,
    SortStage,
    Stage,
    TopStage,
)


@dataclass(frozen=True, eq=False)
class Input:
    """The start of a plan: the rows of a DataFrame, or a scan, of whose ``source`` tasks read ``shares``.

    ``driver_bytes`` is about what the driver would hold if it read a scan; None if only tasks may read it.
    ``scanned_rows`` are those of a scan before its filter, None where nothing tells, and ``kept`` is a guess of the
    part that the filter keeps.

    ``schema`` is that of the rows. ``with_columns`` gives the same rows with fewer columns. ``with_filter`` gives
    those for which an expression is true, of a stage of this name, or None where it may not. Neither is there where the
    source cannot.
    """

    rows: TaskRows
    label: str
    source: TaskSource | None = None
    shares: Shares = NO_SHARES
    driver_bytes: int | None = None
    scanned_rows: int | None = None
    kept: float = 1.0
    schema: pa.Schema | None = field(default=None, repr=False)
    with_columns: Callable[[Sequence[str]], Input] | None = field(default=None, repr=False)
    with_filter: Callable[[Any, str], Input | None] | None = field(default=None, repr=False)

    @property
    def frame(self) -> DataFrame | None:
        """The DataFrame whose rows they are; None of a source."""
        return None if isinstance(self.rows, TaskNumbers) else self.rows


@dataclass(frozen=True)
class SampledRanges:
    """Ranges in the order of ``keys``, whose boundaries a sample of the rows gives when they are sent; the same
    ``seed`` gives the same ones for the same rows in the same tasks. ``only_order``: of the partitions only the order
    of the rows counts, so that few rows may all be in the first one.
    """

    keys: tuple[SortKey, ...]
    seed: int | None = None
    only_order: bool = False


@dataclass(frozen=True, eq=False)
class Exchange:
    """The rows of ``leg``, sent to partitions, by the arguments of :meth:`Pipeline.repartition`.

    ``label`` replaces it in texts for users. ``types`` are those in which the keys are compared with another side's;
    None for their own. ``ranges`` places rows instead of the keys. ``offload`` is the prefix below which the
    servers keep it, too.
    ``added``: by another step, such as a join, not by the user, who counts on the partitions of a ``repartition``.
    ``serial`` is greater than those of the exchanges that it needs, which were made before. ``counted``: tasks report
    the ``arrow.counts`` of its rows. ``original`` is the exchange as the user's steps made it, where this one sends
    fewer rows or columns.
    """

    leg: Leg
    partitions: int
    keys: tuple[str, ...] = ()
    tasks: int | None = None
    label: str = ""
    types: tuple[pa.DataType, ...] | None = None
    ranges: ByRange | SampledRanges | None = None
    split: bool | None = None
    name: str | None = None
    offload: str | None = None
    added: bool = False
    counted: bool = False
    serial: int = field(default_factory=count().__next__, init=False, repr=False)
    original: Exchange | None = field(default=None, repr=False)

    @property
    def node(self) -> Exchange:
        """The exchange as the user's steps made it, by which it is persisted."""
        return self.original or self

    @property
    def in_turn(self) -> bool:
        """Whether a row's partition depends on the rows that its task has sent before."""
        return not self.keys and self.ranges is None and self.partitions > 1

    def may_cut(self, stages: Iterable[Stage]) -> bool:
        """Whether partitions far over the median may be read in pieces, each through ``stages``."""
        stages = list(stages)
        placed = bool(self.keys) or self.ranges is not None
        may = self.split
        if may is None:
            may = not placed or not any(isinstance(stage, MapStage) for stage in stages)
        return may and all(stage.divisible for stage in stages)

    @property
    def orders(self) -> tuple[SortKey, ...]:
        """The keys by which ``orderBy`` has added it; none of another exchange."""
        ranges = self.ranges
        return ranges.keys if isinstance(ranges, SampledRanges) and ranges.only_order else ()

    def __str__(self) -> str:
        if self.label:
            return self.label
        if self.ranges is not None and self.added:
            return f"exchange({self.partitions} ranges of {', '.join(map(str, self.ranges.keys))})"
        verb = "exchange" if self.added else "repartition"
        keys = self.keys
        if self.ranges is not None:
            verb, keys = "repartitionByRange", tuple(map(str, self.ranges.keys))
        name = [] if self.name is None else [f"name={self.name!r}"]
        return f"{verb}({', '.join([str(self.partitions), *map(repr, keys), *name])})"


@dataclass(frozen=True, eq=False)
class Pair:
    """The same partitions of two exchanges with equal keys, each after stages of its own."""

    left: PlanPart
    right: PlanPart


Origin = Input | Exchange | Pair


@dataclass(frozen=True, eq=False)
class PlanPart:
    """Stages over the rows of an origin, in one pass."""

    origin: Origin
    stages: tuple[Stage, ...] = ()

    @property
    def sides(self) -> tuple[PlanPart, ...]:
        """Those of a pair; of another origin the part itself."""
        return (self.origin.left, self.origin.right) if isinstance(self.origin, Pair) else (self,)

    @property
    def exchange(self) -> Exchange:
        """The origin of a part that reads one, as both sides of a pair do."""
        assert isinstance(self.origin, Exchange)
        return self.origin

    def source(self, name: str, *, functions_keep: bool = False) -> str | None:
        """The origin's column whose values a column of the last stage has; None if that is not known.

        Args:
            functions_keep: suppose that functions and joins give the columns that they get under the same names.
        """
        column: str | None = name
        for stage in reversed(self.stages):
            if column is None:
                break
            own = source_of(stage, column)
            column = column if own is None and functions_keep and not isinstance(stage, _TELLING) else own
        return column

    def keeps(self, names: Iterable[str], *, functions_keep: bool = False) -> bool:
        """Whether these columns are the origin's of the same names. The argument is that of :meth:`source`."""
        return all(self.source(name, functions_keep=functions_keep) == name for name in names)


_TELLING = (SelectStage, PartialStage, MergeStage, FinalStage)
"""The stages of whose columns ``source_of`` knows all; ``functions_keep`` is about the others, which call functions."""


def source_of(stage: Stage, column: str) -> str | None:
    """The column of a stage's input whose values, in the order of their rows, a column of its result has, where it has
    some of the rows, or one of equal ones; None if that is not known.
    """
    if isinstance(stage, SelectStage):
        return stage.source(column)
    if isinstance(stage, PartialStage | MergeStage | FinalStage):
        return column if column in stage.reduction.keys else None
    if isinstance(stage, FilterStage | SortStage | KeepStage):
        return column
    return None


@dataclass(frozen=True, eq=False)
class Leg:
    """The rows of all parts, and their schema."""

    parts: tuple[PlanPart, ...]
    struct: StructType
    declared: Declared = field(repr=False)

    @cached_property
    def fields(self) -> dict[str, StructField]:
        """The columns by their names. ``StructType`` looks through all of them for each name."""
        return {field.name: field for field in self.struct}

    def with_stage(self, stage: Stage, struct: StructType) -> Leg:
        parts = tuple(replace(part, stages=(*part.stages, stage)) for part in self.parts)
        return Leg(parts, struct, stage.declared)

    @property
    def schema(self) -> pa.Schema:
        """Of the rows, as :attr:`struct` is Spark's."""
        return self.declared.schema

    @property
    def single(self) -> PlanPart | None:
        """The only part; None after a union."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def last(self) -> Exchange | None:
        """The exchange that it reads; None if it reads a DataFrame, a scan, or more than one exchange."""
        part = self.single
        return part.origin if part is not None and isinstance(part.origin, Exchange) else None

    @property
    def stage_count(self) -> int:
        """The functions on the longest way to the leg."""
        return max(map(_stage_count, self.parts), default=0)


def _stage_count(part: PlanPart) -> int:
    origin, before = part.origin, 0
    if isinstance(origin, Exchange):
        before = origin.leg.stage_count
    elif isinstance(origin, Pair):
        before = max(_stage_count(origin.left), _stage_count(origin.right))
    return before + sum(not isinstance(stage, SortStage | TopStage) for stage in part.stages)


def exchanges(leg: Leg) -> Iterator[Exchange]:
    """The exchanges that the leg reads, one for each use."""
    for part in leg.parts:
        for side in part.sides:
            if isinstance(side.origin, Exchange):
                yield side.origin


def reachable(legs: Iterable[Leg], ends: Callable[[Exchange], bool] = lambda _: False) -> list[Exchange]:
    """All exchanges before these legs, each once, an exchange before those that it needs; none before one that ``ends``
    the way.
    """
    seen: set[Exchange] = set()
    left = [exchange for leg in legs for exchange in exchanges(leg)]
    while left:
        each = left.pop()
        if each not in seen:
            seen.add(each)
            left += () if ends(each) else exchanges(each.leg)
    return sorted(seen, key=lambda each: each.serial, reverse=True)


def steps_text(leg: Leg) -> str:
    """The plan as text, from its start."""
    return " + ".join(_steps(part) for part in leg.parts)


def _steps(part: PlanPart) -> str:
    origin = part.origin
    if isinstance(origin, Input):
        before = origin.label
    elif isinstance(origin, Exchange):
        before = f"{steps_text(origin.leg)} → {origin}"
    else:
        before = f"({_steps(origin.left)}, {_steps(origin.right)})"
    return " → ".join([before, *(stage.declared.stage for stage in part.stages)])
