"""A run in a file says what the same run in memory says; a damaged file says nothing."""

from __future__ import annotations

import gc
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.kinds.changelog.runs import (
    MAX_HASH,
    Counts,
    Damaged,
    Layout,
    MemoryRun,
    RunFile,
    Updates,
    run_files,
)
from flight_server.kinds.changelog.runs.run import of_block, to_block
from flight_server.memory import MemoryPool
from flight_server.records import DiskTrouble
from flight_server.storage.file_header import read_header
from tests.support.run_rows import columns, latest, listed, memory_run, run_folder, updates_of

LAYOUT = latest()
POOL = MemoryPool(None)

each_key = st.tuples(st.sampled_from([0, 1, 7, 2**63, MAX_HASH]), st.integers(1, 5), st.sampled_from([-1, 1]))


def with_hashes(keys: list[tuple[int, int, int]]) -> Updates:
    """Updates with these hashes, versions and diffs; each hash is a key."""
    keys = sorted(keys)
    hashes = np.array([hash_ for hash_, _, _ in keys], np.uint64)
    versions, diffs = (np.array([each[place] for each in keys], np.int64) for place in (1, 2))
    none = pa.nulls(len(keys), pa.list_(pa.int8()))
    rows = [pa.array([str(hash_) for hash_ in hashes], pa.string()), pa.array(versions), none]
    return Updates(LAYOUT, pa.RecordBatch.from_arrays(rows, schema=LAYOUT.schema), hashes, versions, diffs)


