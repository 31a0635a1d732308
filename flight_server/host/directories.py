"""The directories in which a host's processes share files, and the sweep that cleans them.

Guarantee: a sweep removes only files of this format and this user that no living process needs. A client sweeps when
it begins; a process that makes files, at most every ten seconds and while it waits for room; a server, every minute.

Directory: ``flight-shuffle-<uid>-2`` under a base
    Mode 0700, owned by that user, with a file ``flight-shuffle-format``; any other is refused and stays as it is. The
    number is the format's. Files of other names or users, links and pipes are neither read nor removed.

Files, for a key ``<application>-<content>``
    ``<key>.arrows``  complete from the moment it has this name;
    ``<key>.<pid>.<bytes>.part``  being written, about to be that large, held shared by its writer;
    ``<key>.lock``  held by the one process that may write; in the first base;
    ``<application>.owner``  held by the driver that made the key, on its host; in the first base;
    ``names.lock``  held while a file gets its name, and while a sweep looks at files and removes them, so that it
    removes no replacement.

Locks are ``flock``: the kernel releases them when the process and the children that it forked have ended.

A sweep removes
    ``.arrows``  that no process holds: at once if its application's owner file is there and not held, never while
    that is held, and without one (on other hosts than the driver's) when not opened for ``idle_seconds``. A process
    that maps a file holds it shared.
    ``.part``, ``.lock``  that no process holds; a lock after ``idle_seconds``, or with its application.
    ``.owner``  that is not held, when nothing else of the application is left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import socket
import stat
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from flight_server.protocol import Unavailable

IDLE_SECONDS = 600.0
FORMAT = "flight-shuffle-format"
_NAMES = re.compile(
    r"(?P<key>(?P<application>[0-9a-z]{1,64})(-[0-9a-z]{1,64})?)"
    r"(\.[0-9]{1,10}\.(?P<bytes>[0-9]{1,18}))?\.(?P<kind>arrows|part|lock|owner)"
)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMES_LOCK = "names.lock"
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENXIO}
"""There is no such file of this user, although there may be another one, a link or a socket."""
_NAMES_SECONDS = 30.0
_POLL_SECONDS = 0.02
_FIRST_POLL_SECONDS = 0.001


class Owner(Enum):
    """The state of an application's driver, as its host knows it."""

    LIVES = "lives"
    ENDED = "ended"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Entry:
    """A file of this format. ``size_bytes`` of a part is at least its announced size."""

    path: Path
    kind: str
    key: str
    application: str
    size_bytes: int
    opened: float


class HostDirectory:
    """The directory of this process's user under ``base``."""

    def __init__(self, base: Path) -> None:
        self.path = base / f"flight-shuffle-{os.getuid()}-2"

    def prepare(self) -> None:
        """Make it if it is missing. Raises PermissionError: it is a link, another user's, open to others, or has other
        files and no format file.
        """
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700, parents=True)
        if not self._is_private():
            raise PermissionError(
                f"{self.path} must be a directory of this user alone (mode 0700), because tables are read "
                "from it; remove it"
            )
        marker = self.path / FORMAT
        # Again, because another process may have prepared it meanwhile.
        if marker.exists() or not any(self.path.iterdir()) or marker.exists():
            marker.touch(mode=0o600)
            return
        raise PermissionError(
            f"{self.path} has no file {FORMAT} and is not empty, so that it is not ours; move it elsewhere"
        )

    @property
    def place(self) -> str:
        """The host's name, and what tells this directory from those of all other hosts and containers; prepared."""
        status, machine = self.path.stat(), ""
        with contextlib.suppress(OSError):
            machine = _BOOT_ID.read_text()
        text = f"{machine or uuid.getnode()} {status.st_dev} {status.st_ino}"
        host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())[:80]
        return f"{host}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def is_ours(self) -> bool:
        """Whether it is there and prepared."""
        with contextlib.suppress(OSError):
            return self._is_private() and stat.S_ISREG((self.path / FORMAT).lstat().st_mode)
        return False

    def entries(self, prefix: str = "") -> list[Entry]:
        """The files of this format and user whose names begin with ``prefix``; none if it is not ours."""
        entries: list[Entry] = []
        for name in os.listdir(self.path) if self.is_ours else []:  # noqa: PTH208 - of hundreds, few become paths
            if not name.startswith(prefix):
                continue
            parts = _NAMES.fullmatch(name)
            if parts is None or name == _NAMES_LOCK or (parts["bytes"] is None) is (parts["kind"] == "part"):
                continue
            path = self.path / name
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                    size_bytes = max(status.st_size, int(parts["bytes"] or 0))
                    key, application = parts["key"], parts["application"]
                    entries.append(Entry(path, parts["kind"], key, application, size_bytes, status.st_mtime))
        return entries

    def changing_names(
        self, deadline_seconds: float = _NAMES_SECONDS
    ) -> contextlib.AbstractContextManager[int]:
        """Hold ``names.lock``. Raises as :func:`locked`."""
        return locked(self.path / _NAMES_LOCK, deadline_seconds, "changing the names of")

    def _is_private(self) -> bool:
        status = self.path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def default_bases() -> tuple[Path, ...]:
    """The writable bases, the preferred one first; may be empty."""
    memory = Path("/dev/shm")  # noqa: S108 - the directory below it is checked
    bases = [memory] if os.access(memory, os.W_OK) else []
    with contextlib.suppress(FileNotFoundError):
        bases.append(Path(tempfile.gettempdir()))
    return tuple(bases)


