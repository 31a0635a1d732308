"""Decides which joins hold a side that is small, so that the other side is not sent; asks neither Spark nor a server.

Guarantee: the rows are those of the plan as it is written. A join holds a side only if its rows, and those of the steps
after it up to the next exchange, or the end, are the same over any parts of the other side's rows, each beside all of
the held ones. No row of the plan is computed twice: the other side's rows go through their steps, the join and the
steps after it in one pass, in the tasks that would have sent them.

What is tried
    The side that is expected to be small is written first, by a job of its own, with those of
    other joins that can be written then. What it has turned out to be decides (``side_tables``):

    ==================  ============================================================================================
    held                The other side is *left out*: ``join`` has added its exchange, nothing else reads it, and the
                        steps allow it. The exchanges that a user writes are never left out.
    its keys are held   The other side is *thinned out* before it is sent: rows that match none of the held keys, and
                        are in no result without a match, stay behind. Tried only where the other side is large, and
                        the small one a small part of its rows before filters: else most rows match.
    neither             It was larger than expected: both are sent, by one job more.
    ==================  ============================================================================================

A DataFrame that ``toDF`` returns runs its last steps whenever it is used: none of those holds a side, because the other
side's steps would run again each time.

What is expected
    :class:`Expectations` guess how many rows a leg gives, which decides only what is tried first. A scan says how many
    rows it looks at, and a sealed exchange how many it has. A filter keeps the part that ``arrow.kept_share`` guesses.
    A key of a join is taken for that of one row on the smaller side: so the larger side keeps the part that the smaller
    one has of its own rows before filters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
from pyarrow import types

from spark_client.arrow import kept_share
from spark_client.joining import JoinPlan
from spark_client.steps import (
    FilterStage,
    FinalStage,
    JoinStage,
    KeepStage,
    LimitStage,
    MergeStage,
    SelectStage,
    SortStage,
    Stage,
    TableJoinStage,
    TopStage,
)

from .nodes import Exchange, Input, Leg, Pair, PlanPart, exchanges

TEXT_BYTES = 16
"""A value of no fixed size."""
EXISTS_SHARE = 1 / 3
"""The part of its rows that a semi or anti join with a table keeps."""
_LEAST = 1e-9


@dataclass(frozen=True)
class ExpectedRows:
    """About so many rows, which are the part ``kept`` of those before filters."""

    rows: float
    kept: float = 1.0

    @property
    def before(self) -> float:
        """The rows before filters."""
        return self.rows / self.kept

    def reduced(self, share: float) -> ExpectedRows:
        return ExpectedRows(self.rows * share, max(_LEAST, self.kept * share))

    def at_most(self, rows: float) -> ExpectedRows:
        return self if self.rows <= rows else self.reduced(rows / self.rows)


class Expectations:
    """The guesses of one moment; ``sealed`` has the rows of the exchanges that are written."""

    def __init__(self, sealed: Mapping[Exchange, int]) -> None:
        self._sealed = sealed
        # Of a plan that uses exchanges twice, each of which uses some twice, each is looked at once.
        self._known: dict[Exchange, ExpectedRows | None] = {}

    def of(self, exchange: Exchange) -> ExpectedRows | None:
        """Those that it sends; None where a DataFrame, or files that do not tell, are among what they are made of."""
        if exchange not in self._known:
            expected, rows = self._of_leg(exchange.leg), self._sealed.get(exchange)
            if rows is not None:
                before = max(1.0, rows if expected is None else expected.before)
                expected = ExpectedRows(rows, min(1.0, max(_LEAST, rows / before)))
            self._known[exchange] = expected
        return self._known[exchange]

    def size_bytes(self, exchange: Exchange) -> float | None:
        """About their bytes; None where :meth:`of` is None."""
        expected = self.of(exchange)
        return None if expected is None else expected.rows * row_bytes(exchange.leg.schema)

    def _of_leg(self, leg: Leg) -> ExpectedRows | None:
        known = [expected for part in leg.parts if (expected := self._of_part(part)) is not None]
        return reduce(_together, known) if len(known) == len(leg.parts) else None

    def _of_part(self, part: PlanPart) -> ExpectedRows | None:
        origin, stages = part.origin, part.stages
        if isinstance(origin, Input):
            rows = origin.scanned_rows
            expected = None if rows is None else ExpectedRows(rows).reduced(origin.kept)
        elif isinstance(origin, Exchange):
            expected = self.of(origin)
        else:
            expected, stages = self._of_pair(origin, stages[0]), stages[1:]
        for stage in stages:
            expected = None if expected is None else _after(stage, expected)
        return expected

    def _of_pair(self, pair: Pair, stage: Stage) -> ExpectedRows | None:
        left, right = self._of_part(pair.left), self._of_part(pair.right)
        if left is None or right is None:
            return None
        how = stage.plan.how if isinstance(stage, JoinStage) else "left"
        if how in ("left", "right"):
            return left if how == "left" else right
        if how == "full":
            return _together(left, right)
        if how in ("semi", "anti"):
            return left.reduced(min(right.kept, EXISTS_SHARE) if how == "semi" else EXISTS_SHARE)
        large, small = (left, right) if left.before >= right.before else (right, left)
        return large.reduced(small.kept)


def row_bytes(schema: pa.Schema) -> float:
    """About the bytes of a row."""
    return sum(_value_bytes(kind) for kind in schema.types)


def _value_bytes(kind: pa.DataType) -> float:
    if types.is_struct(kind):
        return sum(_value_bytes(kind.field(number).type) for number in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        return float(kind.list_size) * _value_bytes(kind.value_type)
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return TEXT_BYTES


def _together(one: ExpectedRows, other: ExpectedRows) -> ExpectedRows:
    rows, before = one.rows + other.rows, one.before + other.before
    return ExpectedRows(rows, rows / before if rows else 1.0)


def _after(stage: Stage, before: ExpectedRows) -> ExpectedRows:
    if isinstance(stage, FilterStage):
        return before.reduced(kept_share(stage.expression))
    if isinstance(stage, TableJoinStage) and stage.plan.how in ("semi", "anti"):
        return before.reduced(EXISTS_SHARE)
    if isinstance(stage, LimitStage | TopStage):
        return before.at_most(stage.rows)
    return before


Sizes = Mapping[Exchange, tuple[int, int]]
"""The rows and the bytes of exchanges."""
THINNED_BYTES = 8 << 20
"""The least expected size of a side that is worth a look at each key."""
THINNING_SHARE = 0.5
"""The most of its rows before filters that the side has whose keys thin out the other."""


@dataclass(frozen=True)
class SmallSide:
    """A side of a join that may be held, if it is small.

    Args:
        pair: the join's.
        stage: the join.
        is_left: whether it is the left side.
        exchange: the side's.
        stages: those between the exchange and the join.
        other: the exchange of the other side.
        leaves_out: whether the other side need not be sent; or else it is thinned out.
    """

    pair: Pair
    stage: JoinStage
    is_left: bool
    exchange: Exchange
    stages: tuple[Stage, ...]
    other: Exchange
    leaves_out: bool

    @property
    def plan(self) -> JoinPlan:
        """The join over the other side's rows, with this side on the right; or that which thins the other side out."""
        plan = self.stage.plan
        if not self.leaves_out:
            return plan.matching(left=not self.is_left)
        return plan.mirrored() if self.is_left else plan


