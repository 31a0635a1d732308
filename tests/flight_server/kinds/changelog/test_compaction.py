"""Folds and rewrites: what they leave, beside commits that come meanwhile, and of keys of any size."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from flight_server.kinds.changelog import compaction, views, writes
from flight_server.kinds.changelog.compaction import Work
from flight_server.kinds.changelog.runs import MemoryRun, RunFile
from tests.support.changelog_store import Engine
from tests.support.keep_model import SCHEMA, Row

LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
PAIR = {"rule": "pair", "key": "key", "kind": "kind", "values": ["send", "recv"], "order_by": "time"}
KEYS = 20


def row(key: str, time: int, kind: str | None = None) -> Row:
    return key, time, kind, 0


def folding(engine: Engine, *, to_file: bool = True) -> Work:
    """A fold of everything that has read all."""
    going = engine.begin_fold(engine.changelog.upper, to_file=to_file)
    for _ in going.steps:
        pass
    return going


def folded(engine: Engine, *, to_file: bool = True) -> None:
    engine.publish(folding(engine, to_file=to_file))


def test_a_pair_that_is_settled_goes_from_a_key_that_is_written_during_each_fold(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, PAIR)) as engine:
        for time in range(10):
            engine.commit([(row("a", 2 * time, "send"), 1), (row("a", 2 * time + 1, "recv"), 1)])
        going = folding(engine)
        late = row("a", 100, "recv")
        engine.commit([(late, 1)])
        engine.publish(going)
        assert engine.snapshot(11) == {late: 1}
        assert engine.changelog.rows == 1


def test_recent_runs_are_in_the_order_of_their_versions_after_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(row("a", 1), 1)])
        monkeypatch.setattr(writes, "CHUNK_ROWS", 2)
        engine.commit([(row("a", 2), 1), (row("b", 2), 1)])
        expected = [(type(run), run.first_version) for run in engine.changelog.contents.recent]
    assert expected == [(MemoryRun, 1), (RunFile, 2)]
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        recent = engine.changelog.contents.recent
        assert [(type(run), run.first_version) for run in recent] == expected


CASES: dict[str, tuple[dict[str, Any], list[tuple[Row, int]], list[tuple[Row, int]], dict[Row, int]]] = {
    "a retraction of the greatest row": (
        LATEST,
        [(row("a", 1), 1), (row("a", 2), 1), (row("b", 1), 1)],
        [(row("a", 2), -1)],
        {row("b", 1): 1},
    ),
    "a smaller row than those of a pair": (
        PAIR,
        [(row("a", 5, "send"), 1), (row("a", 6, "recv"), 1), (row("b", 1, "send"), 1)],
        [(row("a", 4, "send"), 1)],
        {row("a", 4, "send"): 1, row("b", 1, "send"): 1},
    ),
}


@pytest.fixture(params=[1 << 20, 20], ids=["small keys", "large keys"])
def _slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "SLICE_BYTES", request.param)


@pytest.mark.usefixtures("_slices")
@pytest.mark.parametrize("end", ["published", "given up", "a crash", "published, and a crash"])
@pytest.mark.parametrize("to_file", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_from_the_moment_when_a_fold_begins_its_keys_read_as_folded(
    tmp_path: Path, case: str, to_file: bool, end: str
) -> None:
    keep, rows, late, expected = CASES[case]
    (tmp_path / "first").mkdir()
    with ExitStack() as stack:
        engine = stack.enter_context(closing(Engine(tmp_path / "first", SCHEMA, keep)))
        engine.commit(rows)
        before = engine.snapshot(1)
        going = engine.begin_fold(1, to_file=to_file)
        next(going.steps)
        if end.startswith("published"):
            engine.publish(going)
        version = engine.commit(late)

        def check() -> None:
            assert engine.changelog.since >= 1
            assert engine.snapshot(1) == before
            assert engine.snapshot(version) == expected
            changes = Counter(expected)
            changes.subtract(before)
            assert engine.deltas(1, version) == {each: diff for each, diff in changes.items() if diff}

        check()
        if end == "given up":
            engine.store.compactor.abandon(engine.changelog)
            check()
        if end.endswith("a crash"):
            shutil.copytree(tmp_path / "first", tmp_path / "second")
            engine = stack.enter_context(closing(Engine(tmp_path / "second", SCHEMA, keep)))
            check()
        engine.publish(engine.begin_fold(version, to_file=to_file))
        assert engine.snapshot(version) == expected
        engine.fold()
        assert (engine.changelog.begun, engine.snapshot(version)) == (None, expected)


@pytest.mark.parametrize("to_file", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
def test_a_fold_that_begins_behind_a_version_without_rows_is_there_after_a_crash(
    tmp_path: Path, grouped: bool, to_file: bool
) -> None:
    (tmp_path / "first").mkdir()
    with ExitStack() as stack:
        engine = stack.enter_context(closing(Engine(tmp_path / "first", SCHEMA, LATEST)))
        engine.commit([(row("a", 1), 1)])
        if grouped:
            assert engine.commit_together([(row("a", 2), 1)], []) == [2, 3]
            engine.publish(engine.begin_rewrite(engine.changelog.contents.recent, to_file=False))
        else:
            engine.commit([(row("a", 2), 1)])
            engine.commit([(row("b", 1), 1), (row("b", 1), -1)])
        going = engine.begin_fold(2 if grouped else 3, to_file=to_file)
        if not to_file:
            engine.publish(going)
        engine.commit([(row("a", 2), -1)])
        assert engine.snapshot(4) == Counter()
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        engine = stack.enter_context(closing(Engine(tmp_path / "second", SCHEMA, LATEST)))
        assert (engine.changelog.upper, engine.snapshot(4)) == (4, Counter())
        assert engine.snapshot(3) == {row("a", 2): 1}


def test_a_retraction_waits_for_its_row_below_a_greater_one_and_is_counted(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        early, greater = row("a", 1), row("a", 2)
        engine.commit([(early, -1)])
        engine.commit([(greater, 1)])
        folded(engine)
        assert engine.changelog.statistics()["waiting_retractions"] == 1
        engine.commit([(early, 1)])
        version = engine.commit([(greater, -1)])
        assert engine.snapshot(version) == Counter()
        folded(engine)
        assert (engine.changelog.rows, engine.changelog.statistics()["waiting_retractions"]) == (0, 0)


@pytest.mark.parametrize("keep", [LATEST, {**LATEST, "rule": "top_k", "k": 3}])
def test_a_row_whose_copies_are_all_retracted_after_the_delay_can_be_put_again(
    tmp_path: Path, keep: dict[str, Any]
) -> None:
    with closing(Engine(tmp_path, SCHEMA, keep)) as engine:
        for _ in range(5):
            engine.commit([(row("a", 1), 1)])
        folded(engine)
        engine.commit([(row("a", 1), -5)])
        assert engine.snapshot(6) == Counter()
        version = engine.commit([(row("a", 1), 1)])
        assert engine.snapshot(version) == {row("a", 1): 1}


def changed(time: int, keys: int = KEYS) -> list[tuple[Row, int]]:
    """Change data capture: of each key the old row goes and the new one comes."""
    return [(row(str(key), time + more), diff) for key in range(keys) for more, diff in ((-1, -1), (0, 1))]


def test_rows_that_are_changed_during_a_fold_do_not_undo_it(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(row(str(key), 0), 1) for key in range(KEYS)])
        for time in range(1, 5):
            engine.commit(changed(time))
        going = folding(engine)
        engine.commit(changed(5))
        engine.publish(going)
        contents = engine.changelog.contents
        assert (contents.bases.rows, [run.rows for run in contents.recent]) == (KEYS, [2 * KEYS])
        assert engine.snapshot(6) == {row(str(key), 5): 1 for key in range(KEYS)}


def test_a_fold_cuts_a_large_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "SLICE_ROWS", 10)
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 10)
    monkeypatch.setattr(compaction, "RANGE_ROWS", 10)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for time in (1, 2):
            engine.commit([(row(str(key), time), 1) for key in range(100)])
            folded(engine)
        ranges = engine.changelog.contents.bases.ranges
        assert sum(each.rows for each in ranges) == 100
        assert all(10 <= each.rows <= 2 * 10 for each in ranges[:-1])
        expected = {row(str(key), 2): 1 for key in range(100)}
        assert engine.snapshot(2) == expected
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert engine.snapshot(2) == expected
        assert engine.changelog.contents.bases.lows.tolist() == [each.low for each in ranges]


def test_a_fold_in_memory_has_one_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "SLICE_ROWS", 10)
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 10)
    monkeypatch.setattr(compaction, "RANGE_ROWS", 10)
    expected = {row(str(key), 2): 1 for key in range(100)}
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for time in (1, 2):
            engine.commit([(row(str(key), time), 1) for key in range(100)])
        folded(engine, to_file=False)
        assert engine.changelog.rows == 100
        assert engine.snapshot(2) == expected
        engine.fold()
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert engine.snapshot(2) == expected


LARGE: dict[str, tuple[dict[str, Any], int]] = {
    "latest": ({"rule": "latest", "key": ["key"], "order_by": ["time"]}, 1),
    "top_k": ({"rule": "top_k", "key": ["key"], "order_by": ["time"], "k": 40}, 40),
    "pair": (PAIR, 0),
    "until_closed": (
        {
            "rule": "until_closed",
            "key": ["key"],
            "closed_by": {"kind": "closed"},
            "keep": {"rule": "latest", "order_by": ["time"]},
        },
        2,
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_key_of_any_size_is_folded_by_the_rule_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(views, "SLICE_BYTES", 1000)
    keep, left = LARGE[name]
    with closing(Engine(tmp_path, SCHEMA, keep)) as engine:
        for start in range(0, 100, 50):
            kinds = ("send", "recv") if name == "pair" else ("bid",)
            engine.commit([(row("a", at, kinds[at % len(kinds)]), 1) for at in range(start, start + 50)])
        engine.commit([(row("a", 100, "closed"), 1)] if name == "until_closed" else [])
        expected = engine.snapshot(3)
        assert engine.deltas(0, 3) == dict(expected)
        folded(engine)
        assert engine.changelog.rows == left
        assert engine.snapshot(3) == expected


def test_a_rewrite_leaves_dead_rows_out(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for time in range(4):
            engine.commit([(row(str(key), time), 1) for key in range(KEYS)])
        engine.publish(engine.begin_rewrite(engine.changelog.contents.recent, to_file=True))
        engine.publish(engine.begin_fold(2, to_file=True))
        contents = engine.changelog.contents
        assert (contents.bases.rows, [run.rows for run in contents.recent]) == (KEYS, [4 * KEYS])
        engine.publish(engine.begin_rewrite(contents.recent, to_file=True))
        assert [run.rows for run in engine.changelog.contents.recent] == [2 * KEYS]
        assert engine.snapshot(4) == {row(str(key), 3): 1 for key in range(KEYS)}


def test_a_base_in_memory_goes_to_a_file(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for time in range(3):
            engine.commit([(row(str(key), time), 1) for key in range(KEYS)])
        engine.publish(engine.begin_fold(2, to_file=False))
        assert [run.rows for run in engine.changelog.contents.runs] == [KEYS, KEYS]
        engine.fold(2)
        assert all(isinstance(run, RunFile) for run in engine.changelog.contents.runs)
        assert engine.changelog.records.size_bytes == 0
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert engine.changelog.rows == 2 * KEYS
        assert engine.snapshot(3) == {row(str(key), 2): 1 for key in range(KEYS)}


def test_a_fold_of_some_ranges_that_begins_again_makes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "RANGE_ROWS", 4)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for time in (1, 2):
            engine.commit([(row(str(key), time), 1) for key in range(KEYS)])
            if time == 1:
                folded(engine)
        last = len(engine.changelog.contents.bases.ranges) - 1
        engine.begin_fold(2, last, last, to_file=True)
        engine.store.compactor.abandon(engine.changelog)
        # As while the disk is full, when all old rows are folded.
        folded(engine, to_file=False)
        assert all(isinstance(each.base, RunFile) for each in engine.changelog.contents.bases.ranges)
        assert engine.snapshot(2) == {row(str(key), 2): 1 for key in range(KEYS)}


def test_recent_runs_stay_in_the_order_of_their_versions(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for time in range(3):
            engine.commit([(row("a", time), 1)])
        _, second, third = engine.changelog.contents.recent
        engine.publish(engine.begin_rewrite([third, second], to_file=False))
        assert [run.first_version for run in engine.changelog.contents.recent] == [1, 2]


def test_a_row_that_a_put_of_several_files_retracts_and_asserts_is_not_retracted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greatest = row("a", 2)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(row("a", 1), 1), (greatest, 1)])
        with monkeypatch.context() as patch:
            patch.setattr(writes, "CHUNK_ROWS", 1)
            engine.commit_in_batches([(greatest, 1)], [(greatest, -1)])
        going = engine.begin_fold(1, to_file=True)
        engine.commit([(greatest, -1)])
        before = engine.snapshot(3)
        engine.publish(going)
        assert engine.snapshot(3) == before
