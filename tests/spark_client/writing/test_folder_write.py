"""Writes below one path take turns; what one has left whose driver died, at any call, the next one settles."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from spark_client.connection import TimedOut
from spark_client.writing import folder_write
from spark_client.writing.folder_write import HIDDEN, LEASE_SECONDS, FolderWrite, Journal
from spark_client.writing.storage_place import Place


def write_at(path: Path, settled_ids: list[str] | None = None, kind: str = "parquet") -> FolderWrite:
    def settle(write: str, journal: Journal | None, _: bool) -> None:
        if settled_ids is not None:
            settled_ids.append(write if journal is None else f"{write} by its journal")

    return FolderWrite(Place(fs.LocalFileSystem(), str(path)), settle, kind)


def die(write: FolderWrite) -> None:
    """As if its process had ended."""
    write._keeper.close()
    folder_write._going_on.discard(write.id)


@contextmanager
def of_another_host(monkeypatch: pytest.MonkeyPatch, seconds_ago: float) -> Iterator[None]:
    """What begins in the block is of a driver on another host, so long ago."""
    now = folder_write.time.time()
    with monkeypatch.context() as other:
        other.setattr(folder_write, "_machine", lambda: "another")
        other.setattr(folder_write.time, "time", lambda: now - seconds_ago)
        yield


@pytest.mark.parametrize("writes", [24, pytest.param(200, marks=pytest.mark.long)])
def test_turns_of_many_writes_are_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Also where listings show any part of what changes meanwhile."""
    at_once, most, lock = 0, 0, threading.Lock()
    chance, alive = random.Random(7), list[str]()
    names = Place.names

    def torn(place: Place) -> list[str]:
        before = {*names(place)}
        threading.Event().wait(chance.random() * 0.002)
        after = {*names(place)}
        return [*(before & after), *(name for name in before ^ after if chance.random() < 0.5)]

    monkeypatch.setattr(Place, "names", torn)

    def settle(write: str, _: Journal | None, __: bool) -> None:
        if write in folder_write._going_on:
            alive.append(write)

    def take_turn(_: int) -> None:
        nonlocal at_once, most
        with FolderWrite(Place(fs.LocalFileSystem(), str(tmp_path)), settle, "parquet") as write:
            write.take_turn()
            with lock:
                at_once += 1
                most = max(most, at_once)
            threading.Event().wait(0.001)
            with lock:
                at_once -= 1

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(take_turn, range(writes)))
    assert most == 1
    assert alive == [], "none is settled before its end"
    assert list(tmp_path.iterdir()) == []


def test_a_dead_write_is_settled_and_removed_by_the_next_one(tmp_path: Path) -> None:
    dead, settled_ids = write_at(tmp_path).__enter__(), list[str]()
    dead.place.mark(f"{dead.folder}/file")
    die(dead)
    with write_at(tmp_path, settled_ids):
        assert settled_ids == [dead.id]
        assert not any(dead.id in path.name for path in (tmp_path / HIDDEN).iterdir())


def test_a_live_write_is_left_alone(tmp_path: Path) -> None:
    settled_ids: list[str] = []
    with write_at(tmp_path) as live, write_at(tmp_path, settled_ids) as other:
        assert live.place.has(f"{HIDDEN}/{live.id}.lives-{live._lives_at}")
    assert settled_ids == [other.id]


@pytest.mark.parametrize("begun", [False, True])
def test_a_dead_write_of_another_kind_is_left_to_its_own(tmp_path: Path, begun: bool) -> None:
    dead = write_at(tmp_path, kind="delta").__enter__()
    dead.take_turn()
    if begun:
        dead.begin_commit(Journal({}))
    dead.place.mark(f"{dead.folder}/file")
    die(dead)
    settled_ids: list[str] = []
    with write_at(tmp_path, settled_ids) as write:
        write.take_turn()
        assert dead.place.has(f"{dead.folder}/file")
        assert settled_ids == []
    with write_at(tmp_path, settled_ids, "delta") as own:
        assert settled_ids == [write.id, f"{dead.id} by its journal" if begun else dead.id]
    assert own.place.names() == []


