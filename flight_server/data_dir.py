"""DataDir: the directory that one server has for itself.

Guarantee: while a :class:`DataDir` is open no other server uses the same directory, and the lock goes
with the process, however that ends. A named directory stays; one made by :meth:`DataDir.temporary`
goes when it is closed, or, if its process was killed, when the next server makes one.

The lock is flock(2) on the file ``lock`` in the directory, which holds the owner's process id for
people to read. Directories on network file systems work where flock works.
"""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

LOCK_NAME = "lock"
_TEMPORARY_PREFIX = "flight-server-"


class DataDirInUse(OSError):
    """Another server has the directory."""


class DataDirUnusable(OSError):
    """It cannot be made, or files in it cannot."""


class DataDir:
    """See the module's text."""

    def __init__(self, path: Path, fd: int, *, temporary: bool) -> None:
        self.path = path
        self.is_temporary = temporary
        self._fd = fd

    @classmethod
    def claim(cls, path: Path) -> Self:
        """The directory, made if it is not there. Blocks.

        Raises:
            DataDirInUse: another server has it.
            DataDirUnusable: it is not a directory, cannot be made, or cannot be written to.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise DataDirUnusable(f"the data directory {path} is not a directory") from None
        except OSError as error:
            raise DataDirUnusable(
                f"the data directory {path} cannot be made or written to: {error.strerror}"
            ) from None
        try:
            if not _locked(fd):
                owner = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
                raise DataDirInUse(f"the data directory {path} is in use by another server (process {owner})")
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, temporary=False)

    @classmethod
    def temporary(cls) -> Self:
        """A new directory of this process's own. What killed processes have left is removed. Blocks."""
        base = Path(tempfile.gettempdir())
        for abandoned in base.glob(f"{_TEMPORARY_PREFIX}*"):
            _remove_abandoned(abandoned)
        path = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=base))
        # Locked before it has its name: without a file of that name nobody takes it for abandoned.
        fd, unnamed = tempfile.mkstemp(dir=path)
        assert _locked(fd)
        Path(unnamed).rename(path / LOCK_NAME)
        return cls(path, fd, temporary=True)

    def close(self) -> None:
        """Let another server have it, or remove it if it is temporary. Blocks. Twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if self.is_temporary:
                shutil.rmtree(self.path, ignore_errors=True)
            os.close(fd)


def raise_open_files_limit() -> None:
    """Let the process have as many open files as it may: each segment is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_abandoned(path: Path) -> None:
    # Another user's, or gone meanwhile: not ours to remove.
    with suppress(OSError):
        if path.stat().st_uid != os.getuid():
            return
        fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if _locked(fd):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(fd)