class HeldJoins:
    """The sides that a run may still hold, and what it holds, and so how legs are read."""

    def __init__(self) -> None:
        self.joins: dict[Pair, tuple[Stage, PlanPart]] = {}
        """The stage instead of the join over a pair, and the side that is read."""
        self.thinning: dict[Exchange, Stage] = {}
        """The stage after all others of an exchange's leg."""
        self._untried: list[SmallSide] = []
        self._limit_bytes = self._most_rows = 0

    def begin(self, sides: Iterable[SmallSide], limit_bytes: int, most_rows: int) -> None:
        """Try these sides; a side is held up to so many bytes, as servers store them, and rows."""
        self._untried, self._limit_bytes, self._most_rows = [*sides], limit_bytes, most_rows

    def next_side(self, sizes: Sizes) -> SmallSide | None:
        """A side to hold now: it is written, and small."""
        sides = chosen(self._untried, sizes, self._limit_bytes, self._most_rows)
        return next((small for small in sides if small.exchange in sizes), None)

    def hold(self, small: SmallSide, stage: Stage | None) -> None:
        """The join holds the side: ``stage`` is it, over the rows of the other side. None: it has turned out not to be
        small.
        """
        self._untried = [
            each
            for each in self._untried
            if each.pair is not small.pair or (stage is None and each is not small)
        ]
        if stage is not None and small.leaves_out:
            self.joins[small.pair] = stage, small.pair.right if small.is_left else small.pair.left
        elif stage is not None:
            self.thinning[small.other] = stage

    def first(self, sizes: Sizes, kept: Collection[Exchange]) -> list[Exchange]:
        """The exchanges that one job writes before all others, to see whether they are small: all that need none which
        is not written; a persisted one alone.
        """
        # What is written was larger than a join may hold.
        self._untried = [small for small in self._untried if small.exchange not in sizes]
        sides = chosen(self._untried, sizes, self._limit_bytes, self._most_rows)
        ready = [
            exchange
            for exchange in dict.fromkeys(small.exchange for small in sides)
            if all(each in sizes for each in exchanges(self.leg_of(exchange)))
        ]
        persisted = [exchange for exchange in ready if exchange in kept]
        return persisted[:1] or ready

    def clear(self) -> None:
        """Hold nothing, and try nothing."""
        self.joins.clear()
        self.thinning.clear()
        self._untried = []

    def leg_of(self, exchange: Exchange) -> Leg:
        """The rows that an exchange sends, as they are read: what joins leave out is read where it would have been
        sent.
        """
        leg = exchange.leg
        if self.joins:
            leg = replace(leg, parts=tuple(read for part in leg.parts for read in self._parts(part)))
        thinning = self.thinning.get(exchange)
        return leg if thinning is None else leg.with_stage(thinning, leg.struct)

    def _parts(self, part: PlanPart) -> Iterator[PlanPart]:
        held = self.joins.get(part.origin) if isinstance(part.origin, Pair) else None
        if held is None:
            yield part
            return
        stage, side = held
        for before in self.leg_of(side.exchange).parts:
            yield PlanPart(before.origin, (*before.stages, *side.stages, stage, *part.stages[1:]))