def sweep(bases: Sequence[Path], idle_seconds: float = IDLE_SECONDS, ended: str | None = None) -> list[Path]:
    """Remove what no living process needs; its paths. Waits for no process, raises nothing. ``ended``: an application
    whose driver, if it is elsewhere, has ended.
    """
    removed: list[Path] = []
    # Each once, because a second lock of the same file is refused: TMPDIR may be /dev/shm.
    directories = [directory for directory in map(HostDirectory, dict.fromkeys(bases)) if directory.is_ours]
    # Another process holds the names, or a directory goes: the next sweep comes.
    with contextlib.suppress(OSError, Unavailable), contextlib.ExitStack() as names:
        for directory in directories:
            names.enter_context(directory.changing_names(0.0))
        entries = [entry for directory in directories for entry in directory.entries()]
        owners = {entry.application: owner_of(bases, entry.application) for entry in entries}
        if owners.get(ended or "") is Owner.ELSEWHERE:
            owners[ended or ""] = Owner.ENDED
        idle_since = time.time() - idle_seconds
        for entry in entries:
            owner, idle = owners[entry.application], entry.opened < idle_since
            unneeded = {
                "arrows": owner is Owner.ENDED or (owner is Owner.ELSEWHERE and idle),
                "part": True,
                "lock": owner is Owner.ENDED or idle,
                "owner": False,
            }
            if unneeded[entry.kind] and _take(entry.path):
                removed.append(entry.path)
        removed += _sweep_owners(entries, removed)
    return removed


def remove_ended(bases: Sequence[Path], application: str, deadline_seconds: float) -> None:
    """Remove the files of an application that has ended, when the processes that still hold some end. Returns without
    them at the deadline, and at once where the application's driver lives. Raises nothing.
    """
    deadline = time.monotonic() + deadline_seconds
    while owner_of(bases, application) is not Owner.LIVES:
        sweep(bases, ended=application)
        left: Iterable[Entry] = ()
        with contextlib.suppress(OSError):
            left = [entry for base in bases for entry in HostDirectory(base).entries()]
        if all(entry.application != application for entry in left) or time.monotonic() > deadline:
            return
        time.sleep(_POLL_SECONDS)


def _sweep_owners(entries: Iterable[Entry], removed: Iterable[Path]) -> list[Path]:
    gone = set(removed)
    left = {entry.application for entry in entries if entry.kind != "owner" and entry.path not in gone}
    return [
        entry.path
        for entry in entries
        if entry.kind == "owner" and entry.application not in left and _take(entry.path)
    ]


def take_oldest(entries: Iterable[Entry], size_bytes: int) -> int:
    """Remove files that no process holds, those opened longest ago first, to free ``size_bytes``; the freed bytes.

    The caller holds ``names.lock``.
    """
    free_bytes = 0
    for entry in sorted((each for each in entries if each.kind == "arrows"), key=lambda each: each.opened):
        if free_bytes >= size_bytes:
            break
        with contextlib.suppress(OSError):
            free_bytes += entry.size_bytes if _take(entry.path) else 0
    return free_bytes


def owner_of(bases: Sequence[Path], application: str) -> Owner:
    """See :class:`Owner`."""
    for base in bases:
        try:
            descriptor = open_regular(HostDirectory(base).path / f"{application}.owner")
        except OSError as error:
            if error.errno not in _ABSENT:
                return Owner.LIVES  # it cannot be told now: no file of it may be removed
            continue
        try:
            return Owner.ENDED if try_lock(descriptor) else Owner.LIVES
        finally:
            os.close(descriptor)
    return Owner.ELSEWHERE


def open_regular(path: Path) -> int:
    """Open a regular file of this user to read; its descriptor. Raises OSError if the path leads to none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
        return descriptor
    os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "it is no file of this user", str(path))


def leads_to(path: Path, descriptor: int) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def locked(path: Path, deadline_seconds: float, doing: str) -> Iterator[int]:
    """Hold a lock file, made if it is missing; its descriptor. Raises Unavailable: another process, named in the error,
    held it until the deadline.
    """
    began = time.monotonic()
    deadline = began + deadline_seconds
    while True:
        with try_locked(path) as descriptor:
            if descriptor is not None:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                yield descriptor
                return
        if time.monotonic() >= deadline:
            raise Unavailable(
                f"another process of this host (id {_holder(path)}) has been {doing} the same table for "
                f"{deadline_seconds:g} s; see whether it still makes progress, or allow more time",
                path=str(path),
            )
        # In proportion to the wait so far: most locks are held for some milliseconds.
        waited_seconds = time.monotonic() - began
        time.sleep(min(_POLL_SECONDS, max(_FIRST_POLL_SECONDS, waited_seconds / 8)))


@contextlib.contextmanager
def try_locked(path: Path) -> Iterator[int | None]:
    """The same without waiting; None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # A sweeper may have unlinked the file between the open and the lock: then this lock guards nothing.
        yield descriptor if try_lock(descriptor) and leads_to(path, descriptor) else None
    finally:
        os.close(descriptor)


def _take(path: Path) -> bool:
    """Unlink a file that no process holds; whether it did."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return False
    try:
        if not try_lock(descriptor) or not leads_to(path, descriptor):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file, without waiting; whether no other process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(path: Path) -> str:
    try:
        return path.read_text() or "unknown"
    except OSError:
        return "unknown"
