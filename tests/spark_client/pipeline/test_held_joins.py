"""Which sides of joins are held."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import StructType

from spark_client.arrow import Declared
from spark_client.pipeline.held_joins import HeldJoins, chosen, small_sides
from spark_client.pipeline.nodes import Exchange, Input, Leg, Pair, PlanPart, exchanges
from spark_client.placement import PlacedKeys
from spark_client.steps import (
    FilterStage,
    FinalStage,
    JoinStage,
    MapStage,
    PartialStage,
    Stage,
)

NOTHING: Any = None
DECLARED = Declared("a stage", pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64())]))
FUNCTION = MapStage(NOTHING, DECLARED)
FILTER = FilterStage(pc.field("v") == 1, DECLARED)
PARTIAL, FINAL = PartialStage(NOTHING, DECLARED), FinalStage(NOTHING, (), DECLARED)
LIMIT_BYTES, MOST_ROWS = 160, 1000  # ten rows
PARTITIONS = 3


@dataclass(frozen=True)
class Plan:
    """What the stages here ask of a plan."""

    how: str
    flipped: bool = False

    def mirrored(self) -> Plan:
        return Plan({"left": "right", "right": "left"}.get(self.how, self.how), not self.flipped)

    def matching(self, *, left: bool) -> Plan:
        return Plan("semi")


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
@pytest.mark.parametrize(
    ("how", "sides"),
    [
        ("inner", ("left", "right")),
        ("left", ("left",)),
        ("right", ("right",)),
        ("full", ()),
        ("semi", ("left", "right")),
        ("anti", ("left",)),
    ],
)
def test_rows_that_a_later_stage_needs_together_are_sent_without_those_that_match_nothing(
    how: str, sides: tuple[str, ...], stage: Stage
) -> None:
    of = joined(sent(scanned(9)), sent(scanned(9)), how, FILTER, stage)
    assert found(of) == {(side, False) for side in sides}


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
    join = pair.parts[0].stages[0]
    assert isinstance(join, JoinStage)
    checked = replace(join, right_placed=PlacedKeys("an exchange", DECLARED.schema, 3))
    assert found(leg(replace(pair.parts[0], stages=(checked,)))) == {("left", True)}, "its keys are checked"


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


def test_rows_of_several_joins_that_hold_their_sides_are_read_where_the_first_ones_would_have_been_sent() -> (
    None
):
    large, one, two = (sent(scanned(9)) for _ in range(3))
    last = Exchange(joined(sent(joined(large, one, "inner")), two, "inner"), 1)
    held = HeldJoins()
    for small in small_sides([last], None):
        if small.exchange in (one, two):
            held.hold(small, FUNCTION)
    (part,) = held.leg_of(last).parts
    assert part.origin is large.leg.parts[0].origin
    assert part.stages == (FUNCTION, FUNCTION)
