"""How many rows exchanges are expected to have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.compute import field
from pyspark.sql.types import StructType

from spark_client.arrow import Declared
from spark_client.pipeline.held_joins import Expectations, row_bytes
from spark_client.pipeline.nodes import Exchange, Input, Leg, Pair, PlanPart
from spark_client.steps import FilterStage, JoinStage, LimitStage, Stage

NOTHING: Any = None
DECLARED = Declared("a stage", pa.schema([("k", pa.int64()), ("v", pa.string())]))
THIRD = FilterStage(field("v") < 1, DECLARED)


def sent(*parts: PlanPart) -> Exchange:
    return Exchange(Leg(parts, StructType([]), DECLARED), 4)


def scan(rows: int | None, kept: float = 1.0, *stages: Stage) -> PlanPart:
    return PlanPart(Input(NOTHING, "scan", scanned_rows=rows, kept=kept), stages)


def joined(how: str, left: Exchange, right: Exchange) -> Exchange:
    join = JoinStage(DECLARED, SimpleNamespace(how=how))  # type: ignore[arg-type]
    return sent(PlanPart(Pair(PlanPart(left), PlanPart(right)), (join,)))


def rows(exchange: Exchange, sealed: dict[Exchange, int] | None = None) -> float | None:
    found = Expectations(sealed or {}).of(exchange)
    return None if found is None else round(found.rows, 3)


def test_filters_keep_a_part_and_a_limit_so_many() -> None:
    assert rows(sent(scan(900))) == 900
    assert rows(sent(scan(900, 0.1, THIRD))) == 30
    assert rows(sent(scan(900, 1.0, LimitStage(5, DECLARED, divisible=True)))) == 5
    assert rows(sent(scan(900), scan(100, 0.5))) == 950
    assert rows(sent(scan(0), scan(0, 0.5, THIRD))) == 0
    assert Expectations({}).size_bytes(sent(scan(10))) == 240


def test_what_is_not_known_stays_unknown_until_it_is_written() -> None:
    unknown = sent(scan(None), scan(3))
    assert rows(unknown) is None
    assert rows(joined("inner", unknown, sent(scan(9)))) is None
    assert rows(sent(PlanPart(unknown, (THIRD,))), {unknown: 30}) == 10


@pytest.mark.parametrize(
    ("how", "expected"),
    [("inner", 100), ("left", 1000), ("right", 10), ("full", 1010), ("semi", 100), ("anti", 333.333)],
)
def test_a_join_keeps_of_the_larger_side_the_part_that_the_smaller_has_of_its_own(
    how: str, expected: float
) -> None:
    assert rows(joined(how, sent(scan(1000)), sent(scan(100, 0.1)))) == expected


def test_a_written_side_says_how_much_its_filters_have_kept() -> None:
    large, small = sent(scan(1000)), sent(scan(100, 0.1))
    assert rows(joined("inner", large, small), {small: 50}) == 500
    assert rows(joined("inner", small, large), {small: 50, large: 10}) == 5


def test_a_plan_that_uses_each_exchange_twice_is_looked_at_once_for_each() -> None:
    found = sent(scan(8))
    for _ in range(60):
        found = joined("inner", found, found)
    assert rows(found) == 8


def test_bytes_of_a_row_are_those_of_its_types() -> None:
    kinds = [
        pa.int64(),
        pa.decimal128(15, 2),
        pa.string(),
        pa.list_(pa.float32(), 4),
        pa.struct([("a", pa.int8()), ("b", pa.list_(pa.int8()))]),
    ]
    assert row_bytes(pa.schema([pa.field(str(kind), kind) for kind in kinds])) == 8 + 16 + 16 + 16 + 17
