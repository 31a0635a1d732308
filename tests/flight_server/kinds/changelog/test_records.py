"""What the records keep of a changelog beside its rows; and a server that keeps nothing."""

from __future__ import annotations

import gc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flight_server.datasets import transactions
from flight_server.kinds.changelog import store as stores
from flight_server.kinds.changelog import writes
from flight_server.protocol import Conflict, HoldRequest, Transaction
from flight_server.storage.folder import SEGMENTS_NAME
from tests.support.callers import anyone
from tests.support.changelog_store import NAME, Engine
from tests.support.clocks import Clock
from tests.support.keep_model import SCHEMA, Row
from tests.support.polling import eventually

LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
DAY = 86_400.0


def rows(first: int, count: int, time: int = 1) -> list[tuple[Row, int]]:
    return [((f"key {number}", time, "bid", number), 1) for number in range(first, first + count)]


def hold(engine: Engine, name: str, **request: Any) -> int:
    asked = HoldRequest(NAME, name, **{"lease_seconds": 60.0, **request})
    answer = engine.run(engine.store.hold(engine.catalogue.find(NAME), asked, anyone(engine.catalogue)))
    return int(answer["version"])


def test_ids_that_were_forgotten_stay_refused_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    clock.now = 1000 * DAY
    monkeypatch.setattr(transactions, "time", clock)
    monkeypatch.setattr(transactions, "IDS", 2)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        for number, id_ in enumerate("abcd", 1):
            engine.commit(rows(number, 1), Transaction(id_, 1))
            clock.now += 31 * DAY
        known = set(engine.changelog.transactions.entries())
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert set(engine.changelog.transactions.entries()) == known == {"c", "d"}
        for id_ in "ab":
            with pytest.raises(Conflict, match="was not used for 30 days"):
                engine.commit(rows(0, 1), Transaction(id_, 2))
        assert engine.commit(rows(0, 1), Transaction("d", 1)) == 4


def test_of_holds_that_ended_by_themselves_the_last_are_remembered_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_LAPSED", 3)
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit(rows(0, 1))
        for number in range(5):
            hold(engine, f"hold {number}", lease_seconds=1e-9)
            engine.store.expire_holds()
        hold(engine, "lasting")
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert list(engine.changelog.holds.lapsed) == ["hold 2", "hold 3", "hold 4"]
        engine.commit(rows(1, 1))
        assert hold(engine, "hold 3") == 1, "its version, and not the newest"
        assert hold(engine, "hold 0") == 2
        engine.store.expire_holds()
        assert set(engine.changelog.holds.named) == {"lasting", "hold 0", "hold 3"}


def test_a_hold_whose_lag_has_ended_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit(rows(0, 1))
        hold(engine, "late", lease_seconds=3600.0)
        engine.commit(rows(1, 1))
        engine.changelog.holds._max_lag_seconds = 0.0
        for _ in range(2):  # the first look finds that it is out of date
            engine.store.expire_holds()
        assert not engine.changelog.holds.named
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert not engine.changelog.holds.named
        assert engine.changelog.holds.lapsed["late"].version == 1


def test_a_server_without_a_lasting_directory_writes_no_records_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "CHUNK_ROWS", 20)

    def files() -> int:
        gc.collect()
        return len(list((tmp_path / SEGMENTS_NAME).iterdir()))

    with closing(Engine(tmp_path, SCHEMA, LATEST, lasting=False)) as engine:
        for number in range(3):
            engine.commit(rows(number, 3), Transaction("writer", number))
        assert engine.commit(rows(0, 3), Transaction("writer", 2)) == 3
        assert engine.commit(rows(0, 30, 2)) == 4, "in a file"
        assert hold(engine, "reader") == 4
        assert (engine.changelog.records.size_bytes, files()) == (0, 1)
        engine.fold(engine.changelog.upper)
        eventually(files, 1)
        assert sum(engine.snapshot(4).values()) == 30
        assert [path.name for path in tmp_path.iterdir()] == [SEGMENTS_NAME]
        engine.run(engine.catalogue.remove(NAME))
        engine.store.expire_holds()
        eventually(files, 0)