def written(directory: Path, updates: Updates) -> RunFile:
    file = RunFile.make(run_folder(directory, POOL), updates.layout)
    file.add(updates.slice(0, len(updates) // 3))
    file.add(updates.slice(len(updates) // 3, len(updates)))
    return file.finish()


def reopened(path: Path, of: RunFile, version: int | None = None) -> RunFile:
    blocks = json.loads(json.dumps(of.blocks))
    return RunFile.opened(run_folder(path.parent, POOL), LAYOUT, path.name, version, blocks)


@given(st.lists(each_key, max_size=20), st.sampled_from([1, 3, 100]), st.data())
def test_a_file_says_what_memory_says(
    keys: list[tuple[int, int, int]], rows: int, data: st.DataObject
) -> None:
    updates = with_hashes(keys)
    memory = memory_run(updates)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(run_files, "BLOCK_ROWS", rows)
        patch.setattr(run_files, "RECOUNT_SECONDS", 0.0)
        check(written(Path(directory), updates), memory, data)
        assert not list(Path(directory).iterdir()), "a file without references is deleted"


def check(file: RunFile, memory: MemoryRun, data: st.DataObject) -> None:
    hashes = st.sampled_from([0, 1, 2, 7, 2**63, MAX_HASH - 1, MAX_HASH])
    low, high = sorted((data.draw(hashes), data.draw(hashes)))
    after, upto = sorted((data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))))
    some = np.array(sorted(data.draw(st.sets(hashes))), np.uint64)
    for run in (file, memory):
        assert (run.rows, run.retractions) == (len(memory.updates), memory.updates.retractions)
        assert run.below(low)[0] == sum(hash_ < low for hash_ in memory.updates.hashes.tolist())
        assert run.changed(after, upto).tolist() == [
            hash_
            for hash_, version in zip(memory.updates.hashes.tolist(), memory.updates.versions, strict=True)
            if after < version <= upto
        ]
    assert listed(file.between(low, high)) == listed(memory.between(low, high))
    count = data.draw(st.integers(0, len(some)))
    expected = [
        each
        for hash_, each in zip(memory.updates.hashes.tolist(), listed(memory.updates), strict=True)
        if hash_ in some[:count].tolist()
    ]
    for run in (file, memory):
        hits = run.hits(some)
        assert listed(Updates.in_order(memory.layout, list(hits.parts(count)))) == expected
        assert hits.counts()[:count].sum() == len(expected)
        assert (hits.sizes_bytes() > 0).tolist() == (hits.counts() > 0).tolist()
    assert file.ends() == memory.ends()
    lows = np.unique(np.append(some, np.uint64(0)))
    for since, version in ((0, 9), (after, upto), (9, 9)):
        sinces = np.full(len(lows), since)
        question = Counts(lows, sinces, version)
        in_memory, in_file = memory.counts(question), file.counts(question)
        for part, (low_, high_) in enumerate(
            zip(lows.tolist(), [*lows[1:].tolist(), MAX_HASH + 1], strict=True)
        ):
            inside = memory.between(low_, high_ - 1)
            old = (inside.versions > since) & (inside.versions <= version)
            for counts in (in_memory, in_file):
                assert counts.alive[part] == np.count_nonzero(inside.versions > since)
                assert counts.old[part] == np.count_nonzero(old)
                assert counts.retracting[part] == np.count_nonzero(old & (inside.diffs < 0))
    assert listed(file.between(0, MAX_HASH)) == listed(memory.updates)


def test_a_file_that_was_just_counted_gives_that_answer_and_says_when_it_counts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, with_hashes([(1, 1, 1), (5, 2, 1), (7, 3, 1)]))
    lows, since = np.zeros(1, np.uint64), np.zeros(1, np.int64)
    first, again, later = (Counts(lows, since, upto) for upto in (1, 2, 9))
    monkeypatch.setattr(run_files, "RECOUNT_SECONDS", 1000.0)
    assert (file.counts(first).old.tolist(), file.counts(first).recount_at) == ([1], None)
    stale = file.counts(again)
    assert stale.old.tolist() == [1]
    assert stale.recount_at is not None
    dead = Counts(lows, since + 2, 9)
    assert (file.counts(dead).alive.tolist(), file.counts(dead).recount_at) == ([1], None)
    monkeypatch.setattr(run_files, "RECOUNT_SECONDS", 0.0)
    assert file.counts(later).old.tolist() == [3]


def test_a_file_of_a_large_put_has_one_version(tmp_path: Path) -> None:
    put = written(tmp_path, with_hashes([(1, 0, 1), (5, 0, -1)]))
    file = reopened(put.path, put, version=0)
    assert file.between(0, MAX_HASH).versions.tolist() == [0, 0], "it is read before its commit, too"
    file.commit(7)
    assert (file.first_version, file.last_version) == (7, 7)
    assert file.between(0, MAX_HASH).versions.tolist() == [7, 7]
    assert (file.changed(6, 7).tolist(), file.changed(7, 9).tolist()) == ([1, 5], [])


def test_updates_of_a_file_that_was_deleted_can_be_read_on(tmp_path: Path) -> None:
    updates = with_hashes([(1, 1, 1), (5, 2, -1)])
    file = written(tmp_path, updates)
    parts = file.between(0, MAX_HASH)
    del file
    assert list(tmp_path.iterdir()) == []
    assert listed(parts) == listed(updates)


def test_a_file_that_is_kept_stays_and_says_whose_it_is(tmp_path: Path) -> None:
    gc.collect()
    updates = with_hashes([(1, 1, 1), (5, 2, -1)])
    file = written(tmp_path, updates)
    file.keep = True
    path, size_bytes = file.path, file.size_bytes
    assert POOL.used_bytes == size_bytes == path.stat().st_size
    again = reopened(path, file)
    del file
    header = read_header(path)
    assert header is not None
    assert (header.dataset, header.kind) == ("d", "changelog")
    assert (listed(again.between(0, MAX_HASH)), POOL.used_bytes) == (listed(updates), size_bytes)
    again.keep = False
    del again
    assert (list(tmp_path.iterdir()), POOL.used_bytes) == ([], 0)


@pytest.mark.parametrize("name", columns())
def test_a_block_has_rows_of_any_type(name: str) -> None:
    column = columns()[name]
    schema = pa.schema([pa.field("v", column.type, metadata={"a": "b"})], metadata={"c": "d"})
    count = len(column)
    rows = pa.RecordBatch.from_arrays([pa.concat_arrays([column, column]).slice(1, count)], schema=schema)
    updates = Updates.of(Layout(schema, None), rows, np.arange(count), np.ones(count, np.int64))
    for part in (updates, updates.slice(1, count), updates.slice(0, 0)):
        again = of_block(updates.layout, to_block(part))
        again.rows.validate(full=True)
        assert again.rows.schema.equals(schema, check_metadata=True)
        assert repr(again.rows.to_pydict()) == repr(part.rows.to_pydict())
        assert again.versions.tolist() == part.versions.tolist()


def test_a_file_whose_bytes_changed_is_damaged(tmp_path: Path) -> None:
    updates = with_hashes([(n, n, 1) for n in range(4)])
    file = written(tmp_path, updates)
    whole = file.path.read_bytes()
    changed = tmp_path / f"{'0' * 16}-{'1' * 16}.run"
    for place in range(0, len(whole), 7):
        changed.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            rows = listed(reopened(changed, file).between(0, MAX_HASH))
        except Damaged:
            continue
        assert rows == listed(updates), "only padding and the header are not covered by a checksum"
    for length in (0, 5, len(whole) - 1):
        changed.write_bytes(whole[:length])
        with pytest.raises(Damaged):
            reopened(changed, file)


def test_a_writer_whose_pool_is_full_leaves_nothing(tmp_path: Path) -> None:
    pool = MemoryPool(256)
    file = RunFile.make(run_folder(tmp_path, pool), LAYOUT)
    with pytest.raises(DiskTrouble):
        file.add(updates_of(LAYOUT, [(("a", 1, None), 1, 1)]))
    assert len(list(tmp_path.iterdir())) == 1
    del file
    assert (list(tmp_path.iterdir()), pool.used_bytes) == ([], 0)
