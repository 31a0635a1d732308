"""Every moment at which a process, or its machine, may end while it works on a directory.

``with CrashPoints(root, copies) as points:`` wraps the functions of :mod:`os` that change what is below ``root``. After
each of them, and in the middle of each write, it keeps two images of the directory; and, for the files of SQLite,
before and after each sync, and after each removal. So a commit has an image with its whole transaction in an unsynced
log.

* of a killed process: all that it has written is there;
* of a machine without power: a file has the bytes that it had at its last fsync, a directory the entries that it had
  then. That is the least that a file system promises.

``points.acknowledged`` goes with each image. Equal images with equal facts are kept once.

Limits: only calls through :mod:`os` and of SQLite (``sqlite_files``) are seen; inode numbers must not be used again
while it runs, as on tmpfs.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import sqlite_files

_WRITES = ("write", "pwrite", "pwritev")
_BY_FD = (*_WRITES, "fsync", "fdatasync", "ftruncate")
_BY_PATH = ("truncate", "rename", "unlink", "mkdir", "rmdir")


@dataclass(frozen=True)
class Image:
    """A directory as a crash would leave it. ``step``: what was done last."""

    path: Path
    step: str
    acknowledged: int


class CrashPoints:
    """See the module's text."""

    def __init__(self, root: Path, copies: Path) -> None:
        self.images: list[Image] = []
        self.acknowledged = 0
        self._root = root
        self._copies = copies
        self._lock = threading.RLock()
        self._originals: dict[str, Callable[..., Any]] = {}
        self._synced: dict[int, bytes] = {}  # by inode
        self._entries: dict[Path, dict[str, int]] = {}  # by directory
        self._known: set[tuple[bytes, int]] = set()
        self._watching = ExitStack()

    def __enter__(self) -> Self:
        for path in [self._root, *self._root.rglob("*")]:  # what is there has been there for long
            self._sync(path)
        for name in (*_BY_FD, *_BY_PATH):
            self._originals[name] = getattr(os, name)
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        self._watching.enter_context(sqlite_files.watching(self._around))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.close()
        for name, function in self._originals.items():
            setattr(os, name, function)

    def of_each_kind(self, *, thorough: bool) -> list[Image]:
        """Of the images that follow one kind of step one from the middle; ``thorough``: of each thing that was
        acknowledged the first and the last.
        """
        kinds: dict[tuple[str, int], list[Image]] = {}
        for image in self.images:
            kind = re.sub(r"-?\b[0-9a-f]{16}\b|-[0-9a-f-]+\b", "", image.step)
            kinds.setdefault((kind, image.acknowledged if thorough else 0), []).append(image)
        if not thorough:
            return [images[len(images) // 2] for images in kinds.values()]
        return [each for images in kinds.values() for each in dict.fromkeys((images[0], images[-1]))]

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(first: Any, *rest: Any, **options: Any) -> Any:
            path = Path(f"/proc/self/fd/{first}").readlink() if name in _BY_FD else Path(first)
            if not path.is_relative_to(self._root):
                return function(first, *rest, **options)
            with self._lock:
                if name in _WRITES:
                    several = name == "pwritev"
                    data = b"".join(rest[0]) if several else bytes(rest[0])
                    half = len(data) // 2
                    parts = [[part] if several else part for part in (data[:half], data[half:])]
                    function(first, parts[0], *rest[1:])
                    self._keep(f"half of {name} {path.name}")
                    place = () if name == "write" else (rest[1] + half,)
                    result = half + function(first, parts[1], *place)
                else:
                    result = function(first, *rest, **options)
                if name in ("fsync", "fdatasync"):
                    self._sync(path)
                self._keep(f"{name} {path.name}")
                return result

        return wrapper

    def _around(self, what: str, path: Path, work: Callable[[], None]) -> None:
        """A step of SQLite's."""
        if not path.is_relative_to(self._root):
            work()
            return
        with self._lock:
            if what == "sync":
                self._keep(f"writes to {path.name}")
            work()
            if what == "sync":
                if path.name.endswith(sqlite_files.LOGS) and path.stat().st_ino not in self._synced:
                    self._sync(path.parent)
                self._sync(path)
            if what != "write":
                self._keep(f"{what} of {path.name}")

    def _sync(self, path: Path) -> None:
        if path.is_dir():
            self._entries[path] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
        elif path.exists():
            self._synced[path.stat().st_ino] = path.read_bytes()

    def _keep(self, step: str) -> None:
        # SQLite makes its -shm anew.
        paths = sorted(path for path in self._root.rglob("*") if not path.name.endswith("-shm"))
        self._keep_image(
            f"killed after {step}", {path: None if path.is_dir() else path.read_bytes() for path in paths}
        )
        self._keep_image(f"without power after {step}", self._durable(self._root))

    def _durable(self, directory: Path) -> dict[Path, bytes | None]:
        found: dict[Path, bytes | None] = {}
        for name, inode in self._entries.get(directory, {}).items():
            path = directory / name
            if path in self._entries or path.is_dir():
                found |= {path: None, **self._durable(path)}
            else:
                found[path] = self._synced.get(inode, b"")
        return found

    def _keep_image(self, step: str, found: dict[Path, bytes | None]) -> None:
        """Args: ``found``: the bytes of files, None of directories."""
        digest = hashlib.sha256(repr(sorted(found.items())).encode()).digest()
        if (digest, self.acknowledged) in self._known:
            return
        self._known.add((digest, self.acknowledged))
        image = self._copies / f"image-{len(self.images)}"
        image.mkdir(parents=True)
        for path, data in found.items():
            copy = image / path.relative_to(self._root)
            if data is None:
                copy.mkdir()
            else:
                copy.write_bytes(data)
        self.images.append(Image(image, step, self.acknowledged))
