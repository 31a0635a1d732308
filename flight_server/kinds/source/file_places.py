"""FilePlaces: where sources may read files: local directories, the *roots*, and S3.

Guarantee: a file that :meth:`FilePlaces.open` opens lies in a root, for any path, also if files and directories are
renamed, linked or moved meanwhile; or is an object in S3, if that is allowed.

Roots
    A path is resolved, symbolic links and ``..`` included, and the result must lie in a root. Before the file is
    opened the kernel says where it lies by then, and it must be a regular file, so that no pipe or device blocks a
    thread. A path is absolute, or relative to the first root that has it. A path outside is refused in the same words
    whether it exists or not. The roots themselves may be links.

S3
    Credentials and endpoint are the process's own, found as every AWS client finds them. A URL is only bucket and key:
    with credentials, or options such as another endpoint, a client could point this server's requests anywhere.

Directories
    As in ``pyarrow.dataset`` names that start with ``.`` or ``_`` are left out. A link to a file counts as that file. A
    link to a directory is refused: following it may never end, and leaving it out would silently lose files.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from flight_server.protocol import Forbidden, InvalidRequest, SourceUnavailable

S3_SCHEME = "s3://"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_S3_URL = re.compile(r"s3://(?P<path>(?P<bucket>[a-z0-9][a-z0-9.-]{1,62})(/[^?#]*)?)")
_IGNORED = (".", "_")


class LocalFile:
    """An open file of a root; not memory-mapped: a mapped file that another process shortens ends this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Arrow's readers close their stream; the file stays open for the second look at its identity.
        self.stream: Any = pa.PythonFile(os.fdopen(descriptor, "rb", closefd=False), mode="r")

    def identity(self) -> tuple[int, ...]:
        now = os.fstat(self._descriptor)
        return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns

    def close(self) -> None:
        os.close(self._descriptor)


class S3File:
    """An open object. It can change between the many requests of a reader."""

    def __init__(self, files: fs.FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self.stream: Any = files.open_input_file(path)

    def identity(self) -> tuple[int, ...]:
        """Size and time of writing, now. Blocks."""
        now = self._files.get_file_info(self._path)
        if now.type is not fs.FileType.File:
            raise FileNotFoundError(self._path)
        return int(now.size), int(now.mtime_ns)

    def close(self) -> None:
        self.stream.close()


OpenFile = LocalFile | S3File


class FilePlaces:
    """The places of one server. ``s3``: whether sources may read what the process's credentials reach."""

    def __init__(self, roots: Sequence[Path], *, s3: bool = False) -> None:
        self._roots = tuple(Path(os.path.realpath(root)) for root in roots)
        self._s3 = s3

    def files(self, path: str) -> list[str]:
        """The files that a path means, resolved and in order: itself, or all below it. Blocks.

        Raises:
            Forbidden: the path, or a link below it, leads outside of the roots; it is a URL; or there are no roots.
            InvalidRequest: it is empty, has a NUL or is no plain URL of S3, there is nothing, or a link to a directory
                below it.
            SourceUnavailable: it cannot be read.
        """
        if self._is_s3(path):
            return _objects(path)
        resolved = self._resolve(path)
        try:
            if resolved.is_dir():
                return sorted({str(each) for each in self._below(resolved)})
            if resolved.exists():
                return [str(resolved)]
        except OSError as error:
            raise SourceUnavailable(f"source: {resolved} cannot be read: {error.strerror or error}") from None
        raise InvalidRequest(f"source: there is no file or directory {path!r} in {self._roots_text()}")

    def open(self, path: str) -> OpenFile:
        """Open the file at a resolved path to read; its owner closes it. Blocks.

        Raises:
            Forbidden: a symbolic link has come into the path, or it is no regular file in a root.
            SourceUnavailable: its bucket cannot be reached.
            OSError: it cannot be opened.
        """
        if self._is_s3(path):
            return S3File(*_file_system(path))
        if ".." in Path(path).parts or not self._inside(Path(path)):
            raise self._outside(path)
        # A descriptor that only names the file: it opens no pipe and no device, and what it names stays the same.
        named = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            # Of a file that was replaced or deleted since, the kernel says where it lay.
            if str(Path(f"/proc/self/fd/{named}").readlink()) not in (path, f"{path} (deleted)"):
                raise Forbidden(f"source: a symbolic link has come into {path}")
            if not stat.S_ISREG(os.fstat(named).st_mode):
                raise Forbidden(f"source: {path} is not a regular file")
            return LocalFile(os.open(f"/proc/self/fd/{named}", os.O_RDONLY | os.O_CLOEXEC))
        finally:
            os.close(named)

    def _is_s3(self, path: str) -> bool:
        return self._s3 and path.startswith(S3_SCHEME)

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
        for path in directory.iterdir():
            if path.name.startswith(_IGNORED):
                continue
            if path.is_symlink():
                resolved = Path(os.path.realpath(path))
                if not self._inside(resolved):
                    raise self._outside(str(path))
                if resolved.is_dir():
                    raise InvalidRequest(
                        f"source: {path} is a symbolic link to a directory; create a source of the directory that it "
                        "leads to"
                    )
                yield resolved
            elif path.is_dir():
                yield from self._below(path)
            else:
                yield path

    def _inside(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._roots)

    def _roots_text(self) -> str:
        return "the roots " + ", ".join(map(str, self._roots)) if self._roots else "no root: there is none"

    def _outside(self, path: str) -> Forbidden:
        return Forbidden(f"source: {path!r} does not lie in {self._roots_text()}")


def _file_system(url: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URL's bucket, in its own region, and the path there."""
    matched = _S3_URL.fullmatch(url)
    if matched is None:
        raise InvalidRequest(
            f"source: {url!r} is not s3://bucket/key; credentials and options are the server's, not the URL's"
        )
    try:
        return _bucket(matched["bucket"]), matched["path"]
    except OSError as error:
        raise SourceUnavailable(f"source: {url} cannot be reached: {error}") from None


def _bucket(name: str) -> fs.FileSystem:
    return fs.FileSystem.from_uri(S3_SCHEME + name)[0]


def _objects(url: str) -> list[str]:
    """The objects that a URL means: itself, or all below it in order."""
    files, path = _file_system(url)
    try:
        if files.get_file_info(path).type is fs.FileType.File:
            return [url]
        below = files.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    except OSError as error:
        raise SourceUnavailable(f"source: {url} cannot be listed: {error}") from None
    start = len(path.rstrip("/")) + 1
    objects = [
        S3_SCHEME + each.path
        for each in below
        if each.type is fs.FileType.File
        and not any(part.startswith(_IGNORED) for part in each.path[start:].split("/"))
    ]
    if not objects:
        raise InvalidRequest(f"source: there is no object at or below {url!r}")
    return sorted(objects)
