"""A data directory that is removed, moved or replaced while a server uses it: nothing is acknowledged any more."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.storage import DataDir
from tests.support import changelogs
from tests.support.durable import action, get, names, put, put_attempt, table
from tests.support.faulty_disk import FaultyServer


def remove(path: Path) -> None:
    shutil.rmtree(path)


def empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def unlock(path: Path) -> None:
    (path / "lock").unlink()


def replace_lock(path: Path) -> None:
    (path / "lock").unlink()
    (path / "lock").touch()


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[DataDir]:
    found = DataDir.claim(tmp_path / "data")
    yield found
    found.close()


@pytest.mark.parametrize("loss", [remove, empty, move, unlock, replace_lock])
def test_a_directory_whose_lock_is_gone_is_not_held(data_dir: DataDir, loss: Callable[[Path], None]) -> None:
    assert data_dir.held()
    loss(data_dir.path)
    assert not data_dir.held()


def test_a_closed_directory_is_not_held(data_dir: DataDir) -> None:
    data_dir.close()
    assert not data_dir.held()


@pytest.mark.parametrize("loss", [remove, unlock])
def test_nothing_durable_is_acknowledged_and_the_next_start_is_fine(
    tmp_path: Path, loss: Callable[[Path], None]
) -> None:
    path = tmp_path / "data"
    with (
        FaultyServer.start(path, budget_deadline_seconds=0.5) as server,
        flight.connect(server.location) as client,
    ):
        action(client, "create", dataset="before", durable=True)
        put(client, table(10), dataset="before")
        for name in ("put", "open"):
            action(client, "create", dataset=name, durable=True)
        changelogs.create(client, "changes", table().schema)
        loss(path)
        with pytest.raises(flight.FlightUnavailableError, match=r"removed or replaced .* restart the server"):
            put(client, table(10), dataset="put")
        action(client, "create", dataset="d", kind="shuffle", durable=True)
        put_attempt(client, "d", {0: table(10)})
        with pytest.raises(flight.FlightUnavailableError, match="removed or replaced"):
            action(client, "seal", dataset="d", attempts={"0": "1"})
        with pytest.raises(flight.FlightUnavailableError, match="removed or replaced"):
            changelogs.create(client, "late", table().schema)
        with pytest.raises((flight.FlightUnavailableError, pa.ArrowException)):
            changelogs.put(client, "changes", table(10))
        put(client, table(10), dataset="in-memory")
        assert get(client, "in-memory").num_rows == 10
        server.kill()
    with FaultyServer.start(path) as server, flight.connect(server.location) as client:
        assert names(client) == ({"before", "changes"} if loss is unlock else set())
