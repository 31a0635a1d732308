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
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa
from pyarrow import types

from spark_client.arrow import kept_share
from spark_client.steps import (
    FilterStage,
    FinalStage,
    JoinStage,
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
            found, rows = self._of_leg(exchange.leg), self._sealed.get(exchange)
            if rows is not None:
                before = max(1.0, rows if found is None else found.before)
                found = ExpectedRows(rows, min(1.0, max(_LEAST, rows / before)))
            self._known[exchange] = found
        return self._known[exchange]

    def size_bytes(self, exchange: Exchange) -> float | None:
        """About their bytes; None where :meth:`of` is None."""
        found = self.of(exchange)
        return None if found is None else found.rows * row_bytes(exchange.leg.schema)

    def _of_leg(self, leg: Leg) -> ExpectedRows | None:
        found = [self._of_part(part) for part in leg.parts]
        known = [each for each in found if each is not None]
        return reduce(_together, known) if len(known) == len(found) else None

    def _of_part(self, part: PlanPart) -> ExpectedRows | None:
        origin, stages = part.origin, part.stages
        if isinstance(origin, Input):
            rows = origin.scanned_rows
            found = None if rows is None else ExpectedRows(rows).reduced(origin.kept)
        elif isinstance(origin, Exchange):
            found = self.of(origin)
        else:
            found, stages = self._of_pair(origin, stages[0]), stages[1:]
        for stage in stages:
            found = None if found is None else _after(stage, found)
        return found

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


def _after(stage: Stage, given: ExpectedRows) -> ExpectedRows:
    if isinstance(stage, FilterStage):
        return given.reduced(kept_share(stage.expression))
    if isinstance(stage, TableJoinStage) and stage.plan.how in ("semi", "anti"):
        return given.reduced(EXISTS_SHARE)
    if isinstance(stage, LimitStage | TopStage):
        return given.at_most(stage.rows)
    return given


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


@dataclass
class HeldJoins:
    """What holds a side, and so how legs are read. ``joins``: the stage instead of the join over a pair, and the side
    that is read; ``thinning``: the stage after all others of an exchange's leg.
    """

    joins: dict[Pair, tuple[Stage, PlanPart]] = field(default_factory=dict)
    thinning: dict[Exchange, Stage] = field(default_factory=dict)

    def hold(self, small: SmallSide, stage: Stage) -> None:
        """The join holds the side; ``stage`` is it, over the rows of the other side."""
        if small.leaves_out:
            self.joins[small.pair] = stage, small.pair.right if small.is_left else small.pair.left
        else:
            self.thinning[small.other] = stage

    def clear(self) -> None:
        self.joins.clear()
        self.thinning.clear()

    def leg_of(self, exchange: Exchange, kept: Collection[Exchange]) -> Leg:
        """The rows that an exchange sends, as they are read."""
        leg = self.read(exchange.read(kept.__contains__), kept)
        thinning = self.thinning.get(exchange)
        return leg if thinning is None else leg.with_stage(thinning, leg.struct)

    def read(self, leg: Leg, kept: Collection[Exchange]) -> Leg:
        """The leg, in which what joins leave out is read where it would have been sent."""
        if not self.joins:
            return leg
        return replace(leg, parts=tuple(found for part in leg.parts for found in self._parts(part, kept)))

    def _parts(self, part: PlanPart, kept: Collection[Exchange]) -> Iterator[PlanPart]:
        held = self.joins.get(part.origin) if isinstance(part.origin, Pair) else None
        if held is None:
            yield part
            return
        stage, side = held
        assert isinstance(side.origin, Exchange)
        for before in self.leg_of(side.origin, kept).parts:
            yield PlanPart(before.origin, (*before.stages, *side.stages, stage, *part.stages[1:]))


NOTHING_HELD = HeldJoins()


def small_sides(
    wanted: Iterable[Exchange], last: Leg | None, kept: Collection[Exchange], there: Collection[Exchange]
) -> list[SmallSide]:
    """The sides that may be held in a run.

    Args:
        wanted: the exchanges that the run is for.
        last: the leg that reads them; None where the caller does.
        kept: those that are persisted.
        there: those whose datasets can be read.
    """
    given = {*kept}.intersection(there)
    legs: dict[Exchange, Leg] = {}
    left = [*wanted]
    while left:
        node = left.pop()
        if node not in legs and node not in given:
            legs[node] = node.read(kept.__contains__)
            left += exchanges(legs[node])
    lasts = [] if last is None else [last]
    readers = Counter(node for leg in [*legs.values(), *lasts] for node in exchanges(leg))
    if last is None:
        readers.update(wanted)
    sent = [part for leg in legs.values() for part in leg.parts]
    shown = [part for leg in lasts for part in leg.parts]
    return [
        small
        for parts, may_leave_out in ((sent, True), (shown, False))
        for part in parts
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
        assert isinstance(side.origin, Exchange)
        assert isinstance(other.origin, Exchange)
        name = "right" if is_left else "left"
        if not other.origin.added or other.origin in kept or readers[other.origin] != 1:
            continue
        checked = join.left_placed if is_left else join.right_placed
        if (
            checked is not None
            or side.origin.tasks is not None
            or not all(isinstance(stage, _IN_DRIVER) for stage in side.stages)
        ):
            continue
        leaves_out = (
            may_leave_out and name in join.divisible_sides and other.origin.may_cut([*other.stages, *others])
        )
        thins_out = not other.stages and name in _THINNED[join.plan.how]
        if leaves_out or thins_out:
            yield SmallSide(pair, join, is_left, side.origin, side.stages, other.origin, leaves_out)


_IN_DRIVER = (FilterStage, SelectStage, MergeStage, FinalStage, SortStage)
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


def chosen(
    sides: Iterable[SmallSide],
    sizes: Mapping[Exchange, tuple[int, int]],
    limit_bytes: int,
    most_rows: int,
) -> list[SmallSide]:
    """Of each join the side that is to be written first, or held if it is there, if one of them is small.

    Args:
        sides: those that were not tried yet.
        sizes: the rows and the bytes of the exchanges that are there.
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
            found = expected.of(small.exchange)
            guessed = expected.size_bytes(small.exchange)
            if found is None or guessed is None:
                continue
            rows, size_bytes = found.rows, guessed
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


def first_of(
    sides: Iterable[SmallSide], there: Collection[Exchange], kept: Collection[Exchange], held: HeldJoins
) -> list[Exchange]:
    """The exchanges of these sides that one job can write now: all that need none that is not there; a persisted one
    alone.
    """
    ready = [
        exchange
        for exchange in dict.fromkeys(small.exchange for small in sides)
        if exchange not in there and all(each in there for each in exchanges(held.leg_of(exchange, kept)))
    ]
    persisted = [exchange for exchange in ready if exchange in kept]
    return persisted[:1] or ready
