"""Groups are Spark's: nulls, NaNs and signed zeros agree; order is that of arrival."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.errors import InvalidRequest
from spark_client.grouping import check_groupable, groups

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]


def split(table: pa.Table, *keys: str, window_bytes: int = 1 << 20) -> list[tuple[Any, list[int]]]:
    return [
        (tuple(key.as_py() for key in found), rows.column("row").to_pylist())
        for found, rows in groups(table, keys, window_bytes)
    ]


def test_groups_come_in_order_of_first_appearance_with_their_rows_in_order() -> None:
    table = pa.table({"k": ["b", "a", "b", "c", "a"], "row": range(5)})
    assert split(table, "k") == [(("b",), [0, 2]), (("a",), [1, 4]), (("c",), [3])]


def test_nulls_are_one_group() -> None:
    table = pa.table({"k": pa.array([None, 1, None], pa.int64()), "row": range(3)})
    assert split(table, "k") == [((None,), [0, 2]), ((1,), [1])]


def test_all_nans_are_one_group_and_so_are_the_zeros() -> None:
    table = pa.table({"k": [float("nan"), 0.0, OTHER_NAN, -0.0], "row": range(4)})
    assert [rows for _, rows in split(table, "k")] == [[0, 2], [1, 3]]


def test_a_null_struct_differs_from_a_struct_of_nulls() -> None:
    type_ = pa.struct([("x", pa.int64()), ("y", pa.string())])
    keys = pa.array([None, {"x": None, "y": None}, {"x": 1, "y": "a"}, None, {"x": 1, "y": "a"}], type_)
    assert [rows for _, rows in split(pa.table({"k": keys, "row": range(5)}), "k")] == [[0, 3], [1], [2, 4]]


def test_no_rows_make_no_groups() -> None:
    assert split(pa.table({"k": pa.array([], pa.int64()), "row": pa.array([], pa.int64())}), "k") == []


@pytest.mark.parametrize("type_", [pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64())])
def test_lists_and_maps_are_refused_at_any_depth(type_: Any) -> None:
    for nested in (type_, pa.struct([("inner", type_)])):
        with pytest.raises(InvalidRequest, match="cannot group by 'k'"):
            check_groupable(pa.schema([("k", nested)]), ["k"], "stage 1")
    check_groupable(pa.schema([("k", pa.struct([("x", pa.int64())]))]), ["k"], "stage 1")


@given(
    st.lists(
        st.lists(
            st.tuples(st.one_of(st.none(), st.integers(-2, 2)), st.sampled_from(["", "a", "b", None])),
            max_size=12,
        ),
        max_size=6,
    ),
    st.sampled_from([1, 64, 1 << 20]),
)
def test_groups_equal_a_dictionary_of_lists_for_any_chunks_and_windows(
    chunks: list[list[tuple[int | None, str | None]]], window_bytes: int
) -> None:
    schema = pa.schema([("a", pa.int16()), ("b", pa.string()), ("row", pa.int64())])
    expected: dict[tuple[int | None, str | None], list[int]] = {}
    batches, row = [], 0
    for chunk in chunks:
        for key in chunk:
            expected.setdefault(key, []).append(row)
            row += 1
        columns = [[key[0] for key in chunk], [key[1] for key in chunk], list(range(row - len(chunk), row))]
        batches.append(
            pa.RecordBatch.from_arrays(
                [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
                schema=schema,
            )
        )
    table = pa.Table.from_batches(batches, schema)
    assert split(table, "a", "b", window_bytes=window_bytes) == list(expected.items())