def test_files_without_an_owner_are_removed(tmp_path: Path) -> None:
    (tmp_path / HIDDEN / ("1234" * 8)).mkdir(parents=True)
    (tmp_path / HIDDEN / ("1234" * 8) / "of-a-task-that-outlived-its-job").touch()
    with write_at(tmp_path):
        assert not (tmp_path / HIDDEN / ("1234" * 8)).exists()


STRAY = (
    ".DS_Store",
    ".nfs00000012",
    "backup.txt",
    "backup",
    "x.owner-1-2-3-4",
    f"{'0' * 31}.commit",
    f"{'G' * 32}.lives-1",
)


def test_files_that_are_of_no_write_stay(tmp_path: Path) -> None:
    (tmp_path / HIDDEN).mkdir()
    for name in STRAY:
        (tmp_path / HIDDEN / name).touch()
    settled_ids: list[str] = []
    with write_at(tmp_path, settled_ids) as write:
        write.take_turn()
    assert settled_ids == [write.id]
    assert {path.name for path in (tmp_path / HIDDEN).iterdir()} == {*STRAY}


@pytest.mark.parametrize("name", ["", ".", "..", "a/../b", "a//b", "a/"])
def test_only_a_folder_in_the_place_is_deleted(tmp_path: Path, name: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(ValueError, match="is no folder in"):
        Place(fs.LocalFileSystem(), str(tmp_path)).delete_folder(name)
    assert (tmp_path / "a" / "b").exists()


@pytest.mark.parametrize(("seconds_ago", "lives"), [(LEASE_SECONDS - 10, True), (LEASE_SECONDS + 10, False)])
def test_a_driver_on_another_host_lives_as_long_as_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_ago: float, lives: bool
) -> None:
    with of_another_host(monkeypatch, seconds_ago):
        other = write_at(tmp_path).__enter__()
    die(other)
    with write_at(tmp_path):
        assert any(other.id in path.name for path in (tmp_path / HIDDEN).iterdir()) == lives


def test_the_lease_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with write_at(tmp_path) as write:
        monkeypatch.setattr(folder_write.time, "time", lambda: 12345.0)
        write._renew()
        assert [path.name for path in (tmp_path / HIDDEN).glob("*.lives-*")] == [f"{write.id}.lives-12345"]


def test_a_turn_waits_for_a_live_write_and_goes_on_when_its_driver_dies(tmp_path: Path) -> None:
    first, settled_ids = write_at(tmp_path).__enter__(), list[str]()
    first.take_turn()
    first.begin_commit(Journal({}))
    second = write_at(tmp_path, settled_ids)
    began = threading.Event()

    def wait() -> None:
        with second:
            second.take_turn()
            began.set()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        assert not began.wait(0.1)
        die(first)
        waiting.result()
    assert began.is_set()
    assert settled_ids == [f"{first.id} by its journal", second.id]


def test_a_turn_that_does_not_come_names_the_driver_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_write, "TURN_SECONDS", 0.0)
    with write_at(tmp_path) as first, write_at(tmp_path) as second:
        first.take_turn()
        with pytest.raises(TimedOut, match=r"its driver is process \d+ on .+: end it"):
            second.take_turn()


def test_a_failure_to_remove_what_is_hidden_does_not_fail_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("the store is away")

    with write_at(tmp_path) as write:
        write.place.mark(f"{write.folder}/file")
        monkeypatch.setattr(Place, "delete_folder", fails)
        monkeypatch.setattr(Place, "delete_all", fails)
    assert "the next write to" in caplog.text
    monkeypatch.undo()
    with write_at(tmp_path):
        assert not any(write.id in path.name for path in (tmp_path / HIDDEN).iterdir())
