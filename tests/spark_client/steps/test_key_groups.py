"""Groups are Spark's: nulls, NaNs and signed zeros are equal; groups are in order of arrival."""

from __future__ import annotations

import struct
from typing import Any
from unittest import mock

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_client.steps import GroupedSide, key_groups
from spark_client.steps.key_groups import groups

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]


def side(schema: pa.Schema, *keys: str) -> GroupedSide:
    return GroupedSide(keys, tuple(schema.field(key).type for key in keys), schema, None)


def limited(size_bytes: int) -> Any:
    """In the block groups are copied within so many bytes."""
    return mock.patch.multiple(
        key_groups, BLOCK_BYTES=size_bytes, WINDOW_BYTES=size_bytes, CHUNK_BYTES=size_bytes
    )


def split(table: pa.Table, *keys: str, window_bytes: int = 1 << 20) -> list[tuple[Any, list[int]]]:
    with limited(window_bytes):
        return [
            (tuple(key.as_py() for key in found), rows.column("row").to_pylist())
            for found, (rows,) in groups([table.to_batches()], [side(table.schema, *keys)])
        ]


def test_all_nans_are_one_group_and_so_are_the_zeros() -> None:
    table = pa.table({"k": [float("nan"), 0.0, OTHER_NAN, -0.0], "row": range(4)})
    assert [rows for _, rows in split(table, "k")] == [[0, 2], [1, 3]]


def test_a_null_struct_differs_from_a_struct_of_nulls() -> None:
    type_ = pa.struct([("x", pa.int64()), ("y", pa.string())])
    keys = pa.array([None, {"x": None, "y": None}, {"x": 1, "y": "a"}, None, {"x": 1, "y": "a"}], type_)
    assert [rows for _, rows in split(pa.table({"k": keys, "row": range(5)}), "k")] == [[0, 3], [1], [2, 4]]


def test_lists_are_equal_element_by_element_and_a_null_only_to_a_null() -> None:
    type_ = pa.list_(pa.float64())
    nan = float("nan")
    keys = [None, [0.0, nan], [-0.0, OTHER_NAN], [nan, 0.0], [None, 1.0], None, [1.0, None], [None, 1.0]]
    table = pa.table({"k": pa.array(keys, type_), "row": range(8)})
    expected = [[0, 5], [1, 2], [3], [4, 7], [6]]
    for chunks in (table, pa.concat_tables([table.slice(0, 3), table.slice(3, 2), table.slice(5)])):
        assert [rows for _, rows in split(chunks, "k")] == expected
    assert [rows for _, rows in split(table.slice(2, 5), "k")] == [[2], [3], [4], [5], [6]]


NESTED = pa.list_(pa.struct([("x", pa.list_(pa.string())), ("y", pa.bool_())]))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b"]))
ELEMENTS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"x": st.one_of(st.none(), st.lists(TEXTS, max_size=2)), "y": st.none() | st.booleans()}
    ),
)


@given(st.lists(st.lists(st.one_of(st.none(), st.lists(ELEMENTS, max_size=2)), max_size=8), max_size=4))
def test_nested_lists_and_structs_are_grouped_by_their_values(chunks: list[list[Any]]) -> None:
    expected: dict[str, list[int]] = {}
    for row, key in enumerate(key for chunk in chunks for key in chunk):
        expected.setdefault(repr(pa.scalar(key, NESTED).as_py()), []).append(row)
    schema = pa.schema([("k", NESTED), ("row", pa.int64())])
    batches, row = [], 0
    for chunk in chunks:
        columns = [pa.array(chunk, NESTED), pa.array(range(row, row + len(chunk)), pa.int64())]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        row += len(chunk)
    found = split(pa.Table.from_batches(batches, schema), "k")
    assert [(repr(key), rows) for (key,), rows in found] == list(expected.items())


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


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.text("ab", max_size=9)), max_size=9), max_size=6))
def test_a_large_group_comes_in_chunks_of_at_most_a_window(rows: list[list[tuple[int, str]]]) -> None:
    """So text never has to be put together beyond the 2 GiB that 32-bit offsets can count."""
    window_bytes = 40
    schema = pa.schema([("k", pa.int64()), ("s", pa.string())])
    batches = [
        pa.record_batch(
            [pa.array([row[n] for row in some], schema.field(n).type) for n in (0, 1)], schema=schema
        )
        for some in rows
    ]
    with limited(window_bytes):
        found = list(groups([batches], [side(schema, "k")]))
    for (key,), (group,) in found:
        group.validate(full=True)
        assert group.to_pylist() == [
            {"k": row[0], "s": row[1]} for some in rows for row in some if row[0] == key.as_py()
        ]
        for chunk in group.to_batches():
            # One more offset than rows.
            assert chunk.num_rows == 1 or chunk.nbytes <= window_bytes + 4


def test_small_batches_are_put_together_and_large_ones_left_in_one_piece() -> None:
    """A hundred thousand frames of one row must not be a hundred thousand pieces to look through."""
    batch = pa.record_batch({"k": pa.array([1]), "s": pa.array(["x" * 100])})
    ((_, (group,)),) = groups([[batch] * 1000], [side(batch.schema, "k")])
    assert group.column("s").num_chunks == 1
    assert group.num_rows == 1000
