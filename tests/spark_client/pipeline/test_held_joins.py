"""Which sides of joins are held, and that a run which holds them gives the rows of the plan.

The random plans are run by a model: tasks have the rows of a part of an input, or of a partition, and stages that need
all rows of a key see only those of their task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import StructType

from spark_client.arrow import Declared
from spark_client.pipeline.decided_jobs import jobs_of
from spark_client.pipeline.held_joins import HeldJoins, chosen, small_sides
from spark_client.pipeline.nodes import Exchange, Input, Leg, Origin, Pair, PlanPart, exchanges
from spark_client.steps import (
    FilterStage,
    FinalStage,
    JoinStage,
    MapStage,
    PartialStage,
    Stage,
    TableJoinStage,
)

NOTHING: Any = None
DECLARED = Declared("a stage", pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64())]))
FUNCTION = MapStage(NOTHING, DECLARED)
FILTER = FilterStage(pc.field("v") == 1, DECLARED)
PARTIAL, FINAL = PartialStage(NOTHING, DECLARED), FinalStage(NOTHING, (), DECLARED)
LIMIT_BYTES, MOST_ROWS = 160, 1000  # ten rows
PARTITIONS = 3
Row = tuple[int, Any]


@dataclass(frozen=True)
class Plan:
    """What the stages here ask of a plan."""

    how: str
    flipped: bool = False

    def mirrored(self) -> Plan:
        return Plan({"left": "right", "right": "left"}.get(self.how, self.how), not self.flipped)

    def matching(self, *, left: bool) -> Plan:
        return Plan("semi")


@dataclass(frozen=True)
class Rows:
    rows: tuple[Row, ...]
    size_bytes = 0

    def table(self) -> Any:
        raise NotImplementedError


def leg(*parts: PlanPart) -> Leg:
    return Leg(parts, StructType([]), DECLARED)


def scanned(rows: int, kept: float = 1.0, *stages: Stage) -> Leg:
    given = replace(Input(NOTHING, "scan"), scanned_rows=rows, kept=kept)
    return leg(PlanPart(given, stages))


def sent(of: Leg, **arguments: Any) -> Exchange:
    return Exchange(of, PARTITIONS, ("k",), added=True, **arguments)


def joined(left: Exchange, right: Exchange, how: str, *after: Stage, before: tuple[Stage, ...] = ()) -> Leg:
    """``before`` are stages of the right side."""
    join = JoinStage(DECLARED, Plan(how))  # type: ignore[arg-type]
    return leg(PlanPart(Pair(PlanPart(left), PlanPart(right, before)), (join, *after)))


def found(of: Leg, last: Leg | None = None, kept: tuple[Exchange, ...] = ()) -> set[tuple[str, bool]]:
    """The sides that may be held of the joins in a leg that an exchange sends, and whether they leave out the other."""
    wanted = [Exchange(of, 1)] if last is None else [*exchanges(last)]
    sides = small_sides(wanted, last, kept, ())
    return {("left" if small.is_left else "right", small.leaves_out) for small in sides}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", {("left", True), ("right", True)}),
        ("left", {("left", False), ("right", True)}),
        ("right", {("left", True), ("right", False)}),
        ("full", set()),
        ("semi", {("left", False), ("right", True)}),
        ("anti", {("left", False), ("right", True)}),
    ],
)
def test_a_side_is_held_if_each_part_of_the_other_has_its_rows_beside_it(
    how: str, expected: set[tuple[str, bool]]
) -> None:
    assert found(joined(sent(scanned(9)), sent(scanned(9)), how, FILTER, PARTIAL)) == expected


@pytest.mark.parametrize("stage", [FINAL, FUNCTION])
def test_rows_that_a_later_stage_needs_together_are_sent_without_those_that_match_nothing(
    stage: Stage,
) -> None:
    of = joined(sent(scanned(9)), sent(scanned(9)), "inner", FILTER, stage)
    assert found(of) == {("left", False), ("right", False)}


def test_the_last_steps_of_a_frame_hold_nothing() -> None:
    last = joined(sent(scanned(9)), sent(scanned(9)), "inner")
    assert found(last, last) == {("left", False), ("right", False)}


def test_an_exchange_with_another_use_is_written() -> None:
    one, two = sent(scanned(9)), sent(scanned(9))
    own = replace(sent(scanned(9)), added=False)
    assert found(joined(one, two, "inner"), kept=(one,)) == {("left", True)}, "persisted"
    assert found(joined(own, two, "inner")) == {("left", True)}, "a user's"
    assert found(joined(one, one, "inner")) == set(), "both sides"
    again = leg(*joined(one, two, "inner").parts, PlanPart(two))
    assert found(again) == {("right", True)}, "of a union, too"
    pair = joined(one, two, "inner")
    twice = leg(*pair.parts, *(replace(part, stages=(*part.stages, FILTER)) for part in pair.parts))
    assert found(twice) == set(), "a join that is used twice"


def test_a_side_is_held_after_stages_that_the_driver_may_run() -> None:
    one, two = sent(scanned(9)), sent(scanned(9))
    assert ("right", True) in found(joined(one, two, "inner", before=(FILTER, FINAL)))
    assert found(joined(one, two, "inner", before=(FUNCTION,))) == set()


def test_the_side_that_is_expected_to_be_smaller_is_written_first() -> None:
    large, small = sent(scanned(1000)), sent(scanned(100, 0.05))
    wanted = [Exchange(joined(large, small, "inner"), 1)]
    sides = small_sides(wanted, None, (), ())
    (first,) = chosen(sides, {}, LIMIT_BYTES, MOST_ROWS)
    assert first.exchange is small
    # What it has turned out to be decides.
    assert chosen(sides, {small: (11, 176)}, LIMIT_BYTES, MOST_ROWS) == []
    assert chosen(sides, {small: (10, 160)}, LIMIT_BYTES, MOST_ROWS) == [first]
    assert chosen(sides, {small: (10, 160)}, LIMIT_BYTES, 9) == []
    assert chosen(sides, {small: (10, 160), large: (1000, 16000)}, LIMIT_BYTES, MOST_ROWS) == []


def test_nothing_is_tried_where_nothing_is_known() -> None:
    frame = leg(PlanPart(Input(NOTHING, "a DataFrame")))
    one, two = sent(frame), sent(frame)
    sides = small_sides([Exchange(joined(one, two, "inner"), 1)], None, (), ())
    assert chosen(sides, {}, LIMIT_BYTES, MOST_ROWS) == []
    assert [small.exchange for small in chosen(sides, {one: (3, 48)}, LIMIT_BYTES, MOST_ROWS)] == [one]


def test_keys_are_held_where_they_are_a_small_part_and_the_other_side_is_large() -> None:
    large = sent(scanned(10_000_000))
    for rows, kept, expected in [(100, 0.1, 1), (10, 1.0, 0)]:
        small = sent(scanned(rows, kept))
        sides = small_sides([Exchange(joined(large, small, "inner", FINAL), 1)], None, (), ())
        assert len(chosen(sides, {}, LIMIT_BYTES, MOST_ROWS)) == expected
    sides = small_sides(
        [Exchange(joined(sent(scanned(100_000)), sent(scanned(100, 0.1)), "inner", FINAL), 1)], None, (), ()
    )
    assert chosen(sides, {}, LIMIT_BYTES, MOST_ROWS) == []


def test_sides_of_several_joins_are_written_together_and_a_persisted_one_alone() -> None:
    a, b, c, d = (sent(scanned(9)) for _ in range(4))
    of = leg(*joined(a, b, "left").parts, *joined(c, d, "left").parts)
    held = HeldJoins()
    held.begin(small_sides([Exchange(of, 1)], None), LIMIT_BYTES, MOST_ROWS)
    assert held.first({}, ()) == [b, d]
    assert held.first({}, (d,)) == [d]
    assert held.first({d: (1000, 16000)}, (d,)) == [b]
    assert held.next_side({b: (9, 144)}).exchange is b  # type: ignore[union-attr]


# Random plans.


@dataclass
class Model:
    """Runs a plan, job by job; ``rows`` are those of the inputs."""

    wanted: Exchange
    rows: Mapping[Input, list[Row]]
    holds: bool
    kept: tuple[Exchange, ...] = ()
    there: dict[Exchange, list[Row]] = field(default_factory=dict)
    writes: Counter[Exchange] = field(default_factory=Counter)
    held: HeldJoins = field(default_factory=HeldJoins)

    def run(self) -> Counter[Row]:
        sides = small_sides([self.wanted], None, self.kept) if self.holds else []
        self.held.begin(sides, LIMIT_BYTES, MOST_ROWS)
        while True:
            first = self._decide()
            jobs = jobs_of([self.wanted], self.there.keys(), self.kept, self.held, first)
            if not jobs:
                assert set(self.there) == {self.wanted, *self.kept} & set(self.there)
                return Counter(self.there[self.wanted])
            for write in jobs[0].writes:
                tasks = self._tasks(write.leg)
                self.there[write.exchange] = [row for task in tasks for row in task]
                self.writes[write.exchange] += 1
            for node in jobs[0].releases:
                del self.there[node]

    def _decide(self) -> list[Exchange]:
        sizes = {node: (len(rows), 16 * len(rows)) for node, rows in self.there.items()}
        while (small := self.held.next_side(sizes)) is not None:
            rows = [row for task in self._each(self._read(small.exchange), small.stages) for row in task]
            self.held.hold(small, TableJoinStage(DECLARED, small.plan, Rows(tuple(rows)), DECLARED))
        return self.held.first(sizes, self.kept)

    def _read(self, node: Exchange) -> list[list[Row]]:
        rows = self.there[node]
        if not node.keys:
            return [rows]
        return [[row for row in rows if row[0] % node.partitions == part] for part in range(node.partitions)]

    def _tasks(self, of: Leg) -> list[list[Row]]:
        return [task for part in of.parts for task in self._part(part)]

    def _part(self, part: PlanPart) -> list[list[Row]]:
        origin, stages = part.origin, part.stages
        if isinstance(origin, Input):
            rows = self.rows[origin]
            return self._each([rows[::2], rows[1::2]], stages)
        if isinstance(origin, Exchange):
            return self._each(self._read(origin), stages)
        join, *others = stages
        assert isinstance(join, JoinStage)
        both = zip(self._part(origin.left), self._part(origin.right), strict=True)
        return self._each([_joined(join.plan.how, one, two) for one, two in both], others)

    def _each(self, tasks: list[list[Row]], stages: Any) -> list[list[Row]]:
        for stage in stages:
            tasks = [_after(stage, task) for task in tasks]
        return tasks


def _joined(how: str, left: list[Row], right: list[Row], *, flipped: bool = False) -> list[Row]:
    matches = [(one, two) for one in left for two in right if one[0] == two[0]]
    lefts, rights = {one for one, _ in matches}, {two for _, two in matches}
    if how in ("semi", "anti"):
        return [one for one in left if (one in lefts) == (how == "semi")]
    rows: list[tuple[Any, Any]] = [*matches]
    rows += [(one, None) for one in left if how in ("left", "full") and one not in lefts]
    rows += [(None, two) for two in right if how in ("right", "full") and two not in rights]
    return [((one or two)[0], (two, one) if flipped else (one, two)) for one, two in rows]


def _after(stage: Stage, rows: list[Row]) -> list[Row]:
    if isinstance(stage, TableJoinStage):
        plan: Any = stage.plan
        return _joined(plan.how, rows, [*stage.right.rows], flipped=plan.flipped)  # type: ignore[attr-defined]
    if isinstance(stage, FilterStage):
        return [row for row in rows if row[0] % 5 != 1]
    if isinstance(stage, FinalStage | MapStage):
        groups: dict[int, list[str]] = {}
        for key, value in rows:
            groups.setdefault(key, []).append(repr(value))
        return [(key, tuple(sorted(values))) for key, values in groups.items()]
    return rows


def drawn(chance: Random) -> tuple[Exchange, dict[Input, list[Row]], tuple[Exchange, ...]]:
    """A plan, the rows of its inputs, and its persisted exchanges."""
    rows: dict[Input, list[Row]] = {}
    made: list[Exchange] = []

    def source(stages: tuple[Stage, ...] = ()) -> Leg:
        count = chance.choice([0, 1, 5, 9, 30, 60])
        guessed = chance.choice([None, count, 3, 10_000_000])
        given = replace(Input(NOTHING, "scan"), scanned_rows=guessed, kept=chance.choice([1.0, 0.2, 1e-6]))
        rows[given] = [(chance.randrange(12), len(rows) * 1000 + number) for number in range(count)]
        return leg(PlanPart(given, stages))

    def after(origin: Origin, first: tuple[Stage, ...] = ()) -> PlanPart:
        all_stages: list[Stage] = [FILTER, PARTIAL, FINAL, FUNCTION]
        stages = chance.choices(all_stages, [4, 3, 2, 1], k=chance.choice([0, 0, 1, 2]))
        return PlanPart(origin, (*first, *stages))

    def exchange(depth: int) -> Exchange:
        if made and chance.random() < 0.15:
            return chance.choice(made)
        made.append(Exchange(rows_of(depth), PARTITIONS, ("k",), added=chance.random() < 0.8))
        return made[-1]

    def side(depth: int) -> PlanPart:
        node = exchange(depth)
        return (
            PlanPart(node, chance.choice([(), (), (FILTER,), (FINAL,)])) if not node.added else PlanPart(node)
        )

    def rows_of(depth: int) -> Leg:
        kind = chance.random()
        if depth == 0 or kind < 0.2:
            return source()
        if kind < 0.3:
            return leg(after(exchange(depth - 1)))
        if kind < 0.4:
            return leg(*rows_of(depth - 1).parts, *rows_of(depth - 1).parts)
        join = JoinStage(DECLARED, Plan(chance.choice(["inner", "left", "right", "full", "semi", "anti"])))  # type: ignore[arg-type]
        return leg(after(Pair(side(depth - 1), side(depth - 1)), (join,)))

    wanted = Exchange(rows_of(chance.choice([1, 2, 3])), 1)
    kept = tuple(node for node in made if chance.random() < 0.1)
    return wanted, rows, kept


@pytest.mark.parametrize("plans", [200, pytest.param(3000, marks=pytest.mark.long)])
def test_random_plans_that_hold_sides_give_the_same_rows_and_write_no_exchange_twice(plans: int) -> None:
    left_out = thinned = 0
    for seed in range(plans):
        wanted, rows, kept = drawn(Random(seed))
        plain, holding = (Model(wanted, rows, holds, kept) for holds in (False, True))
        assert plain.run() == holding.run(), seed
        assert max(holding.writes.values()) == 1, seed
        assert holding.writes.keys() <= plain.writes.keys(), seed
        left_out += len(holding.held.joins)
        thinned += len(holding.held.thinning)
    assert left_out > plans // 10
    assert thinned > plans // 100
