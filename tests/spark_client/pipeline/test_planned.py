"""What a plan runs as: without columns that no later step uses, and with filters moved ahead, where the rows stay the
same. Without Spark: plans are run by a model (``plan_model``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.compute import field

from flight_server.protocol.errors import InvalidRequest
from spark_client.pipeline.execution import planned
from spark_client.pipeline.nodes import Leg, reachable
from spark_client.pipeline.plan import Pipeline
from spark_client.pipeline.run_statistics import LastRun, plan_text
from tests.support.plan_model import Persisted, pipeline, result

NAN = float("nan")
LEFT = pa.table(
    {
        "k": pa.array([1, 2, 3, None, 2, 5, 1, 0], pa.int64()),
        "v": pa.array([10, 0, None, 40, 20, 0, 7, 9], pa.int64()),
        "s": pa.array(["a", "b", None, "a", "c", "b", "a", ""], pa.string()),
        "f": pa.array([0.0, -0.0, NAN, 1.5, None, NAN, 2.0, -3.0], pa.float64()),
    }
)
RIGHT = pa.table(
    {
        "k": pa.array([1, 2, 2, None, 7, 0], pa.int64()),
        "x": pa.array([1, 2, 3, 4, None, 0], pa.int64()),
        "y": pa.array(["p", "q", None, "p", "q", "r"], pa.string()),
    }
)


def left(**options: Any) -> Pipeline:
    return pipeline(LEFT.slice(0, 5), LEFT.slice(5), **options)


def right(**options: Any) -> Pipeline:
    return pipeline(RIGHT.slice(0, 2), RIGHT.slice(2), **options)


def plan_of(steps: Pipeline) -> Leg:
    return planned(steps.leg, steps.shuffles.persisted)


def text_of(steps: Pipeline) -> list[str]:
    return plan_text(plan_of(steps), LastRun(), lambda _: False).splitlines()


def sent(steps: Pipeline) -> list[list[str]]:
    """The columns that exchanges send, from the last one back."""
    order = sorted(reachable([plan_of(steps)]), key=lambda each: each.node.serial, reverse=True)
    return [exchange.leg.schema.names for exchange in order]


def rows(leg: Leg) -> list[str]:
    """In no order; NaN equals itself."""
    return sorted(map(str, result(leg).to_pylist()))


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def check(steps: Pipeline) -> None:
    """The plan gives the rows of the steps, if these give any."""
    try:
        expected = result(steps.leg)
    except InvalidRequest:
        return
    leg = plan_of(steps)
    assert leg.schema.equals(steps.leg.schema, check_metadata=True)
    assert leg.struct == steps.leg.struct
    assert sorted(map(str, result(leg).to_pylist())) == sorted(map(str, expected.to_pylist()))
    assert plan_text(leg, LastRun(), lambda _: False)


def test_columns_that_no_later_step_uses_are_not_read_and_not_sent() -> None:
    steps = left().join(right(), "k").groupBy("s").agg(total=("x", "sum"))
    assert sent(steps) == [["s", "state0"], ["k", "x"], ["k", "s"]]
    lines = text_of(steps)
    assert any(line.endswith("rows, k s") for line in lines)
    assert any(line.endswith("rows, k x") for line in lines)
    check(steps)


def test_a_plan_that_needs_all_stays_the_same_object() -> None:
    steps = left().repartition(3, "k").sortWithinPartitions("v")
    assert plan_of(steps) is steps.leg
    joined = left().join(right(), "k", "left")
    assert plan_of(joined) is joined.leg


def test_explain_names_what_an_exchange_leaves_out() -> None:
    steps = left(filters=False).filter(field("v") * 2 > 0).repartition(3, "k").select("k", "s")
    lines = text_of(steps)
    assert lines[1] == "repartition(3, 'k') #1: by the hash of 'k', 2 of 4 columns: 'k', 's'"
    assert lines[2] == "without 'v'"
    assert lines[-1] == "rows, k v s"
    check(steps)


def test_a_function_gets_all_columns() -> None:
    struct = left().leg.struct
    steps = left().repartition(3, "k").mapInArrow(same, struct).select("k")
    assert sent(steps) == [["k", "v", "s", "f"]]
    check(steps)
    before = left().mapInArrow(same, struct).repartition(3, "k").select("v")
    assert sent(before) == [["k", "v"]], "what it gives may be left out"
    check(before)
    groups = (
        left()
        .select("k", "v", z="s")
        .groupBy("k")
        .applyInArrow(lambda table: table.select(["k"]), left().select("k").schema)
    )
    assert sent(groups) == [["k", "v", "z"]]


def test_keys_and_orders_are_sent() -> None:
    assert sent(left().repartition(3, "k").select("v")) == [["k", "v"]]
    assert sent(left().repartitionByRange(3, "f").select("v")) == [["v", "f"]]
    assert sent(left().orderBy("s desc").select("v")) == [["v", "s"]]
    assert sent(left().orderBy("s desc").select("v").limit(2)) == [["v", "s"]]
    assert sent(left().repartition(3).select("v")) == [["v"]]
    check(left().orderBy("s desc", "v", "k").limit(3).select("f"))


def test_a_count_reads_one_column() -> None:
    counted = left().repartition(3).agg({"*": "count"})
    assert sent(counted) == [["state0"], ["k"]]
    check(counted)
    check(left().join(right(), "k", "full").agg({"*": "count"}))
    of_one_row = left().agg(a=("v", "sum"), b=("v", "count")).repartition(2).agg({"*": "count"})
    assert result(plan_of(of_one_row)).to_pylist() == [{"count(1)": 1}]
    for steps in (
        left(),
        left().filter(V),
        left().distinct(),
        left().join(right(), "k"),
        left().union(left()),
    ):
        check(steps.agg({"*": "count"}))
        check(steps.limit(3).agg({"*": "count"}))


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_a_join_needs_its_keys_and_what_is_used_of_it(how: Any) -> None:
    joined = left().join(right(), "k", how).select("v")
    assert sent(joined) == [["k"], ["k", "v"]]
    check(joined)
    if how not in ("semi", "anti"):
        other = left().join(right().withColumnRenamed("k", "j"), {"k": "j"}, how).select("y")
        assert sent(other) == [["j", "y"], ["k"]]
        check(other)


def test_an_asof_join_needs_its_times() -> None:
    joined = left().join(right(), "k", "asof", as_of=("v", "x")).select("y")
    assert sent(joined) == [["k", "x", "y"], ["k", "v"]]
    check(joined)
    check(joined.filter(field("y") == "p"))


def test_an_aggregate_that_is_not_used_is_not_computed() -> None:
    steps = (
        left().groupBy("s").agg(a=("v", "sum"), b=("f", "avg"), c=("k", "count_distinct")).select("b", "c")
    )
    assert [len(names) for names in sent(steps)] == [4], "of avg two states, and one of the values of k"
    check(steps)
    few = left().groupBy("s").agg(a=("v", "sum"), b=("f", "max")).select("a")
    assert sent(few) == [["s", "state0"]]
    assert text_of(few)[-1] == "rows, v s"
    check(few)
    wide = left().dropDuplicates(["s"]).select("s", "k")
    assert sent(wide) == [["s", "k"]]
    assert sent(left().distinct().select("s")) == [["k", "v", "s", "f"]]


def test_the_sides_of_a_union_keep_their_places() -> None:
    other = right().select(a="x", b="x", c="y", d="x")
    steps = left().union(other.select("a", "b", "c", d=field("d").cast("float64"))).filter(field("v") > 0)
    check(steps.select("s"))
    assert text_of(steps.repartition(2).select("s"))[1:] != []
    check(steps.repartition(2, "s").select("s"))


def test_an_exchange_that_is_read_twice_has_what_both_need() -> None:
    shared = left().repartition(3, "k")
    steps = shared.select("k", "v").filter(field("v") > 0).union(shared.select("k", v="k"))
    assert sent(steps) == [["k", "v"]]
    assert any("see above" in line for line in text_of(steps))
    check(steps)


def test_a_persisted_exchange_keeps_its_rows_and_columns() -> None:
    persisted = Persisted()
    kept = (
        left(client=SimpleNamespace(persisted=persisted), filters=False)
        .filter(field("v") >= 0)
        .select("k", "v", "s")
        .repartition(3, "k")
    )
    persisted.keep(kept.leg.last)  # type: ignore[arg-type]  # an exchange
    steps = kept.filter(field("v") > 5).select("s")
    (exchange,) = reachable([plan_of(steps)])
    assert exchange.leg.schema.names == ["k", "v", "s"]
    assert exchange.original is kept.leg.last, "what is before it does without a column"
    assert not any("v > 5" in stage.declared.stage for stage in exchange.leg.parts[0].stages)
    check(steps)
    persisted.written[kept.leg.last] = True  # type: ignore[index]
    (exchange,) = reachable([plan_of(steps)])
    assert exchange is kept.leg.last, "nothing before it is looked at"


def before_exchanges(steps: Pipeline) -> list[str]:
    """The filters that have moved, from the last one back."""
    return [
        line.split("filter ")[1] for line in text_of(steps) if ", moved ahead" in line or ", with " in line
    ]


V = field("v") > 5
FILTERS: list[tuple[str, Callable[[], Pipeline], bool]] = [
    ("a filter of a scan", lambda: left().filter(V), True),
    ("an exchange", lambda: left().repartition(3, "k").filter(V), True),
    ("a round robin", lambda: left().repartition(3).filter(V), True),
    ("ranges", lambda: left().repartitionByRange(3, "v").filter(V), True),
    ("an order", lambda: left().orderBy("v").filter(V), True),
    ("a select", lambda: left().repartition(3, "k").select("v", "k", z=field("v") + 1).filter(V), True),
    ("a rename", lambda: left().repartition(3, "k").withColumnRenamed("v", "w").filter(field("w") > 5), True),
    (
        "a computed column",
        lambda: left().repartition(3, "k").withColumn("v", field("v") + 1).filter(V),
        False,
    ),
    ("a limit", lambda: left().limit(3).filter(V), False),
    ("the first rows", lambda: left().orderBy("v").limit(3).filter(V), False),
    ("one row of all, a constant", lambda: left().agg(t=("v", "sum")).filter(pc.scalar(False)), False),
    ("the key of groups", lambda: left().groupBy("k").agg(t=("v", "sum")).filter(field("k") > 1), True),
    ("an aggregate", lambda: left().groupBy("k").agg(t=("v", "sum")).filter(field("t") > 1), False),
    ("a key with zeros", lambda: left().groupBy("f").agg(t=("v", "sum")).filter(field("f") > 0), False),
    ("one row of all", lambda: left().agg(t=("v", "sum")).filter(field("t") > 1), False),
    ("different rows", lambda: left().select("k", "v").distinct().filter(V), True),
    ("the left of an inner join", lambda: left().join(right(), "k").filter(V), True),
    ("the right of an inner join", lambda: left().join(right(), "k").filter(field("x") > 1), True),
    ("both sides", lambda: left().join(right(), "k").filter(field("x") > field("v")), False),
    ("the left of a left join", lambda: left().join(right(), "k", "left").filter(V), True),
    ("the right of a left join", lambda: left().join(right(), "k", "left").filter(field("x") > 1), False),
    ("nulls of a left join", lambda: left().join(right(), "k", "left").filter(field("x").is_null()), False),
    ("the left of a right join", lambda: left().join(right(), "k", "right").filter(V), False),
    ("the right of a right join", lambda: left().join(right(), "k", "right").filter(field("x") > 1), True),
    ("a full join", lambda: left().join(right(), "k", "full").filter(V), False),
    ("a semi join", lambda: left().join(right(), "k", "semi").filter(V), True),
    ("an anti join", lambda: left().join(right(), "k", "anti").filter(V), True),
    ("a function", lambda: left().mapInArrow(same, left().leg.struct).filter(V), False),
    (
        "what may fail, an exchange",
        lambda: left().repartition(3).filter(pc.scalar(100) / field("v") > 5),
        True,
    ),
    (
        "what may fail, a join",
        lambda: left().join(right(), "k").filter(pc.scalar(100) / field("v") > 5),
        False,
    ),
    (
        "what may fail, a left join",
        lambda: left().join(right(), "k", "left").filter(field("v") + 1 > 5),
        True,
    ),
    ("a number and a float", lambda: left().join(right(), "k").filter(field("v") > 5.5), False),
]


@pytest.mark.parametrize(
    ("steps", "moves"), [each[1:] for each in FILTERS], ids=[each[0] for each in FILTERS]
)
def test_a_filter_moves_before_what_does_not_change_its_rows(
    steps: Callable[[], Pipeline], moves: bool
) -> None:
    assert bool(before_exchanges(steps())) == moves
    check(steps())


def test_a_filter_that_fails_only_for_rows_without_a_match_stays() -> None:
    """As the division by zero, of which only keys that the other side lacks have one."""
    ok = pipeline(pa.table({"k": [1, 2], "v": [0, 4]}))
    other = pipeline(pa.table({"k": [2]}))
    steps = ok.join(other, "k").filter(pc.scalar(8) / field("v") > 1)
    assert rows(plan_of(steps)) == rows(steps.leg) == [str({"k": 2, "v": 4})]
    guarded = ok.repartition(2).filter(field("v") != 0).filter(pc.scalar(8) / field("v") > 1)
    assert rows(plan_of(guarded)) == rows(guarded.leg)


def test_conditions_that_are_joined_by_and_move_one_by_one() -> None:
    steps = left().join(right(), "k").filter(V & field("y").isin(["p", "q"]) & (field("x") < field("v")))
    lines = text_of(steps)
    assert [line for line in lines if line.startswith("stage 2 (filter")] == lines[:1]
    assert len(before_exchanges(steps)) == 2
    check(steps)


def test_a_filter_goes_through_several_joins_into_the_scan() -> None:
    third = right().select("k", z="x")
    steps = left().join(right(), "k").join(third, "k", "left").filter((field("y") == "p") & V)
    assert [line for line in text_of(steps) if line.startswith(("stage 3 (filter", "stage 4 (filter"))] == []
    assert sum(", with " in line for line in text_of(steps)) == 2
    check(steps)


def test_a_filter_passes_no_cast_of_a_union() -> None:
    narrow = pipeline(
        pa.table({"k": pa.array([1, 2], pa.int32()), "v": pa.array([2**31 - 1, 3], pa.int32())})
    )
    wide = left().select("k", "v")
    steps = wide.union(narrow).filter(field("v") + 1 > 5)
    (_, cast) = plan_of(steps).parts
    assert any("filter" in stage.declared.stage for stage in cast.stages), "in 32 bits it would overflow"
    check(steps)


def test_a_filter_of_dates_and_decimals_moves() -> None:
    table = pa.table({"k": [1, 2], "d": [date(2024, 1, 1), None], "m": [Decimal("1.50"), Decimal("2.25")]})
    steps = (
        pipeline(table)
        .join(right(), "k")
        .filter((field("d") >= date(2023, 1, 1)) & (field("m") < Decimal(2)))
    )
    assert len(before_exchanges(steps)) == 1
    check(steps)


NUMBERS, FLOATS, TEXTS = (
    [None, -1, 0, 1, 1, 2, 2],
    [None, 0.0, -0.0, 1.5, NAN, 3.0],
    [None, "", "a", "b", "b"],
)


def table(chance: Random) -> pa.Table:
    """A few rows, with values that are there several times."""
    size = chance.randint(2, 9) if chance.random() < 0.95 else 0
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "k": (NUMBERS, pa.int64()),
        "v": (NUMBERS, pa.int32()),
        "s": (TEXTS, pa.string()),
        "f": (FLOATS, pa.float64()),
    }
    return pa.table(
        {name: pa.array(chance.choices(each, k=size), kind) for name, (each, kind) in columns.items()}
    )


class Steps:
    """Makes random steps over random tables."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._names = (f"c{number}" for number in count())
        self._shared: list[Pipeline] = []

    def plan(self) -> Pipeline:
        """A pipeline of several steps, of which the last ones give few columns and rows."""
        steps = self._some(self._chance.randint(2, 6), joins=2)
        for _ in range(self._chance.randint(0, 2)):
            steps = steps.filter(self._condition(steps))
        return steps.select(*self._columns(steps)) if self._chance.random() < 0.7 else steps

    def _some(self, number: int, joins: int) -> Pipeline:
        chance = self._chance
        steps = pipeline(table(chance), table(chance), filters=chance.random() < 0.5)
        for _ in range(number):
            name = chance.choice(["join", "join", *STEPS] if joins else STEPS)
            steps = self._joined(steps, joins - 1) if name == "join" else getattr(self, name)(steps)
            if chance.random() < 0.3:
                self._shared.append(steps)
        return steps

    def _columns(self, steps: Pipeline, most: int = 3) -> list[str]:
        names = steps.columns
        return self._chance.sample(names, k=min(len(names), self._chance.randint(1, most)))

    def _condition(self, steps: Pipeline) -> Any:
        name = self._chance.choice(steps.columns)
        column, kind = field(name), steps.leg.schema.field(name).type
        own: list[Any] = [column.is_null(), column.is_valid(), column.is_valid()]
        if pa.types.is_integer(kind):
            own += [column > 0, column != 1, column.isin([1, 2]), column + 1 > 1, column > 0.5]
            own += [pc.scalar(6) / column > 2, pc.coalesce(column, pc.scalar(2)) > 1]
            own += [column >= field(each.name) for each in steps.leg.schema if each.type == kind]
        elif pa.types.is_floating(kind):
            own += [
                column > 0,
                column == 0.0,
                pc.is_nan(column),
                column != 1.5,
                pc.scalar(1.0) / column > 0.0,
            ]
        elif pa.types.is_string(kind):
            own += [column == "a", column >= "a", pc.starts_with(column, "b")]
        condition = self._chance.choice(own)
        return ~condition if self._chance.random() < 0.2 else condition

    def filter(self, steps: Pipeline) -> Pipeline:
        return steps.filter(self._condition(steps))

    def both(self, steps: Pipeline) -> Pipeline:
        return steps.filter(self._condition(steps) & self._condition(steps))

    def select(self, steps: Pipeline) -> Pipeline:
        return steps.select(*self._columns(steps, 4))

    def with_column(self, steps: Pipeline) -> Pipeline:
        integers = [each.name for each in steps.leg.schema if pa.types.is_integer(each.type)]
        if not integers:
            return steps
        name = self._chance.choice([*steps.columns, next(self._names)])
        return steps.withColumn(name, field(self._chance.choice(integers)) * 2)

    def rename(self, steps: Pipeline) -> Pipeline:
        return steps.withColumnRenamed(self._chance.choice(steps.columns), next(self._names))

    def drop(self, steps: Pipeline) -> Pipeline:
        return steps.drop(self._chance.choice(steps.columns)) if len(steps.columns) > 1 else steps

    def exchange(self, steps: Pipeline) -> Pipeline:
        keys = self._columns(steps)
        how = self._chance.choice(["keys", "keys", "in turn", "ranges", "order"])
        if how == "ranges":
            return steps.repartitionByRange(3, *keys)
        if how == "order":
            return steps.orderBy(*keys)
        return steps.repartition(3, *(keys if how == "keys" else ()))

    def top(self, steps: Pipeline) -> Pipeline:
        order = self._chance.sample(steps.columns, k=len(steps.columns))
        return steps.orderBy(*order).limit(self._chance.randint(0, 6))

    def function(self, steps: Pipeline) -> Pipeline:
        return steps.mapInArrow(same, steps.leg.struct)

    def distinct(self, steps: Pipeline) -> Pipeline:
        return steps.distinct()

    def aggregate(self, steps: Pipeline) -> Pipeline:
        keys, (column, *_) = self._columns(steps, 2), self._columns(steps)
        asked: Any = {next(self._names): (column, name) for name in ("count", "max", "min", "count_distinct")}
        if pa.types.is_integer(steps.leg.schema.field(column).type):
            asked[next(self._names)] = (column, "sum")
        return steps.groupBy(*keys).agg({next(self._names): ("*", "count")}, asked)

    def union(self, steps: Pipeline) -> Pipeline:
        fitting = [each for each in self._shared if each.leg.schema.types == steps.leg.schema.types]
        return steps.union(self._chance.choice(fitting)) if fitting else steps

    def _joined(self, steps: Pipeline, joins: int) -> Pipeline:
        other = self._some(self._chance.randint(0, 2), joins)
        schemas = steps.leg.schema, other.leg.schema
        pairs = [(one.name, two.name) for one in schemas[0] for two in schemas[1] if one.type == two.type]
        if not pairs:
            return steps
        how: Any = self._chance.choice(["inner", "left", "right", "full", "semi", "anti"])
        on = self._chance.sample(pairs, k=min(len(pairs), self._chance.choice([1, 1, 1, 2])))
        return steps.join(other, on, how, suffix=f"_{next(self._names)}")


STEPS = [
    *(
        "filter",
        "filter",
        "filter",
        "both",
        "select",
        "with_column",
        "rename",
        "drop",
        "exchange",
        "exchange",
    ),
    *("top", "function", "distinct", "aggregate", "aggregate", "union"),
]


@given(st.integers(0, 2**32))
def test_a_plan_gives_the_rows_of_its_steps(seed: int) -> None:
    for number in range(5):
        check(Steps(seed * 5 + number).plan())
