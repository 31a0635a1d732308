"""What a merge of some runs may leave out, whatever the others have, and what it looks up there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flight_server.kinds.changelog import views
from flight_server.kinds.changelog.runs import Run, RunFile, Updates
from tests.support.changelog_store import Engine
from tests.support.keep_model import SCHEMA, Row

LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
PAIR = {"rule": "pair", "key": "key", "kind": "kind", "values": ["send", "recv"], "order_by": "time"}
KEYS = 20


def merged(engine: Engine, runs: tuple[Run, ...], *, to_file: bool = True) -> None:
    """All versions so far count as one."""
    merge = engine.begin_merge(runs, engine.changelog.upper, to_file=to_file)
    while not merge.done:
        merge.step()
    engine.publish(merge)


def row(key: str, time: int, kind: str | None = None) -> Row:
    return key, time, kind, 0


def test_rows_pair_in_their_order_whichever_runs_are_merged_first(
    tmp_path: Path,
) -> None:
    with closing(Engine(tmp_path, SCHEMA, PAIR)) as engine:
        first, second, receipt = row("a", 1, "send"), row("a", 2, "send"), row("a", 3, "recv")
        for each in (first, second, receipt):
            engine.commit([(each, 1)])
        assert engine.snapshot(3) == {second: 1}
        merged(engine, engine.changelog.runs[1:], to_file=False)
        assert engine.snapshot(3) == {second: 1}
        merged(engine, engine.changelog.runs)
        assert engine.snapshot(3) == {second: 1}
        assert engine.changelog.rows == 1


def test_a_pair_that_is_settled_goes_from_a_key_that_is_written_during_each_merge(
    tmp_path: Path,
) -> None:
    with closing(Engine(tmp_path, SCHEMA, PAIR)) as engine:
        for time in range(10):
            engine.commit([(row("a", 2 * time, "send"), 1), (row("a", 2 * time + 1, "recv"), 1)])
        merge = engine.begin_merge(engine.changelog.runs, engine.changelog.upper, to_file=True)
        merge.step()
        late = row("a", 100, "recv")
        engine.commit([(late, 1)])
        engine.publish(merge)
        assert engine.snapshot(11) == {late: 1}
        assert engine.changelog.rows == 1


def test_a_smaller_row_that_comes_during_a_merge_pairs_as_if_there_were_none(
    tmp_path: Path,
) -> None:
    with closing(Engine(tmp_path, SCHEMA, PAIR)) as engine:
        engine.commit([(row("a", 5, "send"), 1), (row("a", 6, "recv"), 1)])
        merge = engine.begin_merge(engine.changelog.runs, 1, to_file=True)
        merge.step()
        engine.commit([(row("a", 4, "send"), 1)])
        assert engine.snapshot(2) == {row("a", 5, "send"): 1}
        engine.publish(merge)
        assert engine.snapshot(2) == {row("a", 5, "send"): 1}


def test_a_retraction_waits_for_its_row_below_a_greater_one_and_is_counted(
    tmp_path: Path,
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        early, greater = row("a", 1), row("a", 2)
        engine.commit([(early, -1)])
        engine.commit([(greater, 1)])
        merged(engine, engine.changelog.runs)
        assert engine.changelog.statistics()["waiting_retractions"] == 1
        engine.commit([(early, 1)])
        version = engine.commit([(greater, -1)])
        assert engine.snapshot(version) == Counter()
        while len(engine.changelog.runs) > 1:
            merged(engine, tuple(run for run in engine.changelog.runs if not isinstance(run, RunFile)) or ())
            merged(engine, engine.changelog.runs)
        assert (engine.changelog.rows, engine.changelog.statistics()["waiting_retractions"]) == (0, 0)


@pytest.mark.parametrize("keep", [LATEST, {**LATEST, "rule": "top_k", "k": 3}])
def test_a_row_whose_copies_are_all_retracted_after_the_delay_can_be_put_again(
    tmp_path: Path, keep: dict[str, Any]
) -> None:
    with closing(Engine(tmp_path, SCHEMA, keep)) as engine:
        for _ in range(5):
            engine.commit([(row("a", 1), 1)])
        merged(engine, engine.changelog.runs)
        engine.commit([(row("a", 1), -5)])
        assert engine.snapshot(6) == Counter()
        version = engine.commit([(row("a", 1), 1)])
        assert engine.snapshot(version) == {row("a", 1): 1}


@pytest.fixture(name="read_elsewhere")
def _read_elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many rows look-ups in files took the columns."""
    rows: list[int] = []
    for name in ("of_hashes", "retractions_of"):
        monkeypatch.setattr(RunFile, name, _counting(getattr(RunFile, name), rows))
    return rows


