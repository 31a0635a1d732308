"""Codes of rows compare as Spark's values do: a model in Python, for all types; ranges of rows among boundaries."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_client.arrow import SortCodes, SortKey, check_sortable, ranges_of
from tests.support.examples import examples
from tests.support.order_model import ordered, place

SMALL = st.integers(-3, 3)
PAIR = pa.struct([("x", pa.int32()), ("y", pa.string())])
NUMBERS = pa.list_(pa.struct([("x", pa.float64()), ("d", pa.decimal128(30, 2))]))
TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.sampled_from([-128, -1, 0, 127]),
    pa.int16(): st.sampled_from([-(1 << 15), -1, 0, (1 << 15) - 1]),
    pa.int32(): st.sampled_from([-(1 << 31), -1, 0, (1 << 31) - 1]),
    pa.int64(): st.sampled_from([-(1 << 63), -1, 0, (1 << 63) - 1]),
    pa.float32(): st.sampled_from([-math.inf, -0.0, 0.0, 0.5, math.inf, math.nan]),
    pa.float64(): st.sampled_from(
        [-math.inf, -1e300, -5e-324, -0.0, 0.0, 5e-324, math.inf, math.nan, -math.nan]
    ),
    pa.decimal128(12, 2): SMALL.map(lambda n: Decimal(n).scaleb(-2)),
    pa.decimal128(38, 0): st.sampled_from(
        [Decimal(n) for n in (-(10**37), -(1 << 64), -1, 0, 1 << 64, 10**37)]
    ),
    pa.string(): st.sampled_from(["", "a", "a\0", "ab", "b", "é", "\uffff", "😀"]),
    pa.large_string(): st.sampled_from(["", "a", "é"]),
    pa.binary(): st.sampled_from([b"", b"\0", b"\xff", b"\x7f\x80"]),
    pa.date32(): SMALL.map(lambda n: date(1970, 1, 1) + timedelta(n)),
    pa.timestamp("us", "Europe/Berlin"): SMALL.map(
        lambda n: datetime(2024, 3, 31, 1, tzinfo=UTC) + timedelta(hours=n)
    ),
    pa.duration("us"): SMALL.map(timedelta),
    PAIR: st.fixed_dictionaries({"x": st.none() | SMALL, "y": st.none() | st.sampled_from(["", "a"])}),
    pa.struct([("p", PAIR)]): st.fixed_dictionaries(
        {"p": st.none() | st.fixed_dictionaries({"x": SMALL, "y": st.none()})}
    ),
    pa.list_(pa.int64()): st.lists(st.none() | SMALL, max_size=3),
    NUMBERS: st.lists(
        st.none()
        | st.fixed_dictionaries({"x": st.sampled_from([None, 0.0, -0.0, math.nan]), "d": st.none() | SMALL}),
        max_size=2,
    ),
    pa.list_(pa.bool_()): st.lists(st.booleans(), max_size=2),
    pa.list_(pa.null()): st.lists(st.none(), max_size=2),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, SortKey]:
    kind = draw(st.sampled_from(sorted(TYPES, key=str)))
    given_values = draw(st.lists(st.none() | TYPES[kind], min_size=1, max_size=12))
    # A slice: offsets and validity do not begin at 0.
    column = pa.array([given_values[0], *given_values], kind).slice(1)
    return column, SortKey("c", draw(st.booleans()), draw(st.none() | st.booleans()))


@settings(max_examples=examples(0.5))
@given(columns())
def test_codes_are_ordered_as_the_values(given_column: tuple[pa.Array, SortKey]) -> None:
    column, key = given_column
    codes = SortCodes.of_columns([column], [key], len(column))
    expected = ordered(pa.table({"c": column}), [key])
    assert codes.order().tolist() == expected
    in_order = column.take(pa.array(expected))
    again = SortCodes.of_columns([in_order], [key], len(column))
    assert again.ascends()
    assert codes.ascends() == (expected == list(range(len(column))))
    # Batches without nulls have codes that compare with those of batches with some.
    half = len(column) // 2
    parts = [
        SortCodes.of_columns([part], [key], len(part)) for part in (column.slice(0, half), column.slice(half))
    ]
    assert SortCodes.concat(parts).order().tolist() == expected
    places = [again.place(row) for row in range(again.rows)]
    assert places == sorted(places)
    values = [place(value) for value in in_order.to_pylist()]
    assert again.changes().tolist() == [a != b for a, b in pairwise(values)]


@settings(max_examples=examples(0.5))
@given(st.data())
def test_the_range_of_a_row_is_how_many_boundaries_are_not_after_it(data: st.DataObject) -> None:
    kinds = data.draw(
        st.lists(st.sampled_from([pa.int64(), pa.string(), pa.float64(), PAIR]), min_size=1, max_size=3)
    )
    keys = [SortKey(str(number), data.draw(st.booleans())) for number in range(len(kinds))]

    def batch() -> pa.RecordBatch:
        size = data.draw(st.integers(0, 8))
        drawn = [data.draw(st.lists(st.none() | TYPES[kind], min_size=size, max_size=size)) for kind in kinds]
        arrays = [pa.array(each, kind) for each, kind in zip(drawn, kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=[key.column for key in keys])

    rows, boundaries = SortCodes.of(batch(), keys), batch()
    boundaries = boundaries.take(pa.array(SortCodes.of(boundaries, keys).order()))
    bounds = SortCodes.of(boundaries, keys)
    expected = [
        sum(bounds.place(bound) <= rows.place(row) for bound in range(bounds.rows))
        for row in range(rows.rows)
    ]
    assert ranges_of(rows, bounds).tolist() == expected


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_rows_before_a_place_are_counted(kind: pa.DataType, *, descending: bool) -> None:
    column = pa.array(sorted(["1", "3", "3", "5"], reverse=descending)).cast(kind)
    codes = SortCodes.of_columns([column], [SortKey("c", descending)], 4)
    counts = [(codes.count_before(codes.place(1), equal=equal)) for equal in (False, True)]
    assert counts == [1, 3]


def test_signalling_nans_are_ordered_without_a_warning() -> None:
    column = pa.array(
        np.array([0x7FF0000000000001, 0xFFF8000000000000, 0x7FF0000000000000], np.uint64).view(np.float64)
    )
    codes = SortCodes.of_columns([column], [SortKey("c")], 3)
    assert codes.order().tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (pa.map_(pa.string(), pa.int32()), "sorts by no map"),
        (pa.struct([("m", pa.map_(pa.string(), pa.int32()))]), r"'c\.m' contains map"),
        (pa.list_(pa.string()), "an element, its length or its text"),
        (pa.list_(pa.list_(pa.int32())), "an element, its length or its text"),
    ],
)
def test_a_type_without_an_order_is_refused_with_what_helps(kind: pa.DataType, what: str) -> None:
    with pytest.raises(TypeError, match=what):
        check_sortable(kind, "c")
