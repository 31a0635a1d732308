"""Updates are sorted, tell rows and keys apart, and join; also when different keys share a hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.kinds.changelog.runs import Layout, Updates
from flight_server.kinds.changelog.runs.updates import ranges
from flight_server.protocol import KeepRule
from tests.support.examples import examples
from tests.support.run_rows import Row, columns, fewer_bits, latest, listed, updates_of

COLUMNS = columns()

each_row = st.tuples(
    st.sampled_from(["a", "b", "c", None]),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, (), (1,), (1, 2)]),
)
each_update = st.tuples(each_row, st.integers(1, 3), st.sampled_from([-1, 1, 2]))


def rank(row: Row) -> tuple[object, ...]:
    """By key, order and all columns; a null is the least."""
    return tuple((value is not None, value) for value in row)


@pytest.fixture(params=["64 bits", "1 bit", "none"])
def _hash_bits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer_bits(monkeypatch, {"64 bits": 2**64 - 1, "1 bit": 1, "none": 0}[request.param])


@pytest.mark.usefixtures("_hash_bits")
@settings(max_examples=examples(0.4))
@given(st.lists(st.lists(each_update, max_size=8), min_size=1, max_size=4))
def test_joined_parts_are_sorted_by_hash_key_order_columns_and_version(
    parts: list[list[tuple[Row, int, int]]],
) -> None:
    joined = Updates.joined(latest(), [updates_of(latest(), part) for part in parts])
    found = listed(joined)
    everything = [each for part in parts for each in part]
    assert sorted(found, key=repr) == sorted(everything, key=repr)
    ordered = [
        (hash_, rank(row), version)
        for hash_, (row, version, _) in zip(joined.hashes.tolist(), found, strict=True)
    ]
    assert ordered == sorted(ordered)
    rows = [row for row, _, _ in found]
    assert joined.row_starts.tolist() == [n for n in range(len(rows)) if n == 0 or rows[n] != rows[n - 1]]
    assert joined.key_starts.tolist() == [
        n for n in range(len(rows)) if n == 0 or rows[n][0] != rows[n - 1][0]
    ]
    keys = [rows[start][0] for start in joined.key_starts]
    assert len(set(keys)) == len(keys), "rows of one key are neighbours"
    for hashes in ([], sorted(set(joined.hashes.tolist()))[:2]):
        part = joined.at(*joined.ends_of(np.array(hashes, np.uint64)))
        assert listed(part) == [
            each for hash_, each in zip(joined.hashes.tolist(), found, strict=True) if hash_ in hashes
        ]


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("keep", [None, KeepRule.parse({"rule": "latest", "key": "k", "order_by": "v"})])
def test_a_column_of_any_type_is_sorted_and_consolidated(name: str, keep: KeepRule | None) -> None:
    column = COLUMNS[name]
    schema = pa.schema([("k", pa.int8()), ("v", column.type)])
    mixed = pa.concat_arrays([column.slice(1), column, column[:1]])
    rows = pa.RecordBatch.from_arrays([pa.array([1] * len(mixed), pa.int8()), mixed], schema=schema)
    updates = Updates.of(
        Layout(schema, keep), rows, np.zeros(len(mixed), np.int64), np.ones(len(mixed), np.int64)
    )
    starts = updates.row_starts
    assert np.diff(starts, append=len(mixed)).tolist() == [2] * len(column)
    assert len(updates.key_starts) == (len(column) if keep is None else 1)
    joined = Updates.joined(updates.layout, [updates, updates.slice(1, 2), Updates.empty(updates.layout)])
    assert len(joined.row_starts) == len(column)
    if keep is not None:  # by the order, the null first
        firsts = updates.rows.column(1).take(pa.array(starts))
        assert repr(firsts.to_pylist()) == repr(column.to_pylist())


def test_updates_that_tell_of_no_row_are_empty() -> None:
    empty = Updates.joined(latest(), [])
    assert (len(empty), empty.size_bytes, empty.retractions, len(empty.row_starts)) == (0, 0, 0, 0)
    assert listed(empty.at(*empty.ends_of(np.array([1], np.uint64)))) == []


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=6))
def test_ranges_follow_each_other(pairs: list[tuple[int, int]]) -> None:
    starts, counts = (np.array([pair[place] for pair in pairs], np.int64) for place in (0, 1))
    assert ranges(starts, counts).tolist() == [start + n for start, count in pairs for n in range(count)]
