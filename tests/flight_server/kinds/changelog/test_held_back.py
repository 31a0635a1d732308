"""Holds with owners, on disk and in what a changelog says of itself."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from flight_server.kinds.changelog import holds
from flight_server.protocol import HoldRequest
from tests.support.callers import anyone
from tests.support.changelog_store import NAME, Engine

SCHEMA = pa.schema([("key", pa.string()), ("time", pa.int64())])
LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
OWNER = "application 'rates' (app-7), query prices, run 3, driver host-1, user ann"


def ask(engine: Engine, name: str, **body: Any) -> dict[str, Any]:
    request = HoldRequest.parse(json.dumps({"dataset": NAME, "hold": name, **body}).encode())
    answer: dict[str, Any] = engine.run(
        engine.store.hold(engine.catalogue.find(NAME), request, anyone(engine.catalogue))
    )
    return answer


def shown(engine: Engine) -> dict[str, Any]:
    return {each["hold"]: each["owner"] for each in engine.changelog.statistics()["holds"]}


def test_a_hold_and_its_owner_survive_restarts_and_folds(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(("a", 1), 1)])
        ask(engine, "mine", owner=OWNER)
        ask(engine, "mine")  # a renewal without one leaves it
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert shown(engine) == {"mine": OWNER}
        engine.fold()
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        assert shown(engine) == {"mine": OWNER}
        (hold,) = engine.changelog.statistics()["holds"]
        assert 0 <= hold["held_seconds"] < hold["lease_left_seconds"] <= 60


def test_the_release_of_a_hold_has_its_changelog_looked_at(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(("a", 1), 1)])
        ask(engine, "mine")
        engine.commit([(("a", 2), 1)])
        compactor = engine.store.compactor
        while (due_in := compactor.due_in()) is not None and due_in < 1.0:
            engine.run(compactor.look_at_next())
        assert engine.changelog.rows == 2
        ask(engine, "mine", release=True)
        assert compactor.due_in() == 0


def test_a_hold_ends_no_other_one_than_it_names(tmp_path: Path) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(("a", 1), 1)])
        for name in ("lookup.q.1.", "lookup.q.1.other", "lookup.q.2."):
            ask(engine, name)
        ask(engine, "lookup.q.3.", releases="lookup.q.")
        assert len(shown(engine)) == 4, "a prefix names no hold"
        ask(engine, "lookup.q.3.", releases="lookup.q.1.")
        assert sorted(shown(engine)) == ["lookup.q.1.other", "lookup.q.2.", "lookup.q.3."]


def test_compaction_that_waits_for_a_hold_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Engine(tmp_path, SCHEMA, LATEST)) as engine:
        engine.commit([(("a", 1), 1)])
        ask(engine, "mine", owner=OWNER)
        assert engine.changelog.statistics()["held_back"] is None, "it holds the newest version"
        engine.commit([(("a", 2), 1)])
        engine.store.expire_holds()
        numbers = engine.changelog.statistics()
        assert numbers["held_back"] | {"seconds": 0} == {
            "hold": "mine",
            "owner": OWNER,
            "version": 1,
            "seconds": 0,
        }
        assert numbers["waits_for"] == f"hold 'mine' of {OWNER}, at version 1"
        with capture_logs() as log:
            engine.store.expire_holds()
        assert log == [], "not at once"
        monkeypatch.setattr(holds, "SAID_SECONDS", 0.0)
        engine.commit([(("a", 3), 1)])
        ask(engine, "mine", version=2)
        with capture_logs() as log:
            engine.store.expire_holds()
        (line,) = log
        assert (line["event"], line["hold"], line["owner"], line["version"]) == (
            "compaction_held_back",
            "mine",
            OWNER,
            2,
        )
        ask(engine, "mine", release=True)
        assert not engine.changelog.statistics()["waits_for"].startswith("hold")
