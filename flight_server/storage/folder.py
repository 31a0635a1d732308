"""Folder: the flat folder of a data directory's files, and the names that the server draws for them.

Guarantee: a file that was made before :meth:`Folder.sync` was called is found by its name after a crash, once that has
returned. No name is drawn twice: it is ``<owner of the data directory>-<16 random hex digits>.<suffix>``. The server
deletes only files with such names; everything else in the folder is *foreign*, left as it is and listed. Neither links
are followed nor FIFOs waited for.

Commits
    :meth:`Folder.sync` goes before each commit (``records.Database``), so that the commits that wait share one. A file
    counts from the moment in which its name is in the folder: a commit that names it comes later.

Garbage
    A file that no row of the records names: of a dataset that was not committed, or whose row was deleted.
    :meth:`Folder.sweep` deletes it when the server starts, before any file is made.

All methods block, and may be called from any thread.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Final, Literal

import structlog

from .disk_files import sync_directory
from .file_header import read_header

SEGMENTS_NAME: Final = "segments"
FILE_NAME: Final = re.compile(r"(?P<owner>[0-9a-f]{16})-[0-9a-f]{16}\.(?P<suffix>frames|run)")
Suffix = Literal["frames", "run"]

_log = structlog.get_logger("flight_server.storage.folder")


class Folder:
    """One folder, made if it does not exist. ``owner``: of the data directory, 16 hex digits. ``held``: whether the
    data directory is still this server's. Once it is not, no file is made and no commit counts.
    """

    def __init__(self, path: Path, owner: str, held: Callable[[], bool] = lambda: True) -> None:
        self.path = path
        self.owner = owner
        self._held = held
        self._lock = threading.Lock()
        self._made = self._synced = 0  # files
        self._make_folder()

    def make(self, suffix: Suffix) -> tuple[Path, int]:
        """A new, empty file: its path, and a descriptor to write and read it. Raises OSError."""
        self.check_held()
        if not self.path.is_dir():  # it has vanished, and what is spilled from now on needs it
            self._make_folder()
        path = self.path / f"{self.owner}-{secrets.token_hex(8)}.{suffix}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with self._lock:
            self._made += 1
        return path, fd

    def _make_folder(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        sync_directory(self.path.parent)

    def check_held(self) -> None:
        """Raise OSError if the data directory was removed, moved or replaced: new files would be lost."""
        if not self._held():
            raise OSError(
                errno.ESTALE,
                "the data directory was removed or replaced while this server used it; restart the server",
            )

    def sync(self) -> None:
        """Write the names of all files to the medium, if some were made since the last time. Raises OSError: some names
        may not be there, and the next call writes them; also as :meth:`check_held`.
        """
        self.check_held()
        with self._lock:
            made = self._made
        if made > self._synced:
            sync_directory(self.path)
            self._synced = made

    def own(self, names: Iterable[str]) -> list[Path]:
        """The paths of those that are names of this folder's owner, and may be deleted."""
        return [self.path / name for name in names if self._is_own(name)]

    def sweep(self, named: Container[str], refused: Callable[[Path], None]) -> list[str]:
        """Delete the garbage; the paths of all foreign entries. ``named``: the names in the records. ``refused``: gets
        the files that the disk keeps.
        """
        foreign = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if not self._is_own(entry.name) or not entry.is_file(follow_symlinks=False):
                    foreign.append(entry.path)
                    _log.warning("foreign_files_left_alone", path=entry.path)
                elif entry.name not in named:
                    try:
                        Path(entry.path).unlink()
                    except OSError:
                        refused(Path(entry.path))
        return sorted(foreign)

    def has_files(self) -> bool:
        """Whether the server has made any that is still there."""
        return any(self._is_own(path.name) for path in self.path.iterdir())

    def unnamed(self, named: Container[str]) -> dict[tuple[str, str], list[str]]:
        """By dataset and generation, as their headers say, the files that were made for durable datasets and that no
        row names: after damage of the records, or garbage. Raises OSError.
        """
        files: dict[tuple[str, str], list[str]] = defaultdict(list)
        for path in sorted(self.path.iterdir()):
            if self._is_own(path.name) and path.name not in named:
                header = read_header(path)
                if header is not None and header.durable:
                    files[header.dataset, header.generation].append(path.name)
        return files

    def _is_own(self, name: str) -> bool:
        match = FILE_NAME.fullmatch(name)
        return match is not None and match["owner"] == self.owner
