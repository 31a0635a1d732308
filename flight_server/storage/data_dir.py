"""DataDir: the directory that one server uses alone. All of it blocks.

Guarantee: while a :class:`DataDir` is open, no other server uses its directory. The lock, flock(2) on the file
``lock``, ends with the process; in a named directory the file has the owner's process id, for people. Network file
systems work where flock works. Without that file the lock is lost, so the server acknowledges nothing durable then
(:meth:`DataDir.held`). A directory of :meth:`DataDir.temporary` is removed at its close or, if its process was killed,
when the next server of the same user makes one.

Only a marker makes a directory a data directory or a temporary one. An empty directory gets a marker; one with other
contents, or of another format, is refused and left as it is.

Format
    The marker is the file ``flight-server.json``, a JSON object::

        format      2: what else is in the directory, too; a server refuses another number
        kind        "data", a data directory; "temporary", one that is removed with its process
        owner       16 random hex digits; the names of its files begin with them
        created     date and time, for people

    Beside it are ``lock``, ``segments`` (see ``folder``) and, in a data directory, ``records`` (``opened_records``).
"""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, Self

from flight_server.host import try_lock
from flight_server.records import OtherFormat

from .disk_files import NotAFile, is_real_directory, read_regular, sync_directory, write_file
from .folder import SEGMENTS_NAME
from .opened_records import RECORDS_NAME

FORMAT: Final = 2
MARKER_NAME: Final = "flight-server.json"
LOCK_NAME = "lock"
_OWNER = re.compile(r"[0-9a-f]{16}")
_UNFINISHED_NAME = f"{MARKER_NAME}.new"
# An empty directory may hold these: a crash leaves the first two, ext4 makes the third.
_NEGLIGIBLE = frozenset({LOCK_NAME, _UNFINISHED_NAME, "lost+found"})
_TEMPORARY_PREFIX = "flight-server-"


class DataDirInUse(OSError):
    """Another server holds the directory's lock."""


class DataDirUnusable(OSError):
    """The directory cannot be made, locked or written to, has other contents than a data directory of this version,
    or has a part of them on another file system.
    """


@dataclass(frozen=True, slots=True)
class _Marker:
    """The contents of a marker."""

    kind: Literal["data", "temporary"]
    owner: str

    def encode(self) -> bytes:
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return json.dumps({"format": FORMAT, **asdict(self), "created": created}).encode()


class DataDir:
    """One locked directory."""

    def __init__(self, path: Path, fd: int, marker: _Marker) -> None:
        self.path = path
        self.owner = marker.owner
        self.is_temporary = marker.kind == "temporary"
        self._fd = fd
        # Looked at for each commit: a path would be put together each time.
        self._lock = str(path / LOCK_NAME)

    @classmethod
    def claim(cls, path: Path) -> Self:
        """The directory, made if it does not exist. Raises DataDirInUse or DataDirUnusable."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            _known_or_empty(path)
            fd = _open_lock(path)
            try:
                return cls(path, fd, _take(path, fd))
            except BaseException:
                os.close(fd)
                raise
        except OtherFormat as other:
            raise DataDirUnusable(str(other)) from None
        except (DataDirInUse, DataDirUnusable):
            raise
        except FileExistsError:
            raise DataDirUnusable(f"the data directory {path} is not a directory") from None
        except OSError as error:
            raise DataDirUnusable(
                f"the data directory {path} cannot be made or written to: {error.strerror}"
            ) from None

    @classmethod
    def temporary(cls) -> Self:
        base = Path(tempfile.gettempdir())
        for abandoned in base.glob(f"{_TEMPORARY_PREFIX}*"):
            _remove_abandoned(abandoned)
        path = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=base))
        fd = _open_lock(path)
        locked = try_lock(fd)  # not within the assertion, which python -O leaves out
        assert locked
        # Marked once it is locked: only a marked directory is taken for abandoned.
        return cls(path, fd, _mark(path, "temporary"))

    def held(self) -> bool:
        """Whether the path still leads to the directory that this object has locked. False after :meth:`close`."""
        try:
            named, locked = os.lstat(self._lock), os.fstat(self._fd)
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino)

    def close(self) -> None:
        """Release the lock. Twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self.is_temporary:
                shutil.rmtree(self.path, ignore_errors=True)
            os.close(fd)


def raise_open_files_limit() -> None:
    """Raise the process's limit of open files to the hard one: each segment is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open_lock(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path / LOCK_NAME, flags, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DataDirUnusable(f"the data directory {path} cannot be locked: {LOCK_NAME} in it is not a file")
    return fd


def _take(path: Path, fd: int) -> _Marker:
    """Lock the directory, and return its marker."""
    if not try_lock(fd):
        owner = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
        raise DataDirInUse(f"the data directory {path} is in use by another server (process {owner})")
    marker = _known_or_empty(path)  # again: now it changes no more
    if marker is None:
        marker = _mark(path, "data")
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return marker


def _known_or_empty(path: Path) -> _Marker | None:
    """A data directory's marker; None if the directory is empty."""
    marker = _read_marker(path)
    if marker is not None and marker.kind == "data":
        for part in (path / SEGMENTS_NAME, path / RECORDS_NAME):
            if part.exists() and part.stat().st_dev != path.stat().st_dev:
                raise DataDirUnusable(
                    f"the data directory {path} must hold {part.name} on its own file system"
                )
        return marker
    strange = sorted({entry.name for entry in path.iterdir()} - _NEGLIGIBLE)
    if strange:
        raise DataDirUnusable(
            f"the data directory {path} is not empty ({strange[0]!r} is there) and no server of this version has "
            f"made it, because it has no valid {MARKER_NAME}: name a new or empty directory; nothing in it was changed"
        )
    return None


def _read_marker(path: Path) -> _Marker | None:
    """The marker; None if it is missing, not valid, or may not be read. Raises OtherFormat, OSError."""
    try:
        body = json.loads(read_regular(path / MARKER_NAME))
    except (FileNotFoundError, NotADirectoryError, PermissionError, NotAFile, ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not isinstance(body.get("format"), int):
        return None
    if body["format"] != FORMAT:
        raise OtherFormat(
            f"{path} was written in format {body['format']}, and this version reads {FORMAT}: start the version that "
            "wrote it, and copy its datasets to a server of this version, or name another directory; nothing in it "
            "was changed"
        )
    kind, owner = body.get("kind"), body.get("owner")
    if kind not in ("data", "temporary") or not isinstance(owner, str) or not _OWNER.fullmatch(owner):
        return None
    return _Marker(kind, owner)


def _mark(path: Path, kind: Literal["data", "temporary"]) -> _Marker:
    marker = _Marker(kind, secrets.token_hex(8))
    write_file(path / _UNFINISHED_NAME, marker.encode())
    (path / _UNFINISHED_NAME).rename(path / MARKER_NAME)
    sync_directory(path)
    with suppress(PermissionError):  # of a parent that may only be passed through
        sync_directory(path.parent)
    return marker


def _remove_abandoned(path: Path) -> None:
    # OSError: another user's directory, or one removed meanwhile.
    with suppress(OSError):
        if not is_real_directory(path) or path.stat().st_uid != os.getuid():
            return
        marker = _read_marker(path)
        if marker is None or marker.kind != "temporary":
            return
        fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if try_lock(fd):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(fd)
