"""Rows are the same exactly where their codes are, and by their bits where that is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.keys import canonical, codes, same
from tests.support.run_rows import columns

COLUMNS = columns()


@pytest.mark.parametrize("name", COLUMNS)
def test_pairs_are_the_same_where_their_codes_are(name: str) -> None:
    column = COLUMNS[name]
    rows = len(column)
    one, two = (found.ravel() for found in np.meshgrid(np.arange(rows), np.arange(rows)))
    of = codes(column)
    for bits in (False, True):
        found = same(column.take(pa.array(one)), column.take(pa.array(two)), bits=bits)
        assert found.tolist() == (of[one] == of[two]).tolist()
    assert same(column[1:], column[:-1]).tolist() == (of[1:] == of[:-1]).tolist()


def floats(kind: pa.DataType) -> pa.Array:
    bits = np.array([1 << 63, 0, 0x7FF0000000000001, 0xFFF8000000000000], np.uint64)
    wide = pa.Array.from_buffers(pa.float64(), 4, [None, pa.py_buffer(bits)])
    if pa.types.is_float64(kind):
        return wide
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([wide], fields=list(kind))
    return pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), wide)


@pytest.mark.parametrize("kind", [pa.float64(), pa.struct([("x", pa.float64())]), pa.list_(pa.float64())])
def test_zeros_and_nans_are_the_same_but_not_by_their_bits_until_they_are_canonical(
    kind: pa.DataType,
) -> None:
    column = floats(kind)
    one, two = column.take(pa.array([0, 2, 0])), column.take(pa.array([1, 3, 3]))
    assert same(one, two).tolist() == [True, True, False]
    assert not same(one, two, bits=True).any()
    assert same(canonical(one), canonical(two), bits=True).tolist() == [True, True, False]


def test_a_slice_with_nulls_is_canonical() -> None:
    for kind in (pa.float32(), pa.float64(), pa.list_(pa.float32()), pa.struct([("x", pa.float64())])):
        value = 1.5 if pa.types.is_floating(kind) else [1.5, None] if pa.types.is_list(kind) else {"x": 1.5}
        column = pa.array([value, None, value, None, value], kind).slice(1)
        found = canonical(column)
        found.validate(full=True)
        assert found.equals(column)


@pytest.mark.parametrize("kind", [pa.null(), pa.list_(pa.null()), pa.struct([("x", pa.list_(pa.null()))])])
def test_nulls_without_a_type_are_the_same_also_where_there_are_none(kind: pa.DataType) -> None:
    values: dict[str, Any] = {"null": None, "list": [], "struct": {"x": []}}
    value = values[str(kind).partition("<")[0]]
    for rows in ([], [value], [value, None]):
        column = pa.array(rows, kind)
        for bits in (False, True):
            assert same(column, column, bits=bits).tolist() == [True] * len(rows)
