"""What a sweep removes, and what it never touches, with real locks, real processes that race, and a real server."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flight_server.host import directories
from flight_server.host.directories import FORMAT, HostDirectory, Owner, owner_of, remove_ended, sweep
from spark_client.hosts.host_files import Copies, HostFiles, PartFile
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

SPAWN = multiprocessing.get_context("spawn")
LONG_AGO = (1, 1)


@pytest.fixture
def directory(tmp_path: Path) -> HostDirectory:
    found = HostDirectory(tmp_path)
    found.prepare()
    return found


def left_there(directory: HostDirectory, name: str, opened: tuple[int, int] | None = None) -> Path:
    path = directory.path / name
    path.write_text("content")
    if opened:
        os.utime(path, opened)
    return path


def test_files_of_an_application_that_ended_go_at_once_and_its_owner_file_with_the_last(
    directory: HostDirectory, tmp_path: Path
) -> None:
    owner, file = left_there(directory, "dead.owner"), left_there(directory, "dead-a.arrows")
    part, lock = left_there(directory, "dead-b.7.4.part"), left_there(directory, "dead-a.lock")
    held = HostFiles(Copies((str(tmp_path),))).open("dead-a")
    assert held is not None
    assert set(sweep([tmp_path])) == {part, lock}, "a process maps the file"
    assert owner_of([tmp_path], "dead") is Owner.ENDED
    held.close()
    assert set(sweep([tmp_path])) == {file, owner}
    assert directory.entries() == []


def test_files_of_an_application_that_lives_stay_however_old_they_are(
    directory: HostDirectory, tmp_path: Path
) -> None:
    file = left_there(directory, "alive-a.arrows", LONG_AGO)
    end = HostFiles(Copies((str(tmp_path),))).own("alive")
    assert owner_of([tmp_path], "alive") is Owner.LIVES
    assert sweep([tmp_path], idle_seconds=0.0) == []
    end()
    assert owner_of([tmp_path], "alive") is Owner.ELSEWHERE
    assert sweep([tmp_path]) == [file]


def test_files_stay_while_it_cannot_be_told_whether_their_driver_lives(
    directory: HostDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_there(directory, "alive-a.arrows", LONG_AGO)
    end = HostFiles(Copies((str(tmp_path),))).own("alive")
    open_regular = directories.open_regular

    def without_descriptors(path: Path) -> int:
        if path.suffix == ".owner":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_regular(path)

    monkeypatch.setattr(directories, "open_regular", without_descriptors)
    assert sweep([tmp_path], ended="alive") == []
    assert owner_of([tmp_path], "alive") is Owner.LIVES
    end()


@pytest.mark.parametrize("kind", ["none", "directory", "link", "pipe", "base"])
def test_what_is_no_file_of_this_user_is_no_owner(
    directory: HostDirectory, tmp_path: Path, kind: str
) -> None:
    path, base = directory.path / "far.owner", tmp_path
    match kind:
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to(directory.path / FORMAT)
        case "pipe":
            os.mkfifo(path)
        case "base":
            base = directory.path / FORMAT
    assert owner_of([base], "far") is Owner.ELSEWHERE


def test_without_a_driver_on_the_host_files_go_when_they_were_not_opened_for_a_while(
    directory: HostDirectory, tmp_path: Path
) -> None:
    idle, recent = (left_there(directory, name) for name in ("far-a.arrows", "far-b.arrows"))
    os.utime(idle, LONG_AGO)
    assert sweep([tmp_path]) == [idle]
    assert recent.exists()


def test_a_server_that_ends_with_its_application_removes_the_copies_as_soon_as_no_process_holds_them(
    directory: HostDirectory, tmp_path: Path
) -> None:
    file, other = (left_there(directory, name) for name in ("far-a.arrows", "other-a.arrows"))
    lock = left_there(directory, "far-a.lock")
    files = HostFiles(Copies((str(tmp_path),)))
    held = files.open("far-a")
    assert held is not None
    server = ServerProcess.start(host_file_dirs=tmp_path, copies_of="far")
    server.signal(signal.SIGTERM)
    eventually(lock.exists, expected=False)
    assert file.exists()
    held.close()
    assert server.wait() == 0
    server.close()
    assert not file.exists()
    assert other.exists()


def test_copies_stay_where_the_applications_driver_lives_or_a_process_holds_them_for_long(
    directory: HostDirectory, tmp_path: Path
) -> None:
    left_there(directory, "far-a.arrows")
    files = HostFiles(Copies((str(tmp_path),)))
    end = files.own("far")
    remove_ended([tmp_path], "far", 0.0)
    end()
    held = files.open("far-a")
    assert held is not None
    remove_ended([tmp_path], "far", 0.0)
    assert (directory.path / "far-a.arrows").exists()
    held.close()


def test_a_base_that_is_named_twice_is_swept(directory: HostDirectory, tmp_path: Path) -> None:
    idle = left_there(directory, "far-a.arrows", LONG_AGO)
    assert sweep([tmp_path, tmp_path]) == [idle]


def test_what_is_foreign_is_neither_opened_nor_removed(directory: HostDirectory, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("another's")
    os.utime(outside, LONG_AGO)
    foreign = [
        directory.path / name
        for name in ("a-b.arrows", "a-c.arrows", "a-d.arrows", "Notes.arrows", "x.7.part")
    ]
    foreign[0].symlink_to(outside)
    os.mkfifo(foreign[1])
    foreign[2].mkdir()
    for path in foreign[3:]:
        path.write_text("another's")
    if os.getuid() == 0:
        foreign.append(left_there(directory, "a-e.arrows"))
        os.chown(foreign[-1], 12345, 12345)
    for path in foreign:
        os.utime(path, LONG_AGO, follow_symlinks=False)
    assert sweep([tmp_path], idle_seconds=0.0) == []
    assert all(path.is_symlink() or path.exists() for path in foreign)
    assert outside.read_text() == "another's"
    files = HostFiles(Copies((str(tmp_path),)))
    assert [files.open(key) for key in ("a-b", "a-c", "a-d")] == [None, None, None]


def test_a_directory_that_is_not_ours_is_refused_and_nothing_in_it_is_touched(tmp_path: Path) -> None:
    directory = HostDirectory(tmp_path)
    directory.path.mkdir(mode=0o700)
    file = left_there(directory, "a-b.arrows", LONG_AGO)
    with pytest.raises(PermissionError, match=f"has no file {FORMAT}"):
        directory.prepare()
    assert sweep([tmp_path], idle_seconds=0.0) == []
    assert file.exists()
    directory.path.chmod(0o755)
    (directory.path / FORMAT).touch()
    assert sweep([tmp_path], idle_seconds=0.0) == [], "others may look into it"


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert sweep([tmp_path, tmp_path / "no"]) == []
    assert list(tmp_path.iterdir()) == []


def _sweep(base: Path, barrier: Any, ended: Any, removed: Any) -> None:
    barrier.wait(100)
    count = 0
    while not ended.wait(0.004):  # so that the fetchers, which poll, get the lock of the names soon
        count += len(sweep([base], idle_seconds=-1.0))
    removed.put(count)


def _write(part: PartFile) -> None:
    part.write(b"x" * 1000)


def _fetch(base: Path, barrier: Any, wrong: Any, times: int) -> None:
    files = HostFiles(Copies((str(base),)))
    barrier.wait(100)
    for number in range(times):
        file = files.open_or_make(f"a-{number % 3}", 10, _write, 60)
        if file.path.read_text() != "x" * 1000 or not file.is_current:
            wrong.put(str(file.path))
        file.close()


@pytest.mark.parametrize(("fetching", "times"), [(1, 60), pytest.param(2, 400, marks=pytest.mark.long)])
def test_two_sweepers_never_remove_what_a_fetcher_holds(tmp_path: Path, fetching: int, times: int) -> None:
    barrier, ended, wrong, removed = SPAWN.Barrier(2 + fetching), SPAWN.Event(), SPAWN.Queue(), SPAWN.Queue()
    sweepers = [SPAWN.Process(target=_sweep, args=(tmp_path, barrier, ended, removed)) for _ in range(2)]
    fetchers = [SPAWN.Process(target=_fetch, args=(tmp_path, barrier, wrong, times)) for _ in range(fetching)]
    for process in (*sweepers, *fetchers):
        process.start()
    for process in fetchers:
        process.join(100)
    ended.set()
    assert removed.get(timeout=100) + removed.get(timeout=100) > 0, "the sweepers were never in time"
    for process in sweepers:
        process.join(100)
    assert [process.exitcode for process in (*sweepers, *fetchers)] == [0] * (2 + fetching)
    assert wrong.empty()


def test_a_server_sweeps_its_host(
    directory: HostDirectory, tmp_path: Path, flight_server_process: Callable[..., ServerProcess]
) -> None:
    left_there(directory, "dead.owner")
    file, far = left_there(directory, "dead-a.arrows"), left_there(directory, "far-a.arrows")
    flight_server_process(host_file_dirs=tmp_path)
    eventually(file.exists, False)
    assert far.exists()
