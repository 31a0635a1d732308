"""What a disk's medium has of a directory: what its processes have synced. For servers whose machine loses its power.

In the process that works on the directory, ``Platter(root, store).install()`` notes each fsync of a file and of a
directory below ``root`` in the directory ``store``, and those of SQLite if ``sqlite_files`` calls ``around``. Once that
process has been killed, from outside and at any moment, ``restore(store, root)`` puts ``root`` into the state that the
machine would find after the loss of its power: a file has the bytes that it had at its last fsync, a directory the
entries that it had then. That is the least that a file system promises; it may keep more. What is there at ``install``
has been there for long.

Limits: inode numbers must not be used again while it runs, as on tmpfs (``ram_directory``).
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import sqlite_files

_ROOT = "root"


class Platter:
    """See the module's text. ``store`` is a directory that is not there yet, in the same file system."""

    def __init__(self, root: Path, store: Path) -> None:
        self._root = root
        self._store = store
        self._lock = threading.Lock()
        self._entered: set[int] = set()  # logs of SQLite that have synced their directory

    def install(self) -> None:
        """Wrap the functions that sync, for the life of the process."""
        self._store.mkdir()
        self._root.mkdir(parents=True, exist_ok=True)
        for path in [self._root, *self._root.rglob("*")]:
            self._sync(path)
        (self._store / _ROOT).write_text(str(self._root.stat().st_ino))
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._after(getattr(os, name)))

    def around(self, what: str, path: Path, work: Callable[[], None]) -> None:
        """What ``sqlite_files`` is to call."""
        work()
        if what == "sync" and path.is_relative_to(self._root):
            if path.name.endswith(sqlite_files.LOGS) and (inode := path.stat().st_ino) not in self._entered:
                self._entered.add(inode)
                self._sync(path.parent)
            self._sync(path)

    def _after(self, sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def synced(fd: Any) -> None:
            sync(fd)
            number = fd if isinstance(fd, int) else fd.fileno()
            if Path(f"/proc/self/fd/{number}").readlink().is_relative_to(self._root):
                self._sync(Path(f"/proc/self/fd/{number}"))

        return synced

    def _sync(self, path: Path) -> None:
        """Note what the file or the directory has now. A kill in the middle leaves a part of it, as of a real fsync."""
        with self._lock:
            try:
                inode = path.stat().st_ino
                if path.is_dir():
                    entries = {}
                    for entry in os.scandir(path):
                        entries[entry.name] = [entry.stat(follow_symlinks=False).st_ino, entry.is_dir()]
                    unfinished = self._store / f"{inode}.new"
                    unfinished.write_text(json.dumps(entries))
                    unfinished.replace(self._store / f"{inode}.json")
                else:
                    _copy(path, self._store / str(inode))
            except (
                FileNotFoundError
            ):  # removed meanwhile: what is noted of its directory says whether it is there
                pass


def restore(store: Path, root: Path) -> None:
    """Put ``root`` into the state that is noted in ``store``, and remove that. No process uses either."""
    inode = int((store / _ROOT).read_text())
    shutil.rmtree(root, ignore_errors=True)
    _restore(store, inode, root)
    shutil.rmtree(store)


def _restore(store: Path, inode: int, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    try:
        entries = json.loads((store / f"{inode}.json").read_text())
    except FileNotFoundError:
        return  # it was never synced
    for name, (number, is_directory) in entries.items():
        if is_directory:
            _restore(store, number, directory / name)
        elif (store / str(number)).exists():
            shutil.copyfile(store / str(number), directory / name)
        else:
            (directory / name).touch()


def _copy(source: Path, target: Path) -> None:
    """Make the target's bytes those of the source, in place."""
    with source.open("rb") as reads, target.open("r+b" if target.exists() else "wb") as writes:
        shutil.copyfileobj(reads, writes, 1 << 20)
        writes.truncate()
