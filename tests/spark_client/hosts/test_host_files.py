"""One complete file per host, with real processes that race, die and are killed half way."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flight_server.protocol.errors import Unavailable
from spark_client.hosts import host_files
from spark_client.hosts.host_files import Copies, HostFile, HostFiles, PartFile
from tests.support.host_copies import directory, make, names, never, within, writer
from tests.support.rooms import ROOT

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def files(bases: tuple[Path, ...]) -> HostFiles:
    return HostFiles(within(bases))


def _race(bases: tuple[Path, ...], log: Path, barrier: Any, inodes: Any) -> None:
    def write(part: PartFile) -> None:
        with log.open("a") as file:
            file.write("made\n")
        part.write(b"x" * 100_000)

    barrier.wait(timeout=100)
    file = HostFiles(within(bases)).open_or_make("k", 10, write, deadline_seconds=60)
    inodes.put((file.path.stat().st_ino, file.path.read_text() == "x" * 100_000))
    barrier.wait(timeout=100)
    file.close()


def test_of_many_processes_that_race_one_makes_the_file_and_all_share_it(
    bases: tuple[Path, ...], tmp_path: Path
) -> None:
    count = 3
    barrier, inodes, log = SPAWN.Barrier(count), SPAWN.Queue(), tmp_path / "log"
    processes = [SPAWN.Process(target=_race, args=(bases, log, barrier, inodes)) for _ in range(count)]
    for process in processes:
        process.start()
    found = {inodes.get(timeout=100) for _ in processes}
    for process in processes:
        process.join(timeout=30)
        assert process.exitcode == 0
    assert len(found) == 1
    assert found.pop()[1]
    assert log.read_text() == "made\n"


HANGING_WRITER = """
import sys, time
from pathlib import Path
from spark_client.hosts.host_files import Copies, HostFiles
def write(part):
    part.path.write_text("half")
    print("half", flush=True)
    time.sleep(600)
