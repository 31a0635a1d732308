"""Codes order and equal like the values of every type, nested ones included."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from flight_server.keys import codes, falling, is_comparable
from flight_server.keys.value_codes import NULL
from tests.support.run_rows import columns

COLUMNS = columns()
for_each_type = pytest.mark.parametrize("name", COLUMNS)


@for_each_type
def test_codes_ascend_with_the_values_and_a_null_is_the_least(name: str) -> None:
    column = COLUMNS[name]
    assert is_comparable(column.type)
    found = codes(column)
    assert found.dtype == np.int64
    assert found[0] == NULL
    assert (np.diff(found.astype(object)) > 0).all()


@for_each_type
def test_falling_codes_descend_with_the_values_and_a_null_is_the_least(name: str) -> None:
    column = COLUMNS[name]
    found = falling(codes(column))
    assert found[0] == NULL
    assert (np.diff(found[1:].astype(object)) < 0).all()
    assert len(column) == 1 or found[-1] > NULL
    assert (np.diff(falling(codes(column.slice(1))).astype(object)) < 0).all()


@for_each_type
def test_codes_of_a_slice_equal_where_its_rows_do(name: str) -> None:
    column = COLUMNS[name]
    rows = len(column)
    found = codes(pa.concat_arrays([column] * 3).slice(1, 2 * rows - 1))
    assert (found[:-rows] == found[rows:]).all()
    assert len(np.unique(found)) == rows


@for_each_type
def test_an_empty_array_has_no_codes(name: str) -> None:
    for empty in (COLUMNS[name].slice(0, 0), pa.nulls(0, COLUMNS[name].type)):
        assert codes(empty).tolist() == []


def test_a_zero_is_a_zero_and_not_a_number_is_not_a_number_whatever_their_bits_are() -> None:
    bits = np.array([1 << 63, 0, 0x7FF0000000000001, 0xFFF8000000000000], np.uint64)
    for column in (pa.array(bits.view(np.float64)), pa.array([[each] for each in bits.view(np.float64)])):
        zero, other_zero, nan, other_nan = codes(column)
        assert zero == other_zero < nan == other_nan


def test_the_least_integer_is_above_a_null() -> None:
    for least, kind in ((-(2**63), pa.int64()), (0, pa.uint64()), (0, pa.decimal64(3))):
        null, small, large = codes(pa.array([None, least, 7], kind))
        assert null < small < large


def test_what_a_null_list_or_struct_has_below_it_does_not_count() -> None:
    offsets, elements = pa.array([0, 2, 4, 5], pa.int32()), pa.array([1, 2, 3, 4, 5])
    nulls = pa.array([True, True, False])
    for column in (
        pa.ListArray.from_arrays(offsets, elements, mask=nulls),
        pa.FixedSizeListArray.from_arrays(elements.slice(0, 3), 1, mask=nulls),
        pa.StructArray.from_arrays([elements.slice(0, 3)], ["a"], mask=nulls),
    ):
        first, second, valid = codes(column)
        assert first == second == NULL < valid


def test_lists_without_offsets_are_empty() -> None:
    # Some producers write no offsets for an array without rows, as the Arrow format allows.
    inner = pa.Array.from_buffers(
        pa.list_(pa.int8()), 0, [None, pa.py_buffer(b"")], children=[pa.array([], pa.int8())]
    )
    outer = pa.Array.from_buffers(
        pa.list_(inner.type), 2, [None, pa.py_buffer(np.zeros(3, np.int32))], children=[inner]
    )
    first, second = codes(outer)
    assert first == second


def test_nulls_of_the_null_type_are_equal() -> None:
    assert codes(pa.nulls(3)).tolist() == [NULL] * 3


@pytest.mark.parametrize(
    "kind",
    [
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.string_view(),
        pa.list_view(pa.int8()),
        pa.dictionary(pa.int8(), pa.string()),
        pa.run_end_encoded(pa.int16(), pa.int8()),
        pa.list_(pa.struct([("x", pa.string_view())])),
        pa.map_(pa.string(), pa.dictionary(pa.int8(), pa.string())),
    ],
    ids=str,
)
def test_a_type_that_has_no_codes_is_not_comparable(kind: pa.DataType) -> None:
    assert not is_comparable(kind)
