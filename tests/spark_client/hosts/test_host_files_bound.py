"""The bound of a host's files: who makes room, who waits, and who keeps what it holds."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flight_server.host import directories
from flight_server.protocol.errors import OutOfBudget
from spark_client.hosts import host_files
from spark_client.hosts.host_files import Copies, HostFile, HostFiles, PartFile
from tests.support.host_copies import make, names, never, within, writer
from tests.support.rooms import ROOT

SPAWN = multiprocessing.get_context("spawn")


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

    def write(part: PartFile) -> None:
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


KEYS, SIZE_BYTES, LIMIT_BYTES = 5, 40, 100


def _use_in_turn(base: Path, number: int, barrier: Any, wrong: Any) -> None:
    files = HostFiles(Copies((str(base),), limit_bytes=LIMIT_BYTES))
    barrier.wait(timeout=100)
    for turn in range(30):
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
