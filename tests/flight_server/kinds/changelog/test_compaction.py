"""Folds and rewrites: what they leave, beside commits that come meanwhile, and of keys of any size."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.kinds.changelog import compaction, compactor, views
from flight_server.kinds.changelog.compaction import Going
from flight_server.kinds.changelog.contents import Contents
from flight_server.kinds.changelog.runs import RunFile, RunWriter, Updates
from flight_server.storage import Folder
from tests.support.changelog_store import Engine
from tests.support.keep_model import SCHEMA, Row

LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
PAIR = {"rule": "pair", "key": "key", "kind": "kind", "values": ["send", "recv"], "order_by": "time"}
KEYS = 20


def row(key: str, time: int, kind: str | None = None) -> Row:
    return key, time, kind, 0


def folding(engine: Engine, *, to_file: bool = True) -> Going:
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


def test_a_smaller_row_that_comes_during_a_fold_pairs_as_if_there_were_none(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, PAIR)) as engine:
        engine.commit([(row("a", 5, "send"), 1), (row("a", 6, "recv"), 1)])
        going = folding(engine)
        engine.commit([(row("a", 4, "send"), 1)])
        assert engine.snapshot(2) == {row("a", 5, "send"): 1}
        engine.publish(going)
        assert engine.snapshot(2) == {row("a", 5, "send"): 1}


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


@pytest.mark.parametrize("to_file", [True, False])
@pytest.mark.parametrize("case", ["of small keys", "of a large key"])
def test_a_row_that_a_fold_left_out_is_there_again_if_the_one_above_it_goes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, to_file: bool
) -> None:
    keys = KEYS
    if case == "of a large key":
        keys, to_file = 1, True
        monkeypatch.setattr(views, "SLICE_BYTES", 20)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for time in (1, 2):
            engine.commit([(row(str(key), time), 1) for key in range(keys)])
        going = folding(engine, to_file=to_file)
        version = engine.commit([(row("0", 2), -1)])
        expected = {**{row(str(key), 2): 1 for key in range(1, keys)}, row("0", 1): 1}
        assert engine.snapshot(version) == expected
        engine.publish(going)
        assert engine.changelog.rows == keys + 1 + 1, "and the retraction"
        assert engine.snapshot(version) == expected


def test_a_fold_ends_after_a_step_and_the_rest_of_its_range_keeps_the_old_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "SLICE_ROWS", 10)
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 10)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(row(str(key), 1), 1) for key in range(100)])
        folded(engine)
        monkeypatch.setattr(compaction, "STEP_ROWS", 30)
        monkeypatch.setattr(compaction, "RANGE_ROWS", 10)
        engine.commit([(row(str(key), 2), 1) for key in range(100)])
        first = engine.changelog.contents.bases.ranges[0].base
        folded(engine)
        *made, rest = engine.changelog.contents.bases.ranges
        assert len(made) > 1
        assert all(10 <= each.rows <= 2 * 10 for each in made[:-1])
        assert rest.base is first
        assert rest.rows + sum(each.rows for each in made) == 100
        expected = {row(str(key), 2): 1 for key in range(100)}
        assert engine.snapshot(2) == expected
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert engine.snapshot(2) == expected
        engine.fold()
        assert engine.changelog.rows == 100
        assert engine.snapshot(2) == expected


def test_a_fold_in_memory_ends_after_no_step_and_keeps_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "SLICE_ROWS", 10)
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 10)
    monkeypatch.setattr(compaction, "STEP_ROWS", 30)
    monkeypatch.setattr(compaction, "STEP_BYTES", 1000)
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


@pytest.fixture
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "SLICE_ROWS", 10)
    monkeypatch.setattr(views, "MIN_SLICE_ROWS", 10)
    monkeypatch.setattr(compaction, "RANGE_ROWS", 10)


small_ranges = pytest.mark.usefixtures("_small_ranges")
TWICE = [(row(str(key), time), 1) for key in range(60) for time in (1, 2)]


def counted_files(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []
    make = Folder.make

    def counted(self: Folder, suffix: Any) -> Any:
        path, fd = make(self, suffix)
        made.append(path)
        return path, fd

    monkeypatch.setattr(Folder, "make", counted)
    return made


@small_ranges
def test_a_retraction_during_a_fold_lets_one_range_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit(TWICE)
        made = counted_files(monkeypatch)
        going = folding(engine)
        ranges = len(made)
        assert ranges >= 3
        engine.commit([(row("7", 2), -1)])
        expected = engine.snapshot(2)
        engine.publish(going)
        assert len(made) == ranges + 1
        assert engine.changelog.contents.bases.rows == 60 + 1
        assert engine.snapshot(2) == expected


@small_ranges
@pytest.mark.parametrize("keep", [LATEST, PAIR], ids=["latest", "pair"])
def test_while_commits_wait_one_range_is_folded_again_and_others_are_left_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: dict[str, Any]
) -> None:
    with closing(Engine(tmp_path, SCHEMA, keep)) as engine:
        rows = TWICE
        if keep is PAIR:
            rows = [(row(key, time, "send" if time == 1 else "recv"), 1) for (key, time, *_), _ in TWICE]
        engine.commit(rows)
        monkeypatch.setattr(compactor, "CATCH_UPS", 0)
        monkeypatch.setattr(compaction, "FEW_KEYS", 0)
        made = counted_files(monkeypatch)
        going = folding(engine)
        files = len(made)
        engine.commit([(each, -1) for each, _ in rows[::2]])
        expected = [engine.snapshot(version) for version in (1, 2)]
        engine.publish(going)
        assert len(made) == files + 1
        sinces = Counter(each.since for each in engine.changelog.contents.bases.ranges)
        assert sinces[1] == 1
        assert [engine.snapshot(version) for version in (1, 2)] == expected
    with closing(Engine(tmp_path, SCHEMA, keep)) as engine:
        assert [engine.snapshot(version) for version in (1, 2)] == expected
        engine.fold()
        assert engine.snapshot(2) == expected[1]
        assert engine.changelog.rows == 60


@small_ranges
def test_while_commits_wait_a_few_keys_are_folded_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit(TWICE)
        monkeypatch.setattr(compactor, "CATCH_UPS", 0)
        going = folding(engine)
        sizes: list[int] = []
        add = RunWriter.add

        def counted(self: RunWriter, updates: Updates) -> None:
            sizes.append(len(updates))
            add(self, updates)

        monkeypatch.setattr(RunWriter, "add", counted)
        engine.commit([(row(key, 2), -1) for key in ("7", "8", "30")])
        expected = engine.snapshot(2)
        engine.publish(going)
        assert sum(sizes) == 6, "the rows that the rule had left out are there again"
        assert set(engine.changelog.contents.bases.sinces.tolist()) == {1}
        assert engine.snapshot(2) == expected
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert engine.snapshot(2) == expected
        engine.fold()
        assert engine.changelog.rows == len(expected) == 60


@small_ranges
def test_a_range_of_which_much_is_needed_again_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Engine(tmp_path, SCHEMA, PAIR)) as engine:
        engine.commit([(row("a", time, kind), 1) for time in range(50) for kind in ("send", "recv")])
        monkeypatch.setattr(compaction, "RANGE_BYTES", 500)
        going = folding(engine)
        engine.commit([(row("a", time, "send"), -1) for time in range(49)])
        expected = [engine.snapshot(version) for version in (1, 2)]
        engine.publish(going)
        assert engine.changelog.contents.bases.sinces.tolist() == [0]
        assert [engine.snapshot(version) for version in (1, 2)] == expected
        engine.fold()
        assert (engine.changelog.rows, engine.snapshot(2)) == (49, expected[1])


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


def test_a_large_key_is_folded_while_greater_rows_of_it_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "SLICE_BYTES", 1000)
    with closing(Engine(tmp_path, SCHEMA, PAIR)) as engine:
        engine.commit([(row("a", time, kind), 1) for time in range(100) for kind in ("send", "recv")])
        made = counted_files(monkeypatch)
        going = folding(engine)
        engine.commit([(row("a", 200, "send"), 1)])
        engine.publish(going)
        assert engine.changelog.rows == 1
        assert not made, "nothing is left of it, and nothing is folded again"


LATE: dict[str, tuple[dict[str, Any], list[tuple[Row, int]], int]] = {
    "pair": (PAIR, [(row("a", 3, "send"), 1), (row("a", 3, "recv"), 1)], 40),
    "top_k": (LARGE["top_k"][0], [(row("a", 3, "send"), -1)], 40 + 20),
}


@pytest.mark.parametrize("name", LATE)
def test_a_large_key_is_folded_while_late_rows_of_it_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(views, "SLICE_BYTES", 1000)
    keep, late, most_rows = LATE[name]
    with closing(Engine(tmp_path, SCHEMA, keep)) as engine:
        engine.commit([(row("a", time, kind), 1) for time in range(200) for kind in ("send", "recv")])
        layout, catch_up = engine.changelog.layout, compaction.Fold.catch_up
        rows = pa.RecordBatch.from_pylist(
            [dict(zip(SCHEMA.names, each, strict=True)) for each, _ in late], SCHEMA
        )
        updates = Updates.of(
            layout, rows, np.zeros(len(late), np.int64), np.array([diff for _, diff in late])
        )

        def late_rows_come(self: compaction.Fold, contents: Contents, *, briefly: bool = False) -> bool:
            again = catch_up(self, contents, briefly=briefly)
            if not briefly:  # commits wait then
                commit = engine.store.commits.commit(engine.changelog, updates, [], None)
                asyncio.run_coroutine_threadsafe(commit, engine.loop).result()
            return again

        monkeypatch.setattr(compaction.Fold, "catch_up", late_rows_come)
        going = folding(engine)
        engine.commit(late)
        shown = [engine.snapshot(version) for version in (1, 2)]
        engine.publish(going)
        assert engine.changelog.upper > 3
        assert [engine.snapshot(version) for version in (1, 2)] == shown
        assert engine.changelog.contents.bases.rows <= most_rows


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


def test_a_rewrite_to_a_file_takes_the_base_in_memory_along(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for time in range(3):
            engine.commit([(row(str(key), time), 1) for key in range(KEYS)])
        engine.publish(engine.begin_fold(2, to_file=False))
        assert engine.changelog.rows == 2 * KEYS
        engine.publish(engine.begin_rewrite(engine.changelog.contents.recent, to_file=True))
        assert all(isinstance(run, RunFile) for run in engine.changelog.contents.runs)
        assert engine.changelog.records.size_bytes == 0
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert engine.changelog.rows == 2 * KEYS
        assert engine.snapshot(3) == {row(str(key), 2): 1 for key in range(KEYS)}
