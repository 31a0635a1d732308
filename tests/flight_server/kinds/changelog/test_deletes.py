"""Deletes by key: what compaction and emission make of tombstones."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_server.kinds.changelog import views, writes
from flight_server.kinds.changelog.folding import emitted
from flight_server.kinds.changelog.rules import make_rule
from flight_server.kinds.changelog.runs import DELETE, Layout, RunFile
from flight_server.protocol import KeepRule
from tests.support.changelog_store import Engine, snapshot_of
from tests.support.keep_model import SCHEMA, Row
from tests.support.run_rows import columns, fewer_bits, listed, updates_of

LATEST: dict[str, Any] = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
PAIR: dict[str, Any] = {"rule": "pair", "key": ["key"], "kind": "kind", "values": ["send", "recv"]}


def put(key: str, time: int, kind: str | None = None) -> tuple[Row, int]:
    return (key, time, kind, 0), 1


def merge_all(engine: Engine, start: int = 0, since: int | None = None) -> None:
    """Merge the runs from ``start`` on, as if all versions, or those up to ``since``, were older than the delay."""
    changelog = engine.changelog
    upto = changelog.upper if since is None else since
    merge = engine.begin_merge(changelog.runs[start:], upto, to_file=False)
    while not merge.done:
        merge.step()
    engine.publish(merge)


@pytest.mark.parametrize("large_keys", [False, True], ids=["small keys", "large keys"])
def test_what_a_merge_gives_back_is_deleted_also_where_a_later_merge_has_it_without_the_rest(
    large_keys: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large_keys:
        monkeypatch.setattr(views, "SLICE_BYTES", 20)

    def to_file(start: int, since: int) -> Any:
        merge = engine.begin_merge(engine.changelog.runs[start:], since, to_file=True)
        while not merge.done:
            merge.step()
        return merge

    row, greater = put("a", 1), put("a", 2)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([row])
        engine.commit([greater])
        engine.delete([("a",)])
        merge = to_file(0, 2)
        engine.commit([(greater[0], -1)])  # so the merge gives back the row, in a file of its own
        engine.publish(merge)
        assert isinstance(engine.changelog.runs[1], RunFile)
        engine.commit([row])
        engine.publish(to_file(2, 2))
        engine.publish(to_file(1, 5))
        engine.commit([(row[0], -1)])
        assert engine.snapshot(5) == Counter([row[0]])
        assert engine.snapshot(6) == Counter()


def test_a_tombstone_stays_until_a_merge_includes_the_oldest_run(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([put("a", 9), put("b", 9)])
        engine.delete([("a",)])
        engine.delete([("a",), ("c",)])
        engine.commit([put("a", 1)])
        merge_all(engine, 1, since=2)
        assert engine.snapshot(2) == Counter([("b", 9, None, 0)])
        merge_all(engine, 1)
        assert engine.changelog.statistics()["tombstones"] == 2
        assert engine.snapshot(4) == Counter([("a", 1, None, 0), ("b", 9, None, 0)])
        merge_all(engine)
        assert (engine.changelog.rows, engine.changelog.statistics()["tombstones"]) == (2, 0)
        engine.delete([("a",), ("b",)])
        merge_all(engine)
        assert engine.changelog.rows == 0


def test_a_delete_takes_what_compaction_has_taken_and_waiting_retractions_too(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([put("a", 1), put("a", 2)])
        merge_all(engine)
        engine.commit([(("a", 1, None, 0), -1), (("a", 2, None, 0), -1), (("a", 3, None, 0), -1)])
        engine.delete([("a",)])
        engine.commit([put("a", 1), put("a", 3)])
        assert engine.snapshot(4) == Counter([("a", 3, None, 0)])
        merge_all(engine)
        assert engine.snapshot(4) == Counter([("a", 3, None, 0)])


def test_a_delete_of_many_keys_goes_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "CHUNK_ROWS", 100)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([put(str(number), 1) for number in range(300)])
        engine.delete([(str(number % 200),) for number in range(400)])
        assert isinstance(engine.changelog.runs[-1], RunFile)
        assert 0 < engine.changelog.statistics()["tombstones"] <= 400
        assert set(engine.snapshot(2)) == {(str(number), 1, None, 0) for number in range(200, 300)}
        assert len(engine.deltas(1, 2)) == 200


def test_a_tombstone_has_nulls_in_columns_of_every_type_also_on_disk(tmp_path: Path) -> None:
    # pyarrow makes no lists of extension types from Python's values.
    values = [column.slice(1, 1) for name, column in columns().items() if name != "extension in a list"]
    fields = [pa.field(f"c{number}", column.type, nullable=False) for number, column in enumerate(values)]
    schema = pa.schema([pa.field("key", pa.int64(), nullable=False), *fields])
    keep = {"rule": "latest", "key": ["key"], "order_by": ["key"]}
    # pyarrow 22 takes no UUID, only its bytes.
    row = (1, *(getattr(value, "bytes", value) for value in (column[0].as_py() for column in values)))
    (tmp_path / "1").mkdir()
    with closing(Engine(tmp_path / "1", schema, keep)) as engine:
        engine.commit([(row, 1), ((2, *row[1:]), 1)])
        engine.delete([(1,), (3,)])
        shutil.copytree(engine.directory, tmp_path / "2")
    with closing(Engine(tmp_path / "2", schema, keep)) as engine:
        for to_file in (False, True):
            changelog = engine.changelog
            merge = engine.begin_merge(changelog.runs, 1, to_file=to_file)
            while not merge.done:
                merge.step()
            engine.publish(merge)
            assert engine.changelog.statistics()["tombstones"] == 2
            (batch,) = [batch for batch in snapshot_of(changelog.view(), 2) if batch.num_rows]
            assert batch.column(0).to_pylist() == [2]


@pytest.mark.parametrize("bits", [2**64 - 1, 1, 0])
def test_what_was_put_together_before_a_delete_is_emitted(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fewer_bits(monkeypatch, bits)
    spec = KeepRule.parse(PAIR | {"emit": "pairs"})
    rule = make_rule(spec, SCHEMA)
    assert rule.emitted_schema is not None
    target = Layout(rule.emitted_schema, None)
    send, recv = "send", "recv"
    updates = updates_of(
        Layout(SCHEMA, spec),
        [
            *(
                (("a", 1, kind, 0), version, 1)
                for kind, version in ((send, 1), (recv, 2), (send, 4), (recv, 5))
            ),
            (("a", None, None, None), 3, DELETE),
            (("a", None, None, None), 6, DELETE),
            (("a", 1, send, 0), 7, 1),
            (("b", 1, send, 0), 1, 1),
            (("b", None, None, None), 2, DELETE),
            (("b", 1, recv, 0), 3, 1),
            (("c", 1, send, 0), 6, 1),
            (("c", 1, recv, 0), 7, 1),
        ],
    )

    def pairs(after: int, upto: int) -> Counter[str]:
        found = Counter[str]()
        for row, _, diff in listed(emitted(updates, after, upto, rule, target)):
            found[row[0]] += diff
        return found

    assert pairs(0, 7) == {"a": 2, "c": 1}
    for middle in range(8):
        both = Counter(pairs(0, middle))
        both.update(pairs(middle, 7))
        assert both == {"a": 2, "c": 1}, "a window's end changes nothing"
