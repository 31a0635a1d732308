"""Damage of a changelog that was dropped, found by a reader that has not finished."""

from __future__ import annotations

import base64
from pathlib import Path

import pyarrow as pa

from flight_server.frames import SchemaMessage
from flight_server.protocol import CreateRequest, Kind
from tests.support.changelog_store import NAME, Engine

SCHEMA = pa.schema([("n", pa.int64())])
ENCODED = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()


def test_it_is_not_noted_of_another_changelog_that_has_the_name(tmp_path: Path) -> None:
    engine = Engine(tmp_path, SCHEMA, None)
    try:
        dropped = engine.changelog
        engine.run(engine.catalogue.remove(NAME))
        request = CreateRequest(NAME, Kind.CHANGELOG, schema=ENCODED)
        engine.run(engine.store.create(request, SchemaMessage.of(SCHEMA)))
        dropped.damaged("a run has another checksum")
        assert engine.disk.quarantine.entries == []
    finally:
        engine.close()