def _counting(look_up: Callable[..., Updates], rows: list[int]) -> Callable[..., Updates]:
    def counted(*arguments: Any) -> Updates:
        found = look_up(*arguments)
        rows.append(len(found))
        return found

    return counted


def changed(time: int, keys: int = KEYS) -> list[tuple[Row, int]]:
    """Change data capture: of each key the old row goes and the new one comes."""
    return [(row(str(key), time + more), diff) for key in range(keys) for more, diff in ((-1, -1), (0, 1))]


def test_a_merge_of_changed_rows_reads_nothing_of_other_runs(
    tmp_path: Path, read_elsewhere: list[int]
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(row(str(key), 0), 1) for key in range(KEYS)])
        for time in (1, 2):
            engine.commit(changed(time))
            merged(engine, engine.changelog.runs[-1:] if time > 1 else engine.changelog.runs)
        for time in (3, 4, 5, 6):
            engine.commit(changed(time, keys=1))
        merged(engine, engine.changelog.runs[2:], to_file=False)
        assert engine.changelog.runs[-1].rows == 2
        assert sum(read_elsewhere) == 0


def test_a_merge_reads_the_retractions_elsewhere_of_those_keys_alone_of_which_it_leaves_rows_out(
    tmp_path: Path, read_elsewhere: list[int]
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(row(str(key), 9), -1) for key in range(KEYS)])
        merged(engine, engine.changelog.runs)
        engine.commit([(row("0", 1), 1)])
        engine.commit([(row("0", 9), 1)])
        engine.commit([(row("1", 1), 1)])
        assert engine.snapshot(4) == {row("0", 1): 1, row("1", 1): 1}
        merged(engine, engine.changelog.runs[1:], to_file=False)
        assert engine.snapshot(4) == {row("0", 1): 1, row("1", 1): 1}
        assert sum(read_elsewhere) == 1


def test_rows_that_are_changed_during_a_merge_do_not_undo_it(
    tmp_path: Path,
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(row(str(key), 0), 1) for key in range(KEYS)])
        for time in range(1, 5):
            engine.commit(changed(time))
        merge = engine.begin_merge(engine.changelog.runs, engine.changelog.upper, to_file=True)
        while not merge.done:
            merge.step()
        engine.commit(changed(5))
        engine.publish(merge)
        assert [run.rows for run in engine.changelog.runs] == [KEYS, 2 * KEYS]
        assert engine.snapshot(6) == {row(str(key), 5): 1 for key in range(KEYS)}


def test_what_comes_during_a_merge_is_looked_up_for_those_keys_alone_of_which_it_left_rows_out(
    tmp_path: Path, read_elsewhere: list[int]
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for time in (0, 1):
            engine.commit(changed(time))
            merged(engine, engine.changelog.runs[time:])
        engine.commit([(row("0", 0), 1)])
        merged(engine, engine.changelog.runs[2:])
        merge = engine.begin_merge(engine.changelog.runs, engine.changelog.upper, to_file=True)
        while not merge.done:
            merge.step()
        engine.commit(changed(2))
        read_elsewhere.clear()
        before = engine.snapshot(engine.changelog.upper)
        engine.publish(merge)
        assert engine.snapshot(engine.changelog.upper) == before
        assert 0 < sum(read_elsewhere) < KEYS


@pytest.mark.parametrize("case", ["of small keys", "of a large key"])
def test_a_row_that_a_merge_left_out_is_there_again_if_the_one_above_it_goes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    keys = KEYS
    if case == "of a large key":
        keys = 2
        monkeypatch.setattr(views, "SLICE_BYTES", 20)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for time in (1, 2):
            engine.commit([(row(str(key), time), 1) for key in range(keys)])
            merged(engine, engine.changelog.runs[time - 1 :])
        merge = engine.begin_merge(engine.changelog.runs, engine.changelog.upper, to_file=True)
        while not merge.done:
            merge.step()
        version = engine.commit([(row("0", 2), -1)])
        found = {**{row(str(key), 2): 1 for key in range(1, keys)}, row("0", 1): 1}
        assert engine.snapshot(version) == found
        engine.publish(merge)
        assert [run.rows for run in engine.changelog.runs] == [keys, 1, 1]
        assert engine.snapshot(version) == found