NOTHING_HELD = HeldJoins()


def small_sides(
    last: Iterable[Exchange],
    reader: Leg | None,
    kept: Collection[Exchange] = (),
    written: Collection[Exchange] = (),
) -> list[SmallSide]:
    """The sides that may be held in a run.

    Args:
        last: the exchanges that the run is for.
        reader: the leg that reads them; None where the caller does.
        kept: those that are persisted.
        written: those whose datasets can be read.
    """
    legs: dict[Exchange, Leg] = {}
    left = [*last]
    while left:
        node = left.pop()
        if node not in legs and not (node in kept and node in written):
            legs[node] = node.leg
            left += exchanges(node.leg)
    shown = [] if reader is None else [reader]
    readers = Counter(node for leg in [*legs.values(), *shown] for node in exchanges(leg))
    if reader is None:
        readers.update(last)
    return [
        small
        for sent, may_leave_out in ((legs.values(), True), (shown, False))
        for leg in sent
        for part in leg.parts
        for small in _of_part(part, readers, kept, may_leave_out=may_leave_out)
    ]


def _of_part(
    part: PlanPart, readers: Counter[Exchange], kept: Collection[Exchange], *, may_leave_out: bool
) -> Iterator[SmallSide]:
    pair = part.origin
    if not isinstance(pair, Pair) or not isinstance(part.stages[0], JoinStage):
        return
    join, *others = part.stages
    assert isinstance(join, JoinStage)
    for is_left in (False, True):
        side, other = (pair.left, pair.right) if is_left else (pair.right, pair.left)
        sent, name = other.exchange, "right" if is_left else "left"
        if not sent.added or sent in kept or readers[sent] != 1:
            continue
        checked = join.left_placed if is_left else join.right_placed
        in_driver = all(isinstance(stage, _IN_DRIVER) for stage in side.stages)
        if checked is not None or side.exchange.tasks is not None or not in_driver:
            continue
        divisible = name in join.divisible_sides and sent.may_cut([*other.stages, *others])
        leaves_out = may_leave_out and divisible
        thins_out = not other.stages and name in _THINNED[join.plan.how]
        if leaves_out or thins_out:
            yield SmallSide(pair, join, is_left, side.exchange, side.stages, sent, leaves_out)


_IN_DRIVER = (FilterStage, KeepStage, SelectStage, MergeStage, FinalStage, SortStage)
"""The stages that the driver may run over all partitions at once. It runs no function of the user's."""

_THINNED: Mapping[str, Collection[str]] = {
    "inner": ("left", "right"),
    "left": ("right",),
    "right": ("left",),
    "full": (),
    "semi": ("left", "right"),
    "anti": ("right",),
}
"""The sides whose rows are in no result without a match."""


def chosen(sides: Iterable[SmallSide], sizes: Sizes, limit_bytes: int, most_rows: int) -> list[SmallSide]:
    """Of each join the side that is to be written first, or held if it is written, if one of them is small.

    Args:
        sides: those that were not tried yet.
        sizes: of the exchanges that are written.
        limit_bytes, most_rows: of a side that is held.
    """
    expected = Expectations({each: rows for each, (rows, _) in sizes.items()})
    best: dict[Pair, tuple[tuple[bool, bool, float], SmallSide]] = {}
    for small in sides:
        if small.other in sizes:
            continue  # it is sent already
        if small.exchange in sizes:
            rows, size_bytes = map(float, sizes[small.exchange])
        else:
            guess, guessed_bytes = expected.of(small.exchange), expected.size_bytes(small.exchange)
            if guess is None or guessed_bytes is None:
                continue
            rows, size_bytes = guess.rows, guessed_bytes
        if size_bytes > limit_bytes or rows > most_rows:
            continue
        if not small.leaves_out and not _thins_out(small, expected):
            continue
        rank = not small.leaves_out, small.exchange not in sizes, size_bytes
        if small.pair not in best or rank < best[small.pair][0]:
            best[small.pair] = rank, small
    return [small for _, small in best.values()]


def _thins_out(small: SmallSide, expected: Expectations) -> bool:
    keys, other_bytes = expected.of(small.exchange), expected.size_bytes(small.other)
    return (
        keys is not None
        and keys.kept <= THINNING_SHARE
        and other_bytes is not None
        and other_bytes >= THINNED_BYTES
    )
