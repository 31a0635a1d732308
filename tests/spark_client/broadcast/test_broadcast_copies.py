"""What the server knows of a broadcast's copies, and what a host does when its copy is withdrawn."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.protocol import NotFound, Unavailable
from spark_client import Broadcast, Copies, ShuffleClient
from spark_client.broadcast import broadcast_copies
from spark_client.broadcast.content import BroadcastContent
from spark_client.hosts import HostFiles, PartFile
from tests.support.broadcast_copies import hosts_of
from tests.support.server_process import ServerProcess

TABLE = pa.table({"id": pa.array(range(1000), pa.int64())})


@pytest.fixture
def client(empty_server: ServerProcess, tmp_path: Path) -> Iterator[ShuffleClient]:
    with ShuffleClient(empty_server.location, copies=Copies((str(tmp_path / "driver"),))) as found:
        yield found


@pytest.fixture
def mortal(flight_server_process: Callable[..., ServerProcess]) -> ServerProcess:
    """A server of the test's own."""
    return flight_server_process()


@pytest.fixture
def its_client(mortal: ServerProcess, tmp_path: Path) -> Iterator[ShuffleClient]:
    with ShuffleClient(mortal.location, copies=Copies((str(tmp_path / "driver"),))) as found:
        yield found


def on_host(shared: Broadcast, base: Path) -> BroadcastContent:
    """The content as another host has it, whose directory is ``base``."""
    return replace(shared._content, copies=Copies((str(base),)))


def files(base: Path) -> list[str]:
    return sorted(path.stem for path in base.glob("*/*.arrows"))


def test_a_host_is_listed_from_before_its_file_is_there_until_it_has_removed_it(
    client: ShuffleClient, tmp_path: Path
) -> None:
    shared = client.broadcast(TABLE)
    there = on_host(shared, tmp_path / "a")
    listed: list[str] = []

    class Looking(BroadcastContent):
        def fetch(self, part: PartFile) -> None:
            listed.extend(hosts_of(shared)[0])
            broadcast_copies.withdraw(self)
            super().fetch(part)

    broadcast_copies.open_file(Looking(**vars(there))).close()
    place = HostFiles(there.copies).place
    assert listed == [place]
    assert hosts_of(shared) == ({place}, set()), "withdrawn while it was fetched, it was fetched again"
    broadcast_copies.withdraw(there)
    assert hosts_of(shared) == (set(), {place})
    broadcast_copies.remove_here(there)
    broadcast_copies.remove_here(there)
    assert hosts_of(shared) == (set(), set())
    assert files(tmp_path / "a") == []


def test_unpersist_withdraws_all_copies_and_removes_that_of_the_driver(
    client: ShuffleClient, tmp_path: Path
) -> None:
    shared = client.broadcast(TABLE)
    hosts = [on_host(shared, tmp_path / name) for name in "ab"]
    for each in hosts:
        broadcast_copies.open_file(each).close()
    places = {HostFiles(each.copies).place for each in hosts}
    shared.table()
    assert len(hosts_of(shared)[0]) == 3
    shared.unpersist()
    assert hosts_of(shared) == (set(), places)
    broadcast_copies.remove_withdrawn(hosts[0])
    assert files(tmp_path / "a") == []
    assert hosts_of(shared) == (set(), {HostFiles(hosts[1].copies).place})


def test_only_a_withdrawn_copy_is_removed(client: ShuffleClient, tmp_path: Path) -> None:
    shared = client.broadcast(TABLE)
    there = on_host(shared, tmp_path / "a")
    broadcast_copies.open_file(there).close()
    broadcast_copies.remove_withdrawn(there)
    assert files(tmp_path / "a") == [shared._content.key]
    shared.destroy()
    broadcast_copies.remove_withdrawn(there)
    assert files(tmp_path / "a") == [], "its dataset was dropped"


def test_a_copy_whose_server_was_restarted_is_removed(
    its_client: ShuffleClient,
    mortal: ServerProcess,
    flight_server_process: Callable[..., ServerProcess],
    tmp_path: Path,
) -> None:
    there = on_host(its_client.broadcast(TABLE), tmp_path / "a")
    broadcast_copies.open_file(there).close()
    mortal.kill()
    flight_server_process(http_port=0, port=int(mortal.location.rpartition(":")[2]))
    broadcast_copies.remove_withdrawn(there)
    assert files(tmp_path / "a") == []


def test_a_host_removes_what_was_withdrawn_when_it_fetches_another(
    client: ShuffleClient, tmp_path: Path
) -> None:
    first, second, third = (client.broadcast(TABLE) for _ in range(3))
    for shared in (first, second):
        broadcast_copies.open_file(on_host(shared, tmp_path / "a")).close()
    first.unpersist()
    second.destroy()
    broadcast_copies.open_file(on_host(third, tmp_path / "a")).close()
    assert files(tmp_path / "a") == [third._content.key]
    assert not any(hosts_of(first))


def test_directories_of_one_host_that_share_nothing_are_two_places(tmp_path: Path) -> None:
    places: list[str | None] = []
    for name in "ab":
        files_there = HostFiles(Copies((str(tmp_path / name),)))
        assert files_there.place is None
        files_there.own("application")()
        assert files_there.place == HostFiles(Copies((str(tmp_path / name),))).place
        places.append(files_there.place)
    assert places[0] != places[1]


def test_a_server_that_cannot_be_told_leaves_no_file_it_does_not_know(
    its_client: ShuffleClient, mortal: ServerProcess, tmp_path: Path
) -> None:
    shared = its_client.broadcast(TABLE)

    class Losing(BroadcastContent):
        def fetch(self, part: PartFile) -> None:
            super().fetch(part)
            mortal.kill()

    with pytest.raises((Unavailable, NotFound)):
        broadcast_copies.open_file(Losing(**vars(on_host(shared, tmp_path / "a"))))
    assert files(tmp_path / "a") == []
    with contextlib.suppress(Unavailable):
        its_client.close()


def test_a_table_is_waited_for_as_long_as_any_call(
    mortal: ServerProcess, its_client: ShuffleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast_copies, "_CALL_SECONDS", 0.1)
    shared = its_client.broadcast(TABLE)
    for _ in range(8):
        broadcast_copies.remove_withdrawn(shared._content)  # by each of the connections
    os.kill(mortal.pid, signal.SIGSTOP)
    going_on = threading.Timer(0.4, os.kill, (mortal.pid, signal.SIGCONT))
    going_on.start()
    assert shared.table() == TABLE
    going_on.join()
