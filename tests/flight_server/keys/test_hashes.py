"""Hashes depend on the key's values alone: not on the array, its slice or its other rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from flight_server.keys import key_hashes, row_hashes
from flight_server.keys.hashes import HEAD_WORDS, TAIL_WORDS
from tests.support.run_rows import columns

COLUMNS = columns()
for_each_type = pytest.mark.parametrize("name", COLUMNS)


def of(column: pa.Array) -> list[int]:
    found: list[int] = key_hashes([column], len(column)).tolist()
    return found


@for_each_type
def test_a_value_has_one_hash_wherever_it_stands(name: str) -> None:
    column = COLUMNS[name]
    found = of(column)
    assert len(set(found)) == len(column), "these few values do not collide"
    again = pa.concat_arrays([column.slice(1), column, column])
    assert of(again) == [*found[1:], *found, *found]
    assert of(again.slice(len(column) - 1, len(column))) == found
    for row in range(len(column)):
        assert of(column.slice(row, 1)) == found[row : row + 1]


@for_each_type
def test_an_empty_array_has_no_hashes(name: str) -> None:
    for empty in (COLUMNS[name].slice(0, 0), pa.nulls(0, COLUMNS[name].type)):
        assert of(empty) == []


def test_hashes_are_the_same_for_ever() -> None:
    # Run files hold them: other numbers here make every changelog unreadable.
    rows = [pa.array(["EUR", None]), pa.array([5, -1]), pa.array([[{"x": 0.5}], None])]
    assert key_hashes(rows, 2).tolist() == [873476848423821932, 4423030366512078373]


def test_the_columns_of_a_key_are_told_apart() -> None:
    one, other = pa.array(["a", "b"]), pa.array(["b", "a"])
    first, second = key_hashes([one, other], 2).tolist()
    assert first != second


def test_zeros_and_nans_have_the_hash_of_their_value() -> None:
    bits = np.array([1 << 63, 0, 0x7FF0000000000001, 0xFFF8000000000000], np.uint64)
    zero, other_zero, nan, other_nan = of(pa.array(bits.view(np.float64)))
    assert zero == other_zero
    assert nan == other_nan


def test_a_long_text_counts_with_its_head_its_tail_and_its_length() -> None:
    head, tail = 8 * HEAD_WORDS, 8 * TAIL_WORDS
    text = "x" * (head + tail + 100)
    changed = [
        text[:place] + "y" + text[place + 1 :] for place in (0, head - 1, len(text) - tail, len(text) - 1)
    ]
    middle = text[:head] + "y" + text[head + 1 :]
    found = of(pa.array([text, *changed, text + "x", middle]))
    assert len(set(found)) == len(found) - 1
    assert found[-1] == found[0], "the middle does not count"


def test_lists_are_told_apart_by_order_and_length() -> None:
    lists = [[], [0], [0, 0], [1, 2], [2, 1], [2], [1], [None]]
    assert len(set(of(pa.array(lists, pa.list_(pa.int8()))))) == len(lists)
    nested = [[[1], [2]], [[1, 2]], [[1, 2], []], [[], [1, 2]], [None, [1, 2]]]
    assert len(set(of(pa.array(nested)))) == len(nested)


def test_without_columns_every_row_has_hash_zero() -> None:
    assert key_hashes([], 3).tolist() == [0, 0, 0]


def test_hashes_of_numbers_in_a_row_are_spread_evenly() -> None:
    tenths = key_hashes([pa.array(range(10_000))], 10_000) // np.uint64(2**64 // 10 + 1)
    assert np.bincount(tenths.astype(np.int64)).min() > 800


def test_all_of_a_long_text_counts_for_the_hashes_of_rows_and_short_ones_have_those_of_keys() -> None:
    longest = 8 * (HEAD_WORDS + TAIL_WORDS)
    texts = ["x" * longest, *("x" * at + "y" + "x" * (2000 - at) for at in range(2001)), "x" * 300_000]
    swapped = ["x" * 256 + "a" * 8 + "b" * 8 + "x" * 500, "x" * 256 + "b" * 8 + "a" * 8 + "x" * 500]
    column = pa.array([*texts, *swapped, None, ""])
    found = row_hashes([column], len(column))
    assert len(set(found.tolist())) == len(column)
    for row in (0, 1, 1000, 2000, 2002, 2003):
        assert row_hashes([column.slice(row, 1)], 1)[0] == found[row]
    assert key_hashes([column], len(column))[[0, -1, -2]].tolist() == found[[0, -1, -2]].tolist()


@for_each_type
def test_a_dictionary_has_the_hashes_of_its_values(name: str) -> None:
    column = COLUMNS[name]
    if pa.types.is_nested(column.type) or isinstance(column, pa.ExtensionArray):
        column = pa.array(["a", "b", None])
    indices = pa.array([1, None, 0, 2, 1], pa.int8())
    encoded = pa.DictionaryArray.from_arrays(indices, column)
    assert of(encoded.slice(1)) == of(column.take(indices).slice(1))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.large_string(), pa.binary()])
def test_a_text_has_one_hash_in_each_layout(kind: pa.DataType) -> None:
    column = pa.array(["", "a", None, "more than twelve bytes"])
    assert of(column.cast(kind).slice(1)) == of(column.slice(1))