HostFiles(Copies(tuple(sys.argv[1:]))).open_or_make("k", 10, write, 5)
"""


@pytest.fixture
def hanging_writer(bases: tuple[Path, ...]) -> Iterator[subprocess.Popen[str]]:
    """A process that has written half of the file and never goes on."""
    command = [sys.executable, "-c", HANGING_WRITER, *map(str, bases)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        yield process
        process.kill()


def test_a_writer_killed_half_way_is_succeeded_by_the_next_process(
    files: HostFiles, bases: tuple[Path, ...], hanging_writer: subprocess.Popen[str], opened: list[HostFile]
) -> None:
    assert names(bases, ".part") == [f"k.{hanging_writer.pid}.10.part"]
    hanging_writer.send_signal(signal.SIGKILL)
    hanging_writer.wait(timeout=10)
    opened.append(make(files, "k"))
    assert opened[0].path.read_text() == "content"
    assert names(bases, ".part") == []


def test_waiting_for_a_writer_ends_at_the_deadline_and_names_it(
    files: HostFiles, bases: tuple[Path, ...], hanging_writer: subprocess.Popen[str]
) -> None:
    with pytest.raises(Unavailable, match=f"id {hanging_writer.pid}"):
        files.open_or_make("k", 10, never, deadline_seconds=0.1)
    files.sweep()
    assert names(bases, ".part") == [f"k.{hanging_writer.pid}.10.part"], (
        "a living writer's part is not collected"
    )


def test_a_part_whose_writer_is_gone_is_collected_under_any_key(
    files: HostFiles, bases: tuple[Path, ...], opened: list[HostFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.append(make(files, "other"))
    (directory(bases[0]) / "dead.1.4.part").write_text("half")
    opened.append(make(files, "soon"))
    assert names(bases, ".part") == ["dead.1.4.part"]
    monkeypatch.setattr(host_files, "SWEEP_SECONDS", 0.0)
    opened.append(make(files, "k"))
    assert names(bases, ".part") == []


def test_a_part_whose_writer_is_gone_takes_no_room(tmp_path: Path, opened: list[HostFile]) -> None:
    few = HostFiles(Copies(dirs=(str(tmp_path),), limit_bytes=100))
    opened.append(make(few, "k"))
    (directory(tmp_path) / "dead.1.95.part").write_text("half")
    opened.append(make(few, "soon"))
    assert names((tmp_path,), ".part") == []


def test_a_writer_that_raises_leaves_nothing_and_the_next_one_makes_the_file(
    files: HostFiles, bases: tuple[Path, ...], opened: list[HostFile]
) -> None:
    def fail(part: PartFile) -> None:
        part.write(b"half")
        raise RuntimeError("the server said no")

    with pytest.raises(RuntimeError, match="the server said no"):
        make(files, "k", fail)
    assert names(bases, ".part") == names(bases, ".arrows") == []
    opened.append(make(files, "k"))


def test_a_base_without_room_is_passed_over(
    files: HostFiles, bases: tuple[Path, ...], opened: list[HostFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=host_files.MARGIN_BYTES + 99, total=1 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    opened.append(make(files, "large", size_bytes=100))
    opened.append(make(files, "small", size_bytes=99))
    assert [file.path.parent for file in opened] == [directory(bases[1]), directory(bases[0])]
    again = files.open("large")
    assert again is not None
    opened.append(again)


def test_a_base_that_turns_out_to_be_full_is_given_up_for_the_next(
    files: HostFiles, bases: tuple[Path, ...], opened: list[HostFile]
) -> None:
    def write(part: PartFile) -> None:
        part.write(b"content")
        if part.path.is_relative_to(bases[0]):
            raise OSError(errno.ENOSPC, "No space left on device")

    opened.append(make(files, "k", write))
    assert opened[0].path.is_relative_to(bases[1])
    assert names(bases, ".part") == []


def age(path: Path) -> None:
    os.utime(path, (1, 1))


def test_idle_files_are_collected_and_mapped_or_recent_ones_are_not(
    files: HostFiles, bases: tuple[Path, ...], opened: list[HostFile]
) -> None:
    for key in ("idle", "recent", "mapped"):
        file = make(files, key)
        if key == "mapped":
            opened.append(file)
        else:
            file.close()
        if key != "recent":
            age(file.path)
            age(directory(bases[0]) / f"{key}.lock")
    files.sweep()
    assert names(bases, ".arrows") == ["mapped.arrows", "recent.arrows"]
    assert names(bases, ".lock") == ["recent.lock"]


def test_opening_a_file_makes_it_recent(
    files: HostFiles, bases: tuple[Path, ...], opened: list[HostFile]
) -> None:
    file = make(files, "k")
    file.close()
    age(file.path)
    opened.append(make(files, "k", never))
    opened.pop().close()
    files.sweep()
    assert names(bases, ".arrows") == ["k.arrows"]


def test_a_removed_file_stays_readable_for_those_who_have_it(
    files: HostFiles, opened: list[HostFile]
) -> None:
    opened.append(make(files, "k"))
    with opened[0].path.open() as reader:
        assert files.remove("k")
        assert not files.remove("k")
        assert not opened[0].is_current
        assert reader.read() == "content"
    opened.append(make(files, "k", writer("new")))
    assert opened[1].is_current
    assert opened[1].path.read_text() == "new"


def test_a_directory_that_others_can_write_to_is_refused(files: HostFiles, bases: tuple[Path, ...]) -> None:
    directory(bases[0]).mkdir(mode=0o777)
    directory(bases[0]).chmod(0o777)
    with pytest.raises(PermissionError, match="this user alone"):
        make(files, "k")


def test_a_directory_that_is_a_link_is_refused(
    files: HostFiles, bases: tuple[Path, ...], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    directory(bases[0]).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="this user alone"):
        make(files, "k")
