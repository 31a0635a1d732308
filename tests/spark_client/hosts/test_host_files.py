"""One complete file per host, with real processes that race, die and are killed half way."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flight_server.host import directories
from flight_server.protocol.errors import OutOfBudget, Unavailable
from spark_client.hosts import host_files
from spark_client.hosts.host_files import Copies, HostFile, HostFiles, Part
from tests.support.rooms import ROOT

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def bases(tmp_path: Path) -> tuple[Path, ...]:
    found = (tmp_path / "memory", tmp_path / "disk")
    for base in found:
        base.mkdir()
    return found


@pytest.fixture
def files(bases: tuple[Path, ...]) -> HostFiles:
    return HostFiles(within(bases))


@pytest.fixture
def opened() -> Iterator[list[HostFile]]:
    found: list[HostFile] = []
    yield found
    for file in found:
        file.close()


def writer(text: str = "content") -> Callable[[Part], object]:
    return lambda part: part.write(text.encode())


def never(part: Part) -> None:
    pytest.fail("the file is there already")


def directory(base: Path) -> Path:
    return base / f"flight-shuffle-{os.getuid()}-2"


def names(bases: tuple[Path, ...], suffix: str) -> list[str]:
    found = {path.name for base in bases for path in directory(base).glob(f"*{suffix}")}
    return sorted(found - {"names.lock"})


def within(bases: tuple[Path, ...], limit_bytes: int | None = None) -> Copies:
    return Copies(tuple(map(str, bases)), limit_bytes=limit_bytes)


def make(
    files: HostFiles, key: str, write: Callable[[Part], object] | None = None, size_bytes: int = 10
) -> HostFile:
    return files.open_or_make(key, size_bytes, write or writer(), deadline_seconds=20)


def _race(bases: tuple[Path, ...], log: Path, barrier: Any, inodes: Any) -> None:
    def write(part: Part) -> None:
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
    count = 6
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
    files: HostFiles, bases: tuple[Path, ...], opened: list[HostFile]
) -> None:
    opened.append(make(files, "other"))
    (directory(bases[0]) / "dead.1.4.part").write_text("half")
    opened.append(make(files, "k"))
    assert names(bases, ".part") == []


def test_a_writer_that_raises_leaves_nothing_and_the_next_one_makes_the_file(
    files: HostFiles, bases: tuple[Path, ...], opened: list[HostFile]
) -> None:
    def fail(part: Part) -> None:
        part.write(b"half")
        raise RuntimeError("the server said no")

    with pytest.raises(RuntimeError, match="the server said no"):
        make(files, "k", fail)
    assert names(bases, ".part") == names(bases, ".arrows") == []
    opened.append(make(files, "k"))


def test_a_base_without_room_is_passed_over(
    files: HostFiles, bases: tuple[Path, ...], opened: list[HostFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "_free_bytes", lambda _: host_files.MARGIN_BYTES + 99)
    opened.append(make(files, "large", size_bytes=100))
    opened.append(make(files, "small", size_bytes=99))
    assert [file.path.parent for file in opened] == [directory(bases[1]), directory(bases[0])]
    again = files.open("large")
    assert again is not None
    opened.append(again)


def test_a_base_that_turns_out_to_be_full_is_given_up_for_the_next(
    files: HostFiles, bases: tuple[Path, ...], opened: list[HostFile]
) -> None:
    def write(part: Part) -> None:
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


def test_a_bound_removes_what_was_opened_longest_ago_and_never_what_is_mapped(
    bases: tuple[Path, ...], opened: list[HostFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "ROOM_SECONDS", 0.0)
    files = HostFiles(within(bases[:1], limit_bytes=100))
    for number, key in enumerate(("mapped", "older", "newer"), 1):
        file = make(files, key, writer("x" * 30), 30)
        os.utime(file.path, (number, time.time() - 60 + number))
        opened.append(file)
    for file in opened[1:]:
        file.close()
    opened.append(make(files, "next", writer("x" * 40), 40))
    assert names(bases, ".arrows") == ["mapped.arrows", "newer.arrows", "next.arrows"]
    with pytest.raises(
        OutOfBudget,
        match=r"a table of 31 bytes .* 100 bytes other .* map or write take 70; end some, or allow more",
    ):
        make(files, "large", never, 31)
    assert names(bases, ".part") == []
    both = HostFiles(within(bases, limit_bytes=100))
    opened.append(make(both, "large", size_bytes=31))
    assert opened[-1].path.is_relative_to(bases[1])


def test_a_table_larger_than_the_bound_is_an_error_at_once_and_removes_nothing(
    bases: tuple[Path, ...],
) -> None:
    files = HostFiles(within(bases, limit_bytes=100))
    make(files, "k", size_bytes=50).close()
    with pytest.raises(OutOfBudget, match=r"a table of 101 bytes has no room .* of its 100 bytes"):
        make(files, "large", never, size_bytes=101)
    assert names(bases, ".arrows") == ["k.arrows"]


def test_a_file_that_outgrows_what_was_expected_stays_within_the_bound(
    bases: tuple[Path, ...], opened: list[HostFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "ROOM_SECONDS", 0.0)
    files = HostFiles(within(bases[:1], limit_bytes=100))
    make(files, "idle", writer("x" * 40), 40).close()
    announced: list[list[str]] = []

    def write(part: Part) -> None:
        part.write(b"x" * 30)
        part.write(b"x" * 40)
        announced.append(names(bases, ".part"))

    opened.append(make(files, "k", write, size_bytes=30))
    assert announced == [[f"k.{os.getpid()}.100.part"]]
    assert names(bases, ".arrows") == ["k.arrows"]
    with pytest.raises(OutOfBudget, match=r"a table of 31 bytes .* take 70"):
        make(files, "other", writer("x" * 31), size_bytes=10)
    assert names(bases, ".part") == []


HOLDER = """
import sys
from spark_client.hosts.host_files import Copies, HostFiles
files = HostFiles(Copies((sys.argv[1],), limit_bytes=100))
held = files.open_or_make("held", 90, lambda part: part.write(b"x" * 90), 5)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_new_file_waits_until_a_process_that_holds_the_room_has_ended(
    bases: tuple[Path, ...], opened: list[HostFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "ROOM_SECONDS", 60.0)
    command = [sys.executable, "-c", HOLDER, str(bases[0])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        looked: list[bool] = []
        take_oldest = directories.take_oldest

        def look(*arguments: Any) -> Any:
            if looked:
                holder.kill()
                holder.wait(30)
            looked.append(holder.poll() is None)
            return take_oldest(*arguments)

        monkeypatch.setattr(directories, "take_oldest", look)
        opened.append(make(HostFiles(within(bases[:1], limit_bytes=100)), "k", size_bytes=90))
        assert looked == [True, False]
    assert names(bases, ".arrows") == ["k.arrows"]


def test_a_killed_writers_room_is_free_for_the_next(
    bases: tuple[Path, ...], opened: list[HostFile], hanging_writer: subprocess.Popen[str]
) -> None:
    files = HostFiles(within(bases, limit_bytes=100))
    hanging_writer.kill()
    hanging_writer.wait(timeout=10)
    opened.append(make(files, "other", size_bytes=100))
    assert names(bases, ".part") == []


KEYS, SIZE_BYTES, LIMIT_BYTES = 5, 40, 100


def _use_in_turn(base: Path, number: int, barrier: Any, wrong: Any) -> None:
    files = HostFiles(Copies((str(base),), limit_bytes=LIMIT_BYTES))
    barrier.wait(timeout=100)
    for turn in range(60):
        key = f"k{(turn * (number + 1)) % KEYS}"
        content = key[-1] * SIZE_BYTES
        file = files.open_or_make(key, SIZE_BYTES, writer(content), deadline_seconds=60)
        found = os.pread(file._descriptor, 1000, 0).decode()
        (directory_,) = files._directories
        with directory_.changing_names():
            used = sum(entry.size_bytes for entry in directory_.entries() if entry.kind != "lock")
        if found != content or used > LIMIT_BYTES:
            wrong.put((key, found, used))
        file.close()


def test_processes_that_race_for_a_room_too_small_read_right_files_and_keep_the_bound(
    bases: tuple[Path, ...],
) -> None:
    count = 2  # of files that are held at a time, all of which fit
    barrier, wrong = SPAWN.Barrier(count), SPAWN.Queue()
    processes = [
        SPAWN.Process(target=_use_in_turn, args=(bases[0], number, barrier, wrong)) for number in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=100)
        assert process.exitcode == 0
    assert wrong.empty()
    assert 1 <= len(names(bases, ".arrows")) <= LIMIT_BYTES // SIZE_BYTES


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


def test_removing_takes_the_lock_file_too_unless_a_process_holds_it(
    files: HostFiles, bases: tuple[Path, ...], opened: list[HostFile], hanging_writer: subprocess.Popen[str]
) -> None:
    opened.append(make(files, "other"))
    files.remove("other")
    files.remove("k")
    files.remove("unknown")
    assert names(bases, ".lock") == ["k.lock"]


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
