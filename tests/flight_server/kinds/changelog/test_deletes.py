"""Deletes by key: what compaction and emission make of tombstones."""

from __future__ import annotations

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


@pytest.mark.parametrize("large_keys", [False, True], ids=["small keys", "large keys"])
def test_what_is_asked_for_again_during_a_fold_is_deleted_by_what_comes_then(
    large_keys: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large_keys:
        monkeypatch.setattr(views, "SLICE_BYTES", 20)
    row, greater = put("a", 1), put("a", 2)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([row])
        engine.commit([greater])
        engine.delete([("a",)])
        going = engine.begin_fold(2, to_file=True)
        for _ in going.steps:
            pass
        engine.commit([(greater[0], -1)])
        engine.publish(going)
        engine.commit([row])
        engine.fold(5)
        engine.commit([(row[0], -1)])
        assert engine.snapshot(5) == Counter([row[0]])
        assert engine.snapshot(6) == Counter()


def test_a_tombstone_stays_until_it_is_old_and_takes_the_rows_before_it(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([put("a", 9), put("b", 9)])
        engine.delete([("a",)])
        engine.delete([("a",), ("c",)])
        engine.commit([put("a", 1)])
        engine.fold(1)
        assert engine.changelog.statistics()["tombstones"] == 3
        engine.fold(2)
        assert engine.snapshot(2) == Counter([("b", 9, None, 0)])
        assert engine.snapshot(4) == Counter([("a", 1, None, 0), ("b", 9, None, 0)])
        engine.fold(4)
        assert engine.snapshot(4) == Counter([("a", 1, None, 0), ("b", 9, None, 0)])
        assert (engine.changelog.rows, engine.changelog.statistics()["tombstones"]) == (2, 0)
        engine.delete([("a",), ("b",)])
        engine.fold(5)
        assert engine.changelog.rows == 0


def test_a_delete_takes_what_compaction_has_taken_and_waiting_retractions_too(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([put("a", 1), put("a", 2)])
        engine.fold(engine.changelog.upper)
        engine.commit([(("a", 1, None, 0), -1), (("a", 2, None, 0), -1), (("a", 3, None, 0), -1)])
        engine.delete([("a",)])
        engine.commit([put("a", 1), put("a", 3)])
        assert engine.snapshot(4) == Counter([("a", 3, None, 0)])
        engine.fold(engine.changelog.upper)
        assert engine.snapshot(4) == Counter([("a", 3, None, 0)])


def test_a_delete_of_many_keys_goes_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "CHUNK_ROWS", 100)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([put(str(number), 1) for number in range(300)])
        engine.delete([(str(number % 200),) for number in range(400)])
        assert isinstance(engine.changelog.contents.recent[-1], RunFile)
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
        engine.copy_to(tmp_path / "2")
    with closing(Engine(tmp_path / "2", schema, keep)) as engine:
        for to_file in (False, True):
            changelog = engine.changelog
            engine.publish(engine.begin_rewrite(changelog.contents.recent, to_file=to_file))
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
