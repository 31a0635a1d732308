"""The tables that a process has mapped: shared by all who ask, and forgotten when none of them is left."""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_client import Broadcast, Copies, ShuffleClient
from spark_client.broadcast.broadcast_copies import mapped
from spark_client.hosts import HostFiles, open_files
from tests.support.broadcast_copies import hosts_of
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

TABLE = pa.table({"id": pa.array(range(1000), pa.int64())})


@pytest.fixture
def client(
    empty_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ShuffleClient]:
    monkeypatch.setattr(open_files, "KEEP_SECONDS", 0.0)
    monkeypatch.setattr(open_files, "_POLL_SECONDS", 0.02)
    copies = Copies((str(tmp_path),), limit_bytes=12_000)  # for one table
    with ShuffleClient(empty_server.location, copies=copies) as found:
        yield found


def files(base: Path) -> list[str]:
    return sorted(path.stem for path in base.glob("*/*.arrows"))


def in_a_task(shared: Broadcast) -> Broadcast:
    """The object that a task gets."""
    found = pickle.loads(pickle.dumps(shared))
    assert isinstance(found, Broadcast)
    return found


def is_held(shared: Broadcast) -> bool:
    return shared._content.key in mapped._open


def test_all_objects_of_a_broadcast_have_one_table_while_one_of_them_lives(client: ShuffleClient) -> None:
    shared = client.broadcast(TABLE)
    one, two = in_a_task(shared), in_a_task(shared)
    table = one.table()
    assert two.table() is table
    del one
    gc.collect()
    time.sleep(0.2)
    assert two.value is table, "an object that has asked still lives"


def test_a_table_without_users_makes_room_for_another(client: ShuffleClient, tmp_path: Path) -> None:
    first, second = client.broadcast(TABLE), client.broadcast(TABLE)
    task = in_a_task(first)
    assert task.table().equals(TABLE)
    del task
    gc.collect()
    assert second.table().equals(TABLE), "it waits until the first one's file is free"
    assert files(tmp_path) == [second._content.key]
    eventually(lambda: is_held(first), expected=False)


def test_a_table_that_a_function_keeps_stays_readable_and_its_file_stays(
    client: ShuffleClient, tmp_path: Path
) -> None:
    shared = client.broadcast(TABLE)
    table = in_a_task(shared).table()
    gc.collect()
    eventually(lambda: is_held(shared), expected=False)
    files_here = HostFiles(shared._content.copies)
    files_here.sweep()
    with pytest.raises(Exception, match="has no room among the copies"):
        files_here._make(shared._content.application + "-b", 11_000, lambda part: None)
    assert table.equals(TABLE)
    assert files(tmp_path) == [shared._content.key]


def test_a_copy_that_was_withdrawn_while_it_was_used_goes_with_its_last_user(
    client: ShuffleClient, tmp_path: Path
) -> None:
    shared = client.broadcast(TABLE)
    task = in_a_task(shared)
    assert task.table().equals(TABLE)
    # Another host withdraws it: here nothing is removed yet.
    mapped._open[shared._content.key].thing[0].source.server.action(
        "copies",
        {
            "verb": "withdraw",
            "dataset": shared._content.source.dataset,
            "generation": shared._content.source.generation,
        },
    )
    assert task.table().equals(TABLE)
    assert files(tmp_path) == [shared._content.key]
    del task
    gc.collect()
    eventually(lambda: bool(files(tmp_path)), expected=False)
    eventually(lambda: any(hosts_of(shared)), expected=False)
