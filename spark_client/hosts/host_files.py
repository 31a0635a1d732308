"""One file per host and key, which all processes map and a sweep removes.

Guarantee: of all processes on a host that ask for a key at the same time, one makes the file and the others wait for
it. A visible file is complete. If a process is killed at any point, another can continue. ``host.directories`` has
the files, their locks, and what a sweep removes.

Bases
    The first base with room for the file and a margin is used; if it becomes full during the write, the next one.

Bound
    All files of a base together stay below ``limit_bytes``: a new file, and one that grows beyond its expected size,
    first removes files that no process maps, those opened longest ago first; their next reader makes them again. If
    mapped files leave no room in any base, a new file waits for ``ROOM_SECONDS`` that processes end or unmap one
    (``broadcast.broadcast_copies``); then it is an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import mmap
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from flight_server.host import HostDirectory, directories, locked
from flight_server.protocol import OutOfBudget, Unavailable, check_size
from spark_client.arrow import WriterFile

MARGIN_BYTES = 64 * 1024 * 1024
"""Free room that a base must keep beside the file; the last base is used without it."""

ROOM_SECONDS = 15.0
"""Longer than an idle process keeps a table."""

SWEEP_SECONDS = 10.0
"""A sweep looks at all files, of which an application may have hundreds."""

_GROWTH_BYTES = 64 * 1024 * 1024
_POLL_SECONDS = 0.01
_ROOM_POLL_SECONDS = 0.2
_NO_DIRECTORY = "this host has no directory for copies of broadcasts: name one by dirs of Copies"
_T = TypeVar("_T")
_SHARED_SECONDS = 10.0
_swept: dict[tuple[Path, ...], float] = {}
"""When this process swept bases for the last time."""


@dataclass(frozen=True)
class Copies:
    """How hosts keep their copies of broadcasts; the same in the driver and in its tasks.

    Args:
        dirs: directories to try, the preferred one first; None for ``/dev/shm`` and the temporary directory.
        limit_bytes: for all copies of the user in each of them together, also a text such as ``"2g"``; None for half of
            the file system.

    Raises:
        InvalidRequest: the limit is no size.
    """

    dirs: tuple[str, ...] | None = None
    limit_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.limit_bytes is not None:
            object.__setattr__(self, "limit_bytes", check_size("Copies: limit_bytes", self.limit_bytes))


@dataclass
class HostFile:
    """A file that stays readable until :meth:`close`, even if it is unlinked."""

    path: Path
    _descriptor: int

    @property
    def is_current(self) -> bool:
        return directories.leads_to(self.path, self._descriptor)

    @property
    def inode(self) -> int:
        return os.fstat(self._descriptor).st_ino

    def map(self) -> pa.Buffer:
        return pa.py_buffer(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ))

    def write(self, data: memoryview, at: int) -> int:
        return os.pwrite(self._descriptor, data, at)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Allow the file's removal, when its mappings in this process have ended, too. Twice is fine."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class PartFile(WriterFile):
    """A file that is written, and that no other process reads yet.

    ``write`` and ``reserve`` raise OutOfBudget, and OSError if the file system is full.
    """

    def __init__(self, file: HostFile, expected_bytes: int, grow: Callable[[PartFile, int], None]) -> None:
        self.file = file
        self.expected_bytes = expected_bytes
        self.written_bytes = 0
        self._grow = grow

    @property
    def path(self) -> Path:
        return self.file.path

    def reserve(self, size_bytes: int) -> None:
        if size_bytes > self.expected_bytes:
            self._grow(self, size_bytes)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.write_at(self.written_bytes, view)
        return len(view)

    def write_at(self, at: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        self.reserve(at + len(view))
        done = 0
        while done < len(view):
            done += self.file.write(view[done:], at + done)
        self.written_bytes = max(self.written_bytes, at + done)


class HostFiles:
    """The files of one user on this host."""

    def __init__(self, copies: Copies | None = None) -> None:
        self._copies = copies or Copies()
        dirs = self._copies.dirs
        self.bases = directories.default_bases() if dirs is None else tuple(map(Path, dirs))
        self._directories = tuple(map(HostDirectory, self.bases))

    def open(self, key: str) -> HostFile | None:
        for directory in self._directories:
            if (file := _open_shared(directory.path / f"{key}.arrows")) is not None:
                return file
        return None

    def opened(self, prefix: str) -> dict[str, float]:
        """The keys of files that begin with ``prefix``, and when each was last opened."""
        entries = [entry for directory in self._directories for entry in directory.entries(prefix)]
        return {each.key: each.opened for each in entries if each.kind == "arrows"}

    def locked(self, key: str, deadline_seconds: float) -> AbstractContextManager[int]:
        """Hold the lock of a key, which need not be a file's. Raises as :meth:`open_or_make`."""
        if not self._directories:
            raise Unavailable(_NO_DIRECTORY)
        self._directories[0].prepare()
        return locked(self._directories[0].path / f"{key}.lock", deadline_seconds, "fetching")

    @property
    def place(self) -> str | None:
        """The name of this host and directory, unlike that of any other; None while it has no directory."""
        return self._directories[0].place if self._directories and self._directories[0].is_ours else None

    def open_or_make(
        self, key: str, size_bytes: int, write: Callable[[PartFile], object], deadline_seconds: float
    ) -> HostFile:
        """The file of ``key``, made by ``write`` if this host has none.

        Args:
            key: the application, a dash, and a name of this content only: lower case and digits.
            size_bytes: the file's expected size.
            write: writes the content, once for each base that is tried.

        Raises:
            Unavailable: another process, which the error names, held the lock until the deadline; or the host has no
                directory for copies.
            OutOfBudget: the file is larger than the bound, or the files that living processes map leave no room.
            PermissionError: other users can access a directory, or it has files that are not ours.
        """
        if not self._directories:
            raise Unavailable(_NO_DIRECTORY)
        for directory in self._directories:
            directory.prepare()
        if (file := self.open(key)) is not None:
            return file
        with locked(self._directories[0].path / f"{key}.lock", deadline_seconds, "fetching"):
            if (file := self.open(key)) is not None:
                return file
            self._remove_parts(key)
            if time.monotonic() - _swept.get(self.bases, -SWEEP_SECONDS) >= SWEEP_SECONDS:
                self.sweep()
            return self._with_room(
                lambda: self._make(key, size_bytes, write), min(ROOM_SECONDS, deadline_seconds)
            )

    def remove(self, key: str) -> bool:
        """Remove the file of ``key``; whether there was one. Mappings stay."""
        removed = False
        for directory in self._directories:
            with contextlib.suppress(FileNotFoundError):
                (directory.path / f"{key}.arrows").unlink()
                removed = True
        if not self._directories:
            return removed
        lock = self._directories[0].path / f"{key}.lock"
        if lock.exists():
            with directories.try_locked(lock) as held:
                if held is not None:
                    lock.unlink(missing_ok=True)
        return removed

    def sweep(self) -> list[Path]:
        """Remove files that no living process needs; their paths. Never waits or raises."""
        _swept[self.bases] = time.monotonic()
        return directories.sweep(self.bases)

    def own(self, application: str) -> Callable[[], None]:
        """Mark the application as alive, until the returned function is called or this process ends. Raises
        PermissionError: as :meth:`open_or_make`.
        """
        if not self._directories:
            return lambda: None
        self._directories[0].prepare()
        path = self._directories[0].path / f"{application}.owner"
        held = contextlib.ExitStack()
        held.enter_context(locked(path, _SHARED_SECONDS, "owning"))

        def end() -> None:
            path.unlink(missing_ok=True)
            held.close()

        return end

    def _remove_parts(self, key: str) -> None:
        # This process holds the key's lock: the parts are dead processes'.
        for directory in self._directories:
            for entry in directory.entries(f"{key}."):
                if entry.kind == "part":
                    entry.path.unlink(missing_ok=True)

    def _make(self, key: str, size_bytes: int, write: Callable[[PartFile], object]) -> HostFile:
        full: list[OutOfBudget] = []
        for directory in self._directories:
            last = directory is self._directories[-1]
            if not last and shutil.disk_usage(directory.path).free < size_bytes + MARGIN_BYTES:
                continue
            try:
                return self._make_in(directory, key, size_bytes, write)
            except OutOfBudget as error:
                full.append(error)
            except OSError as error:
                if last or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
        try:
            # One that a wait may help, if there is one.
            raise min(full, key=lambda error: error.detail["larger_than_all"])
        finally:
            full.clear()  # their tracebacks refer to this frame

    def _make_in(
        self, directory: HostDirectory, key: str, size_bytes: int, write: Callable[[PartFile], object]
    ) -> HostFile:
        with directory.changing_names():
            self._make_room(directory, key, size_bytes)
            path = directory.path / _part_name(key, size_bytes)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            # Locked until the close, before others may look at the names: no sweeper removes it.
            fcntl.flock(descriptor, fcntl.LOCK_SH)

        def reserve(part: PartFile, wanted_bytes: int) -> None:
            with directory.changing_names():
                free_bytes = self._make_room(directory, key, wanted_bytes)
                part.expected_bytes = wanted_bytes + min(free_bytes, _GROWTH_BYTES)
                # Its name says the room that it takes.
                part.file.path = part.path.rename(directory.path / _part_name(key, part.expected_bytes))

        def grow(part: PartFile, wanted_bytes: int) -> None:
            self._with_room(lambda: reserve(part, wanted_bytes), ROOM_SECONDS)

        return _publish(directory, PartFile(HostFile(path, descriptor), size_bytes, grow), key, write)

    def _make_room(self, directory: HostDirectory, key: str, size_bytes: int) -> int:
        """Remove files until the one of ``key`` can have this size; the bytes that are still free. The caller holds
        ``names.lock``. Raises OutOfBudget: processes hold the others.
        """
        entries = [
            entry for entry in directory.entries() if entry.kind in ("arrows", "part") and entry.key != key
        ]
        limit_bytes = self._limit_bytes(directory)
        over_bytes = sum(entry.size_bytes for entry in entries) + size_bytes - limit_bytes
        if size_bytes <= limit_bytes:
            over_bytes -= directories.take_oldest(entries, over_bytes)
        if over_bytes > 0:
            held_bytes = over_bytes + limit_bytes - size_bytes
            raise OutOfBudget(
                f"a table of {size_bytes} bytes has no room among the copies in {directory.path}: of its {limit_bytes} "
                f"bytes other copies that living processes map or write take {held_bytes}; end some, or allow more by "
                "a larger limit_bytes of Copies",
                wanted_bytes=size_bytes,
                larger_than_all=size_bytes > limit_bytes,
            )
        return -over_bytes

    def _with_room(self, call: Callable[[], _T], seconds: float) -> _T:
        """The result of ``call``, tried again for so long while other processes hold the room."""
        until = time.monotonic() + seconds
        while True:
            try:
                return call()
            except OutOfBudget as error:
                if error.detail["larger_than_all"] or time.monotonic() >= until:
                    raise
            if not self.sweep():
                time.sleep(_ROOM_POLL_SECONDS)

    def _limit_bytes(self, directory: HostDirectory) -> int:
        if self._copies.limit_bytes is not None:
            return self._copies.limit_bytes
        return shutil.disk_usage(directory.path).total // 2


