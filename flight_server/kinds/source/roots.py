"""Roots: the directories that sources may read, and the only way to open a file in them.

Guarantee: a file that :meth:`Roots.open` opens lies in a root, for any path, also if files and directories are renamed,
linked or moved meanwhile.

How
    A path is resolved, symbolic links and ``..`` included, and the result must lie in a root. The file is then opened
    element by element from the root on, and no element may have become a symbolic link. It must be a regular file, so
    that no pipe or device blocks a thread. The roots themselves may be links.

Paths
    Absolute, or relative to the first root that has it. A path outside is refused in the same words whether it exists
    or not.

Directories
    Are walked in the order of their names. As in ``pyarrow.dataset`` names that start with ``.`` or ``_`` are left out.
    A link to a file counts as that file. A link to a directory is refused: following it may never end, and leaving it
    out would silently lose files.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from flight_server.protocol import Forbidden, InvalidRequest, SourceUnavailable

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_IGNORED = (".", "_")


class LocalFile:
    """An open file of a root; not memory-mapped: a mapped file that another process shortens ends this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Arrow's readers close their stream; the file stays open for the second look at its identity.
        self.stream = pa.PythonFile(os.fdopen(descriptor, "rb", closefd=False), mode="r")

    def identity(self) -> tuple[int, ...]:
        found = os.fstat(self._descriptor)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def close(self) -> None:
        os.close(self._descriptor)


class Roots:
    """The roots of one server."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = tuple(Path(os.path.realpath(root)) for root in roots)

    def files(self, path: str) -> list[str]:
        """The resolved files that a path means: itself, or all below it in order. Blocks.

        Raises:
            Forbidden: the path, or a link below it, leads outside of the roots; it is a URL; or there are no roots.
            InvalidRequest: it is empty or has a NUL, there is nothing, or a link to a directory below it.
            SourceUnavailable: it cannot be read.
        """
        found = self._resolve(path)
        try:
            if found.is_dir():
                return [str(each) for each in self._below(found)]
            if found.exists():
                return [str(found)]
        except OSError as error:
            raise SourceUnavailable(f"source: {found} cannot be read: {error.strerror or error}") from None
        raise InvalidRequest(f"source: there is no file or directory {path!r} in {self._roots_text()}")

    def open(self, path: str) -> LocalFile:
        """Open the file at a resolved path to read; its owner closes it. Blocks.

        Raises:
            Forbidden: an element of the path has become a symbolic link, or the path is no regular file in a root.
            OSError: it cannot be opened.
        """
        root = next((root for root in self._roots if Path(path).is_relative_to(root)), None)
        if root is None or ".." in Path(path).parts:
            raise self._outside(path)
        *directories, name = Path(path).relative_to(root).parts or (".",)
        here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for directory in directories:
                below = _open_at(here, directory, os.O_DIRECTORY, path)
                os.close(here)
                here = below
            file = _open_at(here, name, os.O_NONBLOCK, path)
        finally:
            os.close(here)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise Forbidden(f"source: {path} is not a regular file")
        return LocalFile(file)

    def _resolve(self, path: str) -> Path:
        if not path or "\0" in path:
            raise InvalidRequest("source: a path must not be empty and must have no NUL")
        if _URL.match(path):
            raise Forbidden(f"source: {path!r} is a URL; sources read files in {self._roots_text()}")
        if not self._roots:
            raise Forbidden(f"source: {path!r} cannot be read: this server has no --source-roots")
        candidates = [Path(os.path.realpath(root / path)) for root in self._roots]
        inside = [each for each in candidates if self._inside(each)]
        if not inside:
            raise self._outside(path)
        for each in inside:
            with suppress(OSError):
                if each.exists():
                    return each
        return inside[0]

    def _below(self, directory: Path) -> Iterator[Path]:
        entries = sorted(os.scandir(directory), key=_name)
        for entry in entries:
            if entry.name.startswith(_IGNORED):
                continue
            path = directory / entry.name
            if entry.is_symlink():
                resolved = Path(os.path.realpath(path))
                if not self._inside(resolved):
                    raise self._outside(str(path))
                if resolved.is_dir():
                    raise InvalidRequest(
                        f"source: {path} is a symbolic link to a directory; give the directory that it leads to "
                        "as a path of its own"
                    )
                yield resolved
            elif entry.is_dir():
                yield from self._below(path)
            else:
                yield path

    def _inside(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._roots)

    def _roots_text(self) -> str:
        return "the roots " + ", ".join(map(str, self._roots)) if self._roots else "no root: there is none"

    def _outside(self, path: str) -> Forbidden:
        return Forbidden(f"source: {path!r} does not lie in {self._roots_text()}")


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _open_at(directory: int, name: str, flags: int, path: str) -> int:
    """Open one element of a path, no symbolic link."""
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=directory)
    except OSError as error:
        # O_NOFOLLOW fails with ELOOP for a link, and together with O_DIRECTORY with ENOTDIR.
        with suppress(OSError):
            if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                raise Forbidden(f"source: a symbolic link has come into {path}") from None
        raise error from None
