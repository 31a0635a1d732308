"""Joins of two inputs equal a nested loop, whatever fits the memory."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.joining import PIECE_ROWS, Column, How, JoinPlan, KeyForm, MatchKeys
from spark_client.joining.hash_join import PIECE_BYTES
from spark_client.placement import PlacedKeys
from spark_client.spill import TaskMemory
from spark_client.steps import Both, JoinStage, Pass, run

HOWS: tuple[How, ...] = ("inner", "left", "right", "full", "semi", "anti")
NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]

Row = tuple[Any, ...]

LEFT_PAYLOAD = [("tags", pa.list_(pa.int32())), ("left_text", pa.string())]
RIGHT_PAYLOAD = [
    ("point", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ("counts", pa.map_(pa.string(), pa.int32())),
]
LEFT_VALUES: list[Row] = [([1, 2], "a"), (None, "b"), ([], None), ([None], "text that is longer")]
RIGHT_VALUES: list[Row] = [
    ({"x": 1, "y": "one"}, [("a", 1)]),
    (None, []),
    ({"x": None, "y": None}, None),
]


def stage(how: How, kinds: Sequence[tuple[pa.DataType, pa.DataType]]) -> JoinStage:
    """A join by the keys k0, k1, ... of these types."""
    names = tuple(f"k{number}" for number in range(len(kinds)))
    forms = tuple(KeyForm.of(one, two, "key") for one, two in kinds)
    left = pa.schema([*zip(names, (one for one, _ in kinds), strict=True), *LEFT_PAYLOAD])
    right = pa.schema([*zip(names, (two for _, two in kinds), strict=True), *RIGHT_PAYLOAD])
    fields = []
    for name, form in zip(names, forms, strict=True):
        side = right if how == "right" else left
        fields.append(pa.field(name, form.compared if how == "full" else side.field(name).type))
    columns = [
        Column(None if how == "right" else name, name if how in ("right", "full") else None) for name in names
    ]
    columns += [Column(name, None) for name, _ in LEFT_PAYLOAD]
    fields += [left.field(name) for name, _ in LEFT_PAYLOAD]
    if how not in ("semi", "anti"):
        columns += [Column(None, name) for name, _ in RIGHT_PAYLOAD]
        fields += [right.field(name) for name, _ in RIGHT_PAYLOAD]
    schema = pa.schema(fields)
    plan = JoinPlan(
        how,
        MatchKeys(names, forms),
        MatchKeys(names, forms),
        tuple(columns),
        left,
        right,
        schema,
    )
    return JoinStage(Declared("a join", schema), plan)


def batches(rows: Sequence[Row], schema: pa.Schema, size: int) -> Iterator[pa.RecordBatch]:
    for at in range(0, max(1, len(rows)), size):
        columns = list(zip(*rows[at : at + size], strict=True)) or [()] * len(schema)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)],
            schema=schema,
        )


def joined(
    of: JoinStage, left: Sequence[Row], right: Sequence[Row], *, budget_bytes: int = 1 << 24, size: int = 3
) -> list[Row]:
    both = Both(batches(left, of.plan.left_schema, size), batches(right, of.plan.right_schema, size))
    found = list(run([of], both, Pass(memory=TaskMemory(budget_bytes))))
    for batch in found:
        assert batch.schema.equals(of.declared.schema, check_metadata=True)
        assert batch.num_rows
        batch.validate(full=True)
    return [tuple(row.values()) for batch in found for row in batch.to_pylist(maps_as_pydicts=None)]


def equal(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return False
    return bool(one == two or (one != one and two != two))  # noqa: PLR0124 - NaN


def model(how: How, left: Sequence[Row], right: Sequence[Row], keys: int) -> list[Row]:
    """The join by a nested loop."""
    found: list[Row] = []
    matched: set[int] = set()
    for row in left:
        hits = [
            number
            for number, other in enumerate(right)
            if all(equal(one, two) for one, two in zip(row[:keys], other[:keys], strict=True))
        ]
        matched.update(hits)
        if how in ("semi", "anti"):
            found += [row] * (bool(hits) == (how == "semi"))
            continue
        found += [
            (*(right[hit] if how == "right" else row)[:keys], *row[keys:], *right[hit][keys:]) for hit in hits
        ]
        if not hits and how in ("left", "full"):
            found.append((*row, *[None] * len(RIGHT_PAYLOAD)))
    if how in ("right", "full"):
        found += [
            (*row[:keys], *[None] * len(LEFT_PAYLOAD), *row[keys:])
            for number, row in enumerate(right)
            if number not in matched
        ]
    return found


def counted(rows: Sequence[Row]) -> Counter[str]:
    """Rows as a bag. A key that is equal on both sides may be shown by either: 0.0 or -0.0, any NaN."""
    return Counter(repr(tuple(_shown(value) for value in row)) for row in rows)


def _shown(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def sides(*values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[list[Row], list[Row]]]:
    def side(payload: list[Row]) -> st.SearchStrategy[list[Row]]:
        rows = st.tuples(*values, st.sampled_from(payload)).map(lambda row: (*row[:-1], *row[-1]))
        return st.lists(rows, max_size=20)

    return st.tuples(side(LEFT_VALUES), side(RIGHT_VALUES))


INTEGERS = st.one_of(st.none(), st.integers(-2, 2))
FLOATS = st.sampled_from([None, 0.0, -0.0, 1.5, math.inf, math.nan, NAN, -NAN])
DECIMALS = st.sampled_from([None, Decimal("0.0"), Decimal("1.5"), Decimal("-1.5")])
TEXTS = st.sampled_from([None, "", "a", "b", "a longer key than the others"])
KINDS = {
    "integers": ([(pa.int32(), pa.int32())], (INTEGERS,)),
    "integers of two widths": ([(pa.int16(), pa.int64())], (INTEGERS,)),
    "floats": ([(pa.float64(), pa.float64())], (FLOATS,)),
    "texts": ([(pa.string(), pa.string())], (TEXTS,)),
    "decimals": ([(pa.decimal128(4, 1), pa.decimal128(4, 1))], (DECIMALS,)),
    "several": ([(pa.int64(), pa.int32()), (pa.string(), pa.string())], (INTEGERS, TEXTS)),
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=[] if each in ("floats", "several") else pytest.mark.long) for each in KINDS],
)
def test_a_join_is_a_nested_loop_within_any_budget(kind: str) -> None:
    kinds, values = KINDS[kind]

    @given(
        sides(*values),
        st.sampled_from(HOWS),
        st.sampled_from([600, 4000, 1 << 24]),
        st.sampled_from([1, 3, 50]),
    )
    def check(rows: tuple[list[Row], list[Row]], how: How, budget_bytes: int, size: int) -> None:
        found = joined(stage(how, kinds), *rows, budget_bytes=budget_bytes, size=size)
        assert counted(found) == counted(model(how, *rows, len(kinds)))

    check()


@pytest.mark.parametrize("how", HOWS)
def test_a_key_beyond_the_budget_is_joined_block_by_block(how: How) -> None:
    hot: list[Row] = [(7, [number], "text") for number in range(200)]
    left = [*hot, (1, None, "left only"), (None, None, "null")]
    right: list[Row] = [
        *((7, {"x": number, "y": "y"}, []) for number in range(100)),
        (2, None, None),
        (None, None, None),
    ]
    of = stage(how, [(pa.int64(), pa.int64())])
    memory = TaskMemory(budget_bytes=8 << 10)
    both = Both(batches(left, of.plan.left_schema, 10), batches(right, of.plan.right_schema, 10))
    found = list(run([of], both, Pass(memory=memory)))
    assert memory.spilled_bytes
    keys = Counter(value for batch in found for value in batch.column("k0").to_pylist())
    pairs = {"semi": 200, "anti": 0}.get(how, 200 * 100)
    one = {"left": 1, "anti": 1, "full": 1}.get(how, 0)
    other = {"right": 1, "full": 1}.get(how, 0)
    assert keys == Counter({7: pairs, 1: one, 2: other, None: one + other}) - Counter()
    if how in ("inner", "left", "right", "full"):
        numbers = {
            (tags[0], point["x"])
            for batch in found
            for tags, point in zip(
                batch.column("tags").to_pylist(), batch.column("point").to_pylist(), strict=True
            )
            if tags and point
        }
        assert len(numbers) == pairs, "each pair once"


@pytest.mark.parametrize("text", ["a", "a" * 1000])
def test_a_result_batch_is_bounded_where_a_key_has_many_rows_on_both_sides(text: str) -> None:
    of = stage("inner", [(pa.int64(), pa.int64())])
    left: list[Row] = [(7, None, text)] * 1000
    right: list[Row] = [(7, None, None)] * 1000
    rows = 0
    for batch in run(
        [of], Both(batches(left, of.plan.left_schema, 500), batches(right, of.plan.right_schema, 500))
    ):
        assert batch.num_rows <= PIECE_ROWS
        assert batch.nbytes <= PIECE_BYTES + 100 * len(text)
        rows += batch.num_rows
    assert rows == 1000 * 1000


def test_a_key_that_a_stage_has_changed_is_an_error_that_names_the_exchange() -> None:
    of = stage("inner", [(pa.int64(), pa.int64())])
    placed = PlacedKeys("repartition(4, 'k0')", pa.schema([("k0", pa.int64())]), 4)
    of = dataclasses.replace(of, right_placed=placed)
    right = list(batches([(number, None, None) for number in range(50)], of.plan.right_schema, 50))
    with pytest.raises(
        InvalidRequest, match=r"a join: .* rows may be in parts.*repartition\(4, 'k0'\) places it"
    ):
        list(
            run(
                [of], Both(batches([(1, None, None)], of.plan.left_schema, 1), iter(right)), Pass(partition=1)
            )
        )


@pytest.mark.parametrize(("how", "expected"), [
    ("inner", {"left", "right"}),
    ("left", {"left"}),
    ("right", {"right"}),
    ("full", set()),
    ("semi", {"left"}),
    ("anti", {"left"}),
])  # fmt: skip
def test_a_side_may_be_cut_into_parts_if_its_rows_are_alone_in_what_they_give(
    how: How, expected: set[str]
) -> None:
    of = stage(how, [(pa.int64(), pa.int64())])
    assert of.divisible_sides == expected
    left: list[Row] = [(number % 7 or None, None, str(number)) for number in range(30)]
    right: list[Row] = [(number % 5 or None, {"x": number, "y": None}, None) for number in range(30)]
    whole = counted(joined(of, left, right))
    for side in expected:
        parts = [
            joined(of, *((rows[at::2], right) if side == "left" else (left, rows[at::2])))
            for rows in [left if side == "left" else right]
            for at in (0, 1)
        ]
        assert counted([row for part in parts for row in part]) == whole


@pytest.mark.parametrize("how", ["inner", "semi"])
def test_a_side_without_rows_ends_a_join_that_needs_them(how: How) -> None:
    of = stage(how, [(pa.int64(), pa.int64())])

    def left() -> Iterator[pa.RecordBatch]:
        yield from batches([(1, None, None)] * 3, of.plan.left_schema, 3)
        pytest.fail("read on")

    assert list(run([of], Both(left(), batches([], of.plan.right_schema, 3)))) == []


@pytest.mark.parametrize("how", HOWS)
def test_a_side_may_have_nothing_but_its_keys(how: How) -> None:
    of = stage(how, [(pa.int64(), pa.int64())])
    keys = pa.schema([("k0", pa.int64())])
    plan = dataclasses.replace(
        of.plan, columns=of.plan.columns[:1], left_schema=keys, right_schema=keys, schema=keys
    )
    of = JoinStage(Declared("a join", keys), plan)
    left: list[Row] = [(1,), (2,), (2,), (None,)]
    right: list[Row] = [(2,), (2,), (3,), (None,)]
    expected: dict[str, list[int | None]] = {
        "inner": [2] * 4,
        "left": [1, 2, 2, 2, 2, None],
        "right": [2, 2, 2, 2, 3, None],
        "full": [1, 2, 2, 2, 2, 3, None, None],
        "semi": [2, 2],
        "anti": [1, None],
    }
    for more in (0, 20):  # so that either side is held
        found = joined(of, left, [*right, *[(9,)] * more])
        alone = [9] * more if how in ("right", "full") else []
        assert Counter(found) == Counter((key,) for key in [*expected[how], *alone])
