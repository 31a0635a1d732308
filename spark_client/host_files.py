"""One file per host: made once by whoever needs it first, mapped by everybody, gone when nobody does.

Guarantee: of all processes on a host that ask for a key at the same time, one makes the file and the others
wait for it; a file that can be seen is complete; and a process that is killed at any point leaves nothing
that another cannot carry on from.

Files, in ``flight-shuffle-<uid>`` (mode 0700, owned by that user) under a base directory
    ``<key>.arrows``  the file, complete from the moment it has this name;
    ``<key>.<pid>.part``  being written;
    ``<key>.lock``  held by the one that writes. All locks are in the first base.

Bases
    ``/dev/shm`` when it has room for the file and a margin, else the directory for temporary files. A base
    that turns out to be full while writing is given up for the next one.

Locks
    Both kinds are ``flock``: the kernel gives them back when a process dies, however it dies. The writer
    holds the lock file exclusively. Whoever maps a file holds the file itself shared for as long as it is
    mapped.

Collecting
    Before making a file, a process removes what earlier applications left: every file that nobody holds and
    that has not been opened for ``IDLE_SECONDS``, and every part whose writer is gone. A file of a living
    application that is collected is made again by its next reader; one that is mapped is never collected.

Waiting
    Readers wait for the writer at most ``deadline_seconds``. The error names the process that holds the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from flight_server.errors import Unavailable

IDLE_SECONDS = 3600.0
MARGIN_BYTES = 64 * 1024 * 1024
"""Room that is left in a base beside the file, for others."""

_POLL_SECONDS = 0.02


def default_bases() -> tuple[Path, ...]:
    """Where host files may be, the preferred place first."""
    memory, disk = Path("/dev/shm"), Path(tempfile.gettempdir())  # noqa: S108 - the directory below it is checked
    return (memory, disk) if os.access(memory, os.W_OK) else (disk,)


@dataclass
class HostFile:
    """A complete file that stays where it is, or at least readable, until :meth:`close`."""

    path: Path
    _descriptor: int

    @property
    def is_current(self) -> bool:
        """Whether the path still leads to this file."""
        return os.fstat(self._descriptor).st_nlink > 0

    def map(self) -> pa.Buffer:
        """The content, mapped through the descriptor: also of a file that was unlinked meanwhile."""
        return pa.py_buffer(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ))

    def close(self) -> None:
        """Let the file be collected. What is mapped stays mapped. Twice is fine."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class HostFiles:
    """The files of one user on this host.

    Args:
        bases: directories to try, the preferred one first; the same in every process of the host.
        idle_seconds: how long a file that nobody maps is kept.
    """

    def __init__(self, bases: tuple[Path, ...] | None = None, idle_seconds: float = IDLE_SECONDS) -> None:
        self._directories = tuple(base / f"flight-shuffle-{os.getuid()}" for base in bases or default_bases())
        self._idle_seconds = idle_seconds

    def open(self, key: str) -> HostFile | None:
        """The file of ``key``, if this host has one."""
        for directory in self._directories:
            if (found := _open_shared(directory / f"{key}.arrows")) is not None:
                return found
        return None

    def open_or_make(
        self, key: str, size_bytes: int, write: Callable[[Path], None], deadline_seconds: float
    ) -> HostFile:
        """The file of ``key``, made by ``write`` if this host has none.

        Args:
            key: a name that stands for this content alone, on this host and for ever.
            size_bytes: about how large it will be; only chooses the base.
            write: makes the content at the path it is given. May be called once for each base.
            deadline_seconds: how long to wait for another process that is making it.

        Raises:
            Unavailable: another process held the lock until the deadline; what ``write`` raises otherwise.
        """
        if (found := self.open(key)) is not None:
            return found
        for directory in self._directories:
            _prepare(directory)
        with _locked(self._directories[0] / f"{key}.lock", deadline_seconds):
            if (found := self.open(key)) is not None:
                return found
            self.collect()
            return self._make(key, size_bytes, write)

    def remove(self, key: str) -> bool:
        """Whether there was a file of ``key``. Who maps it keeps it; who asks next makes it again."""
        removed = False
        for directory in self._directories:
            with contextlib.suppress(FileNotFoundError):
                (directory / f"{key}.arrows").unlink()
                removed = True
        self._collect_lock(self._directories[0] / f"{key}.lock", idle_seconds=0.0)
        return removed

    def collect(self) -> None:
        """Remove what nobody uses any more. Never waits."""
        for directory in self._directories:
            for path in _listed(directory, ".arrows"):
                self._collect_file(path)
            for path in _listed(directory, ".part"):
                self._collect_part(path)
            for path in _listed(directory, ".lock"):
                self._collect_lock(path, self._idle_seconds)

    def _make(self, key: str, size_bytes: int, write: Callable[[Path], None]) -> HostFile:
        # This process holds the key's lock, so that every other part of the key is a dead one's.
        for directory in self._directories:
            for path in _listed(directory, ".part"):
                if path.name.startswith(f"{key}."):
                    path.unlink(missing_ok=True)
        *preferred, last = self._directories
        for directory in preferred:
            if _free_bytes(directory) < size_bytes + MARGIN_BYTES:
                continue
            try:
                return _publish(directory, key, write)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
        return _publish(last, key, write)

    def _collect_file(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if _age_seconds(path) > self._idle_seconds:
                path.unlink()

    def _collect_lock(self, path: Path, idle_seconds: float) -> None:
        if path.exists():
            with _try_locked(path) as held:
                if held is not None and _age_seconds(path) >= idle_seconds:
                    path.unlink(missing_ok=True)

    def _collect_part(self, path: Path) -> None:
        key = path.name.split(".", 1)[0]
        with _try_locked(self._directories[0] / f"{key}.lock") as held:
            if held is not None:
                path.unlink(missing_ok=True)


def _open_shared(path: Path) -> HostFile | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    # A collector holds a file exclusively only to look at it or to unlink it, so that this wait is short.
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    found = HostFile(path, descriptor)
    if not found.is_current or os.fstat(descriptor).st_uid != os.getuid():
        found.close()
        return None
    os.utime(descriptor)
    return found


def _publish(directory: Path, key: str, write: Callable[[Path], None]) -> HostFile:
    part, path = directory / f"{key}.{os.getpid()}.part", directory / f"{key}.arrows"
    try:
        write(part)
        descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
        # Held and synced before it has its name: no collector can take it, no crash can leave it torn.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.fsync(descriptor)
        part.rename(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return HostFile(path, descriptor)


def _prepare(directory: Path) -> None:
    """Make the directory, and trust it only if nobody else can write there.

    Raises:
        PermissionError: it is a link, or another user's, or open to others.
    """
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{directory} must be a directory of this user alone (mode 0700), because tables are read "
            "from it; remove it"
        )


@contextlib.contextmanager
def _locked(path: Path, deadline_seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + deadline_seconds
    while True:
        with _try_locked(path) as descriptor:
            if descriptor is not None:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                yield
                return
        if time.monotonic() >= deadline:
            raise Unavailable(
                f"another process of this host (id {_holder(path)}) has been fetching the same table for "
                f"{deadline_seconds:g} s; see whether it still makes progress, or allow more time",
                path=str(path),
            )
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _try_locked(path: Path) -> Iterator[int | None]:
    """The descriptor of the lock file while it is held; None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        # A collector may have unlinked the file between the open and the lock: then this lock guards nothing.
        yield descriptor if os.fstat(descriptor).st_nlink else None
    finally:
        os.close(descriptor)


def _holder(path: Path) -> str:
    try:
        return path.read_text() or "unknown"
    except OSError:
        return "unknown"


def _listed(directory: Path, suffix: str) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.suffix == suffix]
    except FileNotFoundError:
        return []


def _age_seconds(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize
