"""What a driver keeps is renewed for as long as it lives and dropped by its close, whatever else fails."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_client import Copies, ShuffleClient
from spark_client.connection import RemoteServer
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

TABLE = pa.table({"id": [1, 2, 3]})
LEASE_SECONDS = 2.4
"""A driver renews each third of it."""
DEADLINE_SECONDS = 20.0


@pytest.fixture
def client(empty_server: ServerProcess, tmp_path: Path) -> Iterator[ShuffleClient]:
    """A client; once it is closed its server has no dataset of it."""
    copies = Copies((str(tmp_path),))
    with ShuffleClient(empty_server.location, copies=copies, lease_seconds=LEASE_SECONDS) as found:
        yield found
    with ShuffleClient(empty_server.location) as after:
        assert after.datasets() == []


class Renewals:
    """The renewals of this process: what was renewed since it was cleared, and what those that follow raise, after the
    server has answered, so that no lease ends meanwhile.
    """

    def __init__(self, action: Callable[..., Any]) -> None:
        self._action = action
        self.renewed: set[str] = set()
        self.next_raise: BaseException | None = None
        self.always_raises = ""

    def call(self, server: RemoteServer, name: str, body: Any = b"", *how: Any, **named: Any) -> Any:
        answer = self._action(server, name, body, *how, **named)
        if name == "renew":
            error, self.next_raise = self.next_raise, None
            if error is not None:
                raise error
            if str(body) == self.always_raises:
                raise RuntimeError("can't start new thread")
            self.renewed.add(str(body))
        return answer

    def wait_for(self, datasets: int) -> None:
        """Return when so many have been renewed from now on."""
        self.renewed.clear()
        eventually(lambda: len(self.renewed), datasets, DEADLINE_SECONDS)

    def wait_for_error(self, error: BaseException) -> None:
        """Return when a renewal has raised it."""
        self.next_raise = error
        eventually(lambda: self.next_raise, None, DEADLINE_SECONDS)


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    found = Renewals(RemoteServer.action)

    def action(server: RemoteServer, *how: Any, **named: Any) -> Any:
        return found.call(server, *how, **named)

    monkeypatch.setattr(RemoteServer, "action", action)
    return found


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        pytest.param(MemoryError(), marks=pytest.mark.long),
        pytest.param(OSError(errno.EMFILE, "Too many open files"), marks=pytest.mark.long),
    ],
    ids=repr,
)
def test_renewals_go_on_after_one_that_raised_what_no_call_should(
    client: ShuffleClient, renewals: Renewals, error: Exception
) -> None:
    shared = [client.broadcast(TABLE) for _ in range(2)]
    renewals.wait_for_error(error)
    renewals.wait_for(2)
    assert [each.table().num_rows for each in shared] == [3, 3]


@pytest.mark.long
def test_a_renewal_that_always_raises_stops_none_of_the_others(
    client: ShuffleClient, renewals: Renewals
) -> None:
    for _ in range(3):
        client.broadcast(TABLE)
    renewals.wait_for(3)
    for renewal in [*renewals.renewed]:
        renewals.always_raises = renewal
        renewals.wait_for(2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_renewals_that_has_ended_is_replaced(client: ShuffleClient, renewals: Renewals) -> None:
    shared = [client.broadcast(TABLE)]
    before = threading.active_count()
    renewals.wait_for_error(SystemExit())  # which ends a thread without a word
    shared.append(client.broadcast(TABLE))
    renewals.wait_for(2)
    assert threading.active_count() <= before
    assert shared[0].table() == shared[1].table()


def test_renewals_begin_with_a_later_dataset_if_their_thread_could_not_be_started(
    client: ShuffleClient, renewals: Renewals, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def refusing(thread: threading.Thread) -> None:
        if "lease" not in thread.name:
            start(thread)
            return
        refused.append(thread.name)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refusing)
        with suppress(RuntimeError):
            client.broadcast(TABLE)
    assert refused
    kept = client.broadcast(TABLE)
    renewals.wait_for(len(client.datasets()))
    assert kept.table().num_rows == 3


def test_a_close_drops_every_dataset_although_a_copy_of_a_host_cannot_be_forgotten(
    empty_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = ShuffleClient(empty_server.location, copies=Copies((str(tmp_path),)))
    for shared in [closed.broadcast(TABLE) for _ in range(3)]:
        assert shared.table().num_rows == 3
    action, asked = RemoteServer.action, list[str]()

    def failing(server: RemoteServer, name: str, *how: Any, **named: Any) -> Any:
        if name in ("drop", "renew"):
            return action(server, name, *how, **named)
        asked.append(name)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(RemoteServer, "action", failing)
        closed.close()
    assert asked, "the close tells the server of this host's copies"
    with ShuffleClient(empty_server.location) as after:
        assert after.datasets() == []
    closed.close()


def test_a_close_drops_every_dataset_although_the_drivers_file_of_its_host_stays(
    empty_server: ServerProcess, tmp_path: Path
) -> None:
    closed = ShuffleClient(empty_server.location, copies=Copies((str(tmp_path),)))
    for _ in range(2):
        closed.broadcast(TABLE)
    (owner,) = tmp_path.glob("*/*.owner")
    owner.unlink()
    owner.mkdir()  # which ``unlink`` refuses, for root, too
    closed.close()
    with ShuffleClient(empty_server.location) as after:
        assert after.datasets() == []
    closed.close()
