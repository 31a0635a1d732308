"""Slices of views: every hash once, in parts of bounded size, whatever the distribution of the hashes is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.kinds.changelog import views
from flight_server.kinds.changelog.contents import Contents
from flight_server.kinds.changelog.rules import make_rule
from flight_server.kinds.changelog.runs import MAX_HASH, Layout, MemoryRun, Updates
from flight_server.kinds.changelog.views import View, ViewPart, slice_end
from flight_server.protocol import KeepRule
from tests.support.changelog_store import Engine, deltas_of, snapshot_of
from tests.support.examples import examples
from tests.support.run_rows import LATEST, SCHEMA, latest, memory_run, updates_of

LAYOUT = Layout(pa.schema([("a", pa.int8())]), None)

each_hash = st.one_of(st.sampled_from([0, 1, 2, 2**63, MAX_HASH - 1, MAX_HASH]), st.integers(0, MAX_HASH))


def run_of(hashes: list[int] | np.ndarray) -> MemoryRun:
    found = np.sort(np.array(hashes, np.uint64))
    ones = np.ones(len(found), np.int64)
    rows = pa.RecordBatch.from_arrays([pa.array(ones.astype(np.int8))], schema=LAYOUT.schema)
    return memory_run(Updates(LAYOUT, rows, found, ones, ones))


def ranges(runs: list[MemoryRun], wanted: int, low: int = 0) -> Iterator[tuple[int, int]]:
    while low <= MAX_HASH:
        high, _ = slice_end(runs, wanted, low)
        yield low, high
        low = high + 1


@given(
    st.lists(st.lists(each_hash, max_size=30), max_size=3),
    st.integers(1, 5),
    st.sampled_from([0, 2**63, MAX_HASH]),
)
def test_ranges_cover_each_hash_once_with_few_rows_each(
    parts: list[list[int]], wanted: int, start: int
) -> None:
    for first, last in ranges([run_of(part) for part in parts], wanted, start):
        assert first <= last <= MAX_HASH
        inside = [hash_ for part in parts for hash_ in part if first <= hash_ <= last]
        assert len(inside) <= 2 * wanted or len(set(inside)) == 1


@pytest.mark.parametrize("hash_", [0, 12345, MAX_HASH])
def test_a_million_rows_of_one_hash_are_one_range_among_few(hash_: int) -> None:
    runs = [run_of(np.full(1_000_000, hash_, np.uint64)), run_of([0, 2**62, MAX_HASH])]
    assert len(list(ranges(runs, 1000))) <= 3


def test_hashes_in_a_narrow_band_are_cut_evenly() -> None:
    band = run_of(np.arange(100_000, dtype=np.uint64) + np.uint64(2**63))
    assert len(list(ranges([band], 1000))) <= 250


def view_of(runs: list[MemoryRun], layout: Layout, upper: int) -> View:
    rule = make_rule(KeepRule.parse({"rule": "latest", "key": "key", "order_by": "time"}), SCHEMA)
    return View(layout, rule, Contents.empty(layout).committed(runs), upper)


def test_a_view_reads_the_runs_together_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "SLICE_ROWS", 4)
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 4)
    layout = latest()
    runs = [
        memory_run(updates_of(layout, [((f"k{n}", version, None), version, 1) for n in range(50)]))
        for version in (1, 2, 3)
    ]
    view = view_of(runs, layout, 3)
    for version in (1, 2, 3):
        batches = list(snapshot_of(view, version))
        assert len(batches) > 10
        rows = pa.Table.from_batches(batches)
        assert sorted(rows["key"].to_pylist()) == sorted(f"k{n}" for n in range(50))
        assert set(rows["time"].to_pylist()) == {version}
    changes = pa.Table.from_batches(list(deltas_of(view, 1, 3)))
    assert changes.schema == layout.delta_schema
    assert sorted(zip(changes["time"].to_pylist(), changes["_diff"].to_pylist(), strict=True)) == sorted(
        [(1, -1), (3, 1)] * 50
    )
    assert sum(batch.num_rows for batch in deltas_of(view, 3, 3)) == 0
    assert sum(batch.num_rows for batch in snapshot_of(view, 0)) == 0


row_times = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.sampled_from([1, 1, 1, 2])), max_size=6
)


@settings(max_examples=examples(0.5))
@given(
    st.lists(row_times, min_size=1, max_size=5),
    st.lists(st.integers(1, 2), min_size=5, max_size=5),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
)
def test_a_small_step_has_the_changes_of_the_snapshots(
    versions: list[list[tuple[str, int, int]]], spans: list[int], after: int, collide: bool, retracts: bool
) -> None:
    """Whichever neighbouring versions a run has, also if two keys have one hash, or a row is retracted."""
    layout = latest()
    listed = [
        [((key, time, None), number, copies) for key, time, copies in rows]
        for number, rows in enumerate(versions, 1)
    ]
    if retracts and listed[0]:
        listed[-1].append((listed[0][0][0], len(listed), -1))
    runs, first = [], 0
    for span in spans:
        updates = updates_of(layout, [update for rows in listed[first : first + span] for update in rows])
        if collide:
            updates = replace(updates, hashes=np.zeros_like(updates.hashes))
            updates = updates.take(
                np.argsort(updates.rows.column("key").to_numpy(zero_copy_only=False), kind="stable")
            )
        if len(updates):
            runs.append(memory_run(updates))
        first += span
    upper = len(versions)
    view, after = view_of(runs, layout, upper), min(after, upper - 1)
    changes = Counter[tuple[object, ...]]()
    for version, sign in ((after, -1), (upper, 1)):
        for batch in snapshot_of(view, version):
            for shown in batch.to_pylist():
                changes[tuple(shown.values())] += sign
    parts = view.few_deltas(after, upper, 100, 1 << 20), view.part(after, upper, ViewPart())
    for part in parts:
        assert part is not None
        assert not part.left
        assert part.rows is not None
        found = {tuple(row.values())[:-1]: row["_diff"] for row in part.rows.to_pylist()}
        assert found == {row: diff for row, diff in changes.items() if diff}


def test_a_step_is_not_small_if_it_looks_at_many_rows_or_bytes() -> None:
    layout = latest()
    runs = [
        memory_run(updates_of(layout, [((f"k{n}", version, None), version, 1) for n in range(50)]))
        for version in (1, 2)
    ]
    view = view_of(runs, layout, 2)
    small = view.few_deltas(1, 2, 100, 1 << 20)
    assert small is not None
    assert small.rows is not None
    assert small.rows.num_rows == 100
    assert view.few_deltas(1, 2, 99, 1 << 20) is None
    assert view.few_deltas(1, 2, 49, 1 << 20) is None
    assert view.few_deltas(1, 2, 100, 100) is None


def test_a_step_stays_small_after_a_fold_of_a_part_of_a_large_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The greatest rows of a key that was put often, though the run that has them has dead rows, too."""
    engine = Engine(tmp_path, SCHEMA, LATEST, lasting=False)
    engine.commit([(("hot", 1000, None), 1)])
    engine.commit([(("hot", 1000, None), -1)])
    for time in range(2, 8):
        engine.commit([(("hot", 10 * time + number, None), 1) for number in range(10)])
    asserting = [run for run in engine.changelog.contents.recent if not run.retractions]
    engine.publish(engine.begin_rewrite(asserting, to_file=False))
    engine.publish(engine.begin_fold(5, to_file=True))
    engine.commit([(("hot", 80, None), 1), (("cold", 0, None), 1)])
    view = engine.changelog.view()
    assert not view.in_memory
    for part in (view.few_deltas(8, 9, 10, 1 << 20), view.part(8, 9, ViewPart())):
        assert part is not None
        assert part.rows is not None
        changes = {(row["key"], row["time"]): row["_diff"] for row in part.rows.to_pylist()}
        assert changes == {("hot", 79): -1, ("hot", 80): 1, ("cold", 0): 1}
    assert view.in_memory, "the event loop can read it once a thread has decoded the base"
    monkeypatch.setattr(views, "RESIDENT_BYTES", 1)
    assert not view.in_memory
    engine.close()


def test_a_step_that_replaces_a_few_large_rows_among_many_is_not_small() -> None:
    layout = latest()
    large: list[int] = [1] * 100_000
    rows = [((f"k{n}", 1, large if n == 7 else None), 1, 1) for n in range(1000)]
    runs = [memory_run(updates_of(layout, part)) for part in (rows, [(("k7", 2, None), 2, 1)])]
    assert view_of(runs, layout, 2).few_deltas(1, 2, 100, 50_000) is None
    assert view_of(runs, layout, 2).few_deltas(1, 2, 100, 200_000) is not None


def test_slices_of_large_rows_have_fewer_of_them() -> None:
    layout = Layout(pa.schema([("a", pa.binary())]), None)
    small, large = (
        memory_run(updates_of(layout, [((bytes(size),), 1, 1) for _ in range(10)])) for size in (1, 2000)
    )
    assert view_of([small], layout, 1).slice_rows == views.SLICE_ROWS
    assert views.MIN_SLICE_ROWS < view_of([large], layout, 1).slice_rows <= views.SLICE_BYTES // 2000
    assert view_of([], layout, 1).slice_rows == views.SLICE_ROWS
