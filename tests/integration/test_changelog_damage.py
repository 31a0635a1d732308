"""A server with damaged changelogs beside whole ones, and on a disk that refuses."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.durable import OPTIONS, action
from tests.support.faulty_disk import FaultyServer

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64())])


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def server(data_dir: Path) -> Iterator[FaultyServer]:
    """A server with the changelogs ``one`` and ``two``, each with one version."""
    with FaultyServer.start(data_dir) as started:
        with closing(flight.connect(started.location)) as client:
            for name in ("one", "two"):
                create(client, name)
                assert put(client, name, 1) == 1
        yield started


def create(client: flight.FlightClient, name: str) -> None:
    schema = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    action(client, "create", dataset=name, kind="changelog", schema=schema)


def put(client: flight.FlightClient, name: str, key: int) -> int:
    writer, reader = client.do_put(
        flight.FlightDescriptor.for_command(json.dumps({"dataset": name})), SCHEMA, OPTIONS
    )
    with writer:
        writer.write_table(pa.table([[key], [0]], schema=SCHEMA))
        writer.done_writing()
        answer = reader.read()
    assert answer is not None
    return int(json.loads(answer.to_pybytes())["version"])


def keys(client: flight.FlightClient, name: str) -> list[int]:
    found = client.do_get(flight.Ticket(name.encode()), OPTIONS).read_all().column("key").to_pylist()
    return sorted(key for key in found if key is not None)


def log_of(data_dir: Path, name: str) -> Path:
    (log,) = data_dir.glob(f"changelogs/{name}-*/log-*")
    return log


def test_a_damaged_changelog_is_set_aside_and_named_and_the_others_are_served(
    server: FaultyServer, data_dir: Path
) -> None:
    server.kill()
    log = log_of(data_dir, "one")
    data = bytearray(log.read_bytes())
    data[60] ^= 1
    log.write_bytes(data)
    with FaultyServer.start(data_dir) as again, closing(flight.connect(again.location)) as client:
        assert keys(client, "two") == [1]
        assert put(client, "two", 2) == 2
        (note,) = action(client, "statistics")["quarantine"]
        assert (note["dataset"], Path(note["path"]).parent) == ("one", data_dir / "quarantine")
        assert "log-000001 is damaged at byte 0" in note["reason"]
        with pytest.raises(flight.FlightError, match=f"data loss.*'one'.*{re.escape(note['path'])}"):
            keys(client, "one")
        create(client, "one")
        assert keys(client, "one") == []
        assert put(client, "one", 5) == 1
    with FaultyServer.start(data_dir) as again, closing(flight.connect(again.location)) as client:
        assert (keys(client, "one"), keys(client, "two")) == ([5], [1, 2])


def test_an_io_error_at_the_start_ends_it_and_changes_nothing(server: FaultyServer, data_dir: Path) -> None:
    server.kill()
    before = {path: path.read_bytes() for path in data_dir.glob("changelogs/*/*")}
    with pytest.raises(RuntimeError, match="Input/output error"):
        FaultyServer.start(data_dir, fail={"pread": "EIO"})
    assert {path: path.read_bytes() for path in data_dir.glob("changelogs/*/*")} == before
    with FaultyServer.start(data_dir) as again, closing(flight.connect(again.location)) as client:
        assert (keys(client, "one"), keys(client, "two")) == ([1], [1])


@pytest.mark.parametrize("failure", [{"pwrite": "ENOSPC"}, {"fdatasync": "EIO"}, {"pwrite": "EIO"}])
def test_a_put_that_the_disk_refuses_is_unavailable_and_works_when_the_disk_does(
    failure: dict[str, str], server: FaultyServer, data_dir: Path
) -> None:
    with closing(flight.connect(server.location)) as client:
        server.fail(**failure)
        for _ in range(2):
            with pytest.raises(flight.FlightUnavailableError, match="write it again"):
                put(client, "one", 7)
        with pytest.raises(flight.FlightUnavailableError, match="ask again"):
            action(client, "hold", dataset="one", hold="reader")
        assert keys(client, "one") == [1]
        server.heal()
        assert put(client, "one", 8) == 2
        assert keys(client, "one") == [1, 8]
        assert action(client, "hold", dataset="one", hold="reader")["version"] >= 1
    server.kill()
    with FaultyServer.start(data_dir) as again, closing(flight.connect(again.location)) as client:
        assert (keys(client, "one"), keys(client, "two")) == ([1, 8], [1])
        assert put(client, "one", 9) == 3
