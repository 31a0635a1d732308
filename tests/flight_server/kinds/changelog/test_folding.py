"""Snapshots, deltas and compaction of sorted updates against counters of rows; also when keys share a hash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flight_server.kinds.changelog.folding import compacted, copies
from flight_server.kinds.changelog.folding import shown as shown_by
from flight_server.kinds.changelog.rules import Rule, make_rule
from flight_server.kinds.changelog.runs import DELETE, Layout, Updates
from flight_server.protocol import KeepRule
from tests.support import keep_model
from tests.support.examples import examples
from tests.support.run_rows import LATEST, SCHEMA, Row, fewer_bits, latest, listed, updates_of

SPEC = KeepRule.parse(LATEST)
RULE = make_rule(SPEC, SCHEMA)
NO_HASHES = np.zeros(0, np.uint64)

Update = tuple[Row, int, int]

each_row = st.tuples(
    st.sampled_from(["a", "b", "c", None]), st.sampled_from([None, 1, 2]), st.sampled_from([None, (), (1,)])
)
each_delete = st.sampled_from(["a", "b", "c", None]).map(lambda key: (key, None, None))
each_update = st.tuples(each_row, st.integers(1, 4), st.sampled_from([-1, 1, 1, 2])) | st.tuples(
    each_delete, st.integers(1, 4), st.just(DELETE)
)
many = st.lists(each_update, max_size=12)


@pytest.fixture(params=["64 bits", "1 bit", "none"])
def _hash_bits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer_bits(monkeypatch, {"64 bits": 2**64 - 1, "1 bit": 1, "none": 0}[request.param])


collisions = pytest.mark.usefixtures("_hash_bits")


def shown(updates: list[Update], version: int) -> Counter[Row]:
    counts: Counter[Row] = Counter()
    for row, at, diff in updates:
        if diff != DELETE and deleted_up_to(updates, row, version) <= at <= version:
            counts[row] += diff
    return keep_model.kept(SPEC, {row: max(count, 0) for row, count in counts.items()}, SCHEMA)


def deleted_up_to(updates: list[Update], row: Row, version: int) -> int:
    """What is older is deleted at a version."""
    deletes = [at for (key, *_), at, diff in updates if diff == DELETE and key == row[0] and at <= version]
    return max(deletes, default=0)


def batches(updates: Updates, version: int, rule: Rule, max_rows: int) -> Iterator[pa.RecordBatch]:
    start, left = 0, True
    while left:
        batch, left = copies(shown_by(updates, None, version, rule), start, max_rows)
        start += batch.num_rows
        yield batch


def read(updates: Updates, version: int) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for batch in batches(updates, version, RULE, 2):
        zeros = np.zeros(batch.num_rows, np.int64)
        found.update(row for row, _, _ in listed(Updates(updates.layout, batch, NO_HASHES, zeros, zeros)))
    return found


def changes(updates: Updates, after: int, upto: int) -> dict[Row, int]:
    kept = shown_by(updates, after, upto, RULE)
    zeros = np.zeros(len(kept.counts), np.int64)
    rows = listed(Updates(updates.layout, kept.rows, NO_HASHES, zeros, kept.counts))
    assert len({row for row, _, _ in rows}) == len(rows)
    return {row: diff for row, _, diff in rows}


@collisions
@settings(max_examples=examples(0.4))
@given(many)
def test_what_is_read_is_what_the_model_says(given_updates: list[Update]) -> None:
    updates = updates_of(latest(), given_updates)
    for version in range(5):
        now = shown(given_updates, version)
        assert read(updates, version) == now
        before = shown(given_updates, 1)
        if version >= 1:
            wanted = {row: now[row] - before[row] for row in now | before if now[row] != before[row]}
            assert changes(updates, 1, version) == wanted


@collisions
@settings(max_examples=examples(0.4))
@given(many, st.integers(0, 4))
@example([(("a", 1, None), 1, 1), (("a", 2, None), 1, 1), (("a", 2, None), 2, -1)], 1)
@example([(("a", 1, None), 1, 1), (("a", None, None), 2, DELETE)], 1)
def test_compaction_changes_nothing_that_can_still_be_asked_for(
    given_updates: list[Update], since: int
) -> None:
    updates = updates_of(latest(), given_updates)
    left = compacted(updates, since, RULE)
    assert len(left) <= len(updates)
    for version in range(since, 5):
        assert read(left, version) == read(updates, version)
        assert changes(left, since, version) == changes(updates, since, version)
    assert all(version > since for _, version, diff in listed(left) if diff == DELETE)
    assert listed(left) == listed(Updates.joined(left.layout, [left.slice(0, 1), left.slice(1, len(left))]))
    again = compacted(left, since, RULE)
    assert Counter(listed(again)) == Counter(listed(left)), "compacting twice changes nothing more"


def test_a_row_that_is_there_a_million_times_comes_in_small_batches() -> None:
    schema = pa.schema([("a", pa.int64())])
    updates = updates_of(
        Layout(schema, None), [((1,), 1, 1_000_000), ((2,), 1, 0), ((3,), 1, -4), ((4,), 1, 2)]
    )
    found = list(batches(updates, 1, make_rule(None, schema), 300_000))
    assert [batch.num_rows for batch in found] == [300_000, 300_000, 300_000, 100_002]
    assert Counter(value for batch in found for value in batch.column(0).to_pylist()) == {1: 1_000_000, 4: 2}


def test_nothing_is_read_of_nothing() -> None:
    empty = Updates.empty(latest())
    assert [batch.num_rows for batch in batches(empty, 1, RULE, 2)] == [0]
    assert changes(empty, 0, 1) == {}
    assert len(compacted(empty, 1, RULE)) == 0