def _open_shared(path: Path) -> HostFile | None:
    try:
        descriptor = directories.open_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # we make no symbolic links
            return None
        raise
    file = HostFile(path, descriptor)
    try:
        _share(path, descriptor)
        if file.is_current:
            os.utime(descriptor)
            return file
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def _share(path: Path, descriptor: int) -> None:
    deadline = time.monotonic() + _SHARED_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            # A sweeper locks a file exclusively only to inspect or unlink it.
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"a process that sweeps {path.parent} has not gone on for {_SHARED_SECONDS:g} s; see whether it "
                    "is stopped",
                    path=str(path),
                ) from None
            time.sleep(_POLL_SECONDS)
        else:
            return


def _part_name(key: str, size_bytes: int) -> str:
    return f"{key}.{os.getpid()}.{size_bytes}.part"


def _publish(
    directory: HostDirectory, part: PartFile, key: str, write: Callable[[PartFile], object]
) -> HostFile:
    path = directory.path / f"{key}.arrows"
    try:
        write(part)
        part.file.sync()  # before the rename: no crash can leave a torn file under the final name
        with directory.changing_names():
            part.path.rename(path)
        return dataclasses.replace(part.file, path=path)
    except BaseException:
        part.path.unlink(missing_ok=True)
        part.file.close()
        raise
