"""What takes a name while a changelog of that name is created, and what a creation that is given up leaves."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flight_server.datasets import Dataset
from flight_server.frames import SchemaMessage
from flight_server.kinds.changelog import store
from flight_server.kinds.stream import StreamSink
from flight_server.protocol import AlreadyExists, Conflict, CreateRequest, InvalidRequest, Kind, PutCommand
from flight_server.records import changelog_records, changelogs
from tests.support.changelog_store import NAME, Engine
from tests.support.keep_model import SCHEMA
from tests.support.sealing import Held

TEXT = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path, SCHEMA, None)
    yield engine
    engine.close()
    vars(engine).clear()  # the fixture's value outlives the look for what is left


async def create(engine: Engine, name: str) -> Dataset:
    request = CreateRequest(name, Kind.CHANGELOG, schema=TEXT)
    return (await engine.store.create(request, SchemaMessage.of(SCHEMA)))[0]


def rows(engine: Engine) -> int:
    """How many changelogs the next start would find."""
    records = engine.catalogue.records
    records.submit(lambda connection: None).result()  # after what is still to be written
    return len(list(records.read(lambda connection: list(changelogs(connection)))))


def test_a_dataset_that_was_made_during_the_creation_keeps_the_name(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        held = Held(changelog_records, "insert_row", monkeypatch)
        creating = asyncio.ensure_future(create(engine, "d"))
        await held.reached()
        meanwhile, _ = engine.catalogue.create(CreateRequest("d"), None)
        held.go_on()
        with pytest.raises(AlreadyExists, match="another kind"):
            await creating
        assert engine.catalogue.find("d") is meanwhile
        assert rows(engine) == 1, f"only that of {NAME}"

    engine.run(work())


def test_a_creation_that_is_given_up_while_it_is_written_has_the_name(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        held = Held(changelog_records, "insert_row", monkeypatch)
        creating = asyncio.ensure_future(create(engine, "d"))
        await held.reached()
        creating.cancel()
        await asyncio.sleep(0.01)
        held.go_on()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert engine.catalogue.find("d").kind is Kind.CHANGELOG
        assert rows(engine) == 2
        await engine.catalogue.remove("d")
        assert rows(engine) == 1

    engine.run(work())


def test_an_overwrite_does_not_replace_a_changelog_that_was_created_after_it_began(engine: Engine) -> None:
    async def work() -> None:
        durability: Any = SimpleNamespace(catalogue=engine.catalogue)  # nothing here is durable
        schema = SchemaMessage.of(SCHEMA)
        engine.catalogue.create(CreateRequest("d"), schema)
        late = StreamSink(durability, PutCommand("d", mode="overwrite"), schema)
        engine.catalogue.drop("d")
        made = await create(engine, "d")
        with pytest.raises(Conflict, match="became a changelog"):
            await late.end()
        assert engine.catalogue.find("d") is made
        assert rows(engine) == 2

    engine.run(work())


def test_a_rule_that_this_server_cannot_run_is_put_aside_and_the_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, make_rule = [InvalidRequest("keep: there is no such rule")], store.make_rule

    def refuse(*arguments: Any) -> Any:
        if refused:
            raise refused.pop()
        return make_rule(*arguments)

    with closing(Engine(tmp_path, SCHEMA, None)) as engine:
        generation = engine.changelog.generation
    with monkeypatch.context() as without:
        without.setattr(store, "make_rule", refuse)
        with closing(Engine(tmp_path, SCHEMA, None)) as engine:
            (entry,) = engine.disk.quarantine.entries
            assert (entry.dataset, entry.generation) == (NAME, generation)
            assert "there is no such rule" in entry.reason
