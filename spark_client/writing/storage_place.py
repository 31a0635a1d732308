"""A folder on one of pyarrow's file systems: the few calls that a write makes there, the same on disks and in stores.

Names are paths below the folder, with ``/`` between their parts. A folder that is missing has no files; where the file
system has folders they are made when the first file needs them. ``move`` is a rename where there is one, and in a store
a copy within the store.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flight_server.protocol import InvalidRequest
from spark_client.scan import is_hidden, located

_AT_ONCE = 16
"""So many calls to a store, each of which waits for its answer."""
_STORES = ("s3", "gcs", "abfs")
_IMPOSSIBLE = (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP)
_LISTINGS = 20
"""Another write may remove a folder while it is listed."""
_TRIES = 3
"""Another write may remove an empty folder that this one has made."""


@dataclass(frozen=True)
class Place:
    """The folder. Sent to tasks as pyarrow pickles the file system, with credentials that an address has."""

    filesystem: Any
    folder: str

    @classmethod
    def of(cls, path: Any, filesystem: Any, where: str) -> Place:
        """The folder of a path or address; ``filesystem`` is one of pyarrow or fsspec, None for the path's own.

        Raises:
            InvalidRequest: no path, an address that pyarrow does not know, a file, or a link that leads nowhere.
        """
        from pyarrow import fs  # noqa: PLC0415 - only a write needs it

        if not isinstance(path, str | Path) or not str(path):
            raise InvalidRequest(f"{where} takes a path or an address, not {path!r}")
        if filesystem is None:
            filesystem, text = located(str(path), {}, where, "give filesystem=")
        else:
            if not isinstance(filesystem, fs.FileSystem):
                filesystem = fs.PyFileSystem(fs.FSSpecHandler(filesystem))
            its_own = _of_fsspec(filesystem)
            # Those of fsspec list paths in their own form only, without a scheme, and absolute on disks.
            text = (
                filesystem.normalize_path(str(path))
                if its_own is None
                else its_own._strip_protocol(str(path))
            )
        place = cls(filesystem, text.rstrip("/"))
        try:
            info = filesystem.get_file_info(place.folder)
        except OSError as error:
            raise InvalidRequest(f"{where}: {path} cannot be reached: {error}") from error
        if info.type == fs.FileType.File:
            raise InvalidRequest(f"{where}: {path} is a file; give a folder, whose files a write makes")
        if place._is_local and info.type == fs.FileType.NotFound:
            _check_links(Path(place.folder), where)
        return place

    def below(self, name: str) -> Place:
        return Place(self.filesystem, self.path(name))

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def open(self, name: str) -> Any:
        path = self.path(name)
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):
                return self.filesystem.open_output_stream(path)
            self._make_parent(path)
        return self.filesystem.open_output_stream(path)

    def put(self, name: str, text: str) -> None:
        """Write a small file, which is never seen in part."""
        with self.open(f"{name}~") as stream:
            stream.write(text.encode())
        self.move(f"{name}~", name)

    def get(self, name: str) -> str | None:
        """The text of a small file; None if it is missing."""
        try:
            with self.filesystem.open_input_stream(self.path(name)) as stream:
                return str(stream.read().decode())
        except FileNotFoundError:
            return None

    def move(self, name: str, new: str) -> None:
        """Give a file another name. Raises FileNotFoundError: it is missing."""
        source, target = self.path(name), self.path(new)
        try:
            self.filesystem.move(source, target)
        except OSError:  # not all say that the parent is missing
            self._make_parent(target)
            self.filesystem.move(source, target)

    def move_all(self, names: Iterable[tuple[str, str]]) -> None:
        """As :meth:`move`, several at once. After an error, of which the first is raised, none is on its way."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(lambda each: self.move(*each), names))

    def delete_all(self, names: Iterable[str]) -> None:
        """Delete files; missing ones are fine."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(self.delete, names))

    def delete(self, name: str) -> None:
        """Delete a file, or a link; a missing one is fine, and one that cannot be there."""
        try:
            if self._is_local:
                Path(self.path(name)).unlink(missing_ok=True)
            else:
                self.filesystem.delete_file(self.path(name))
        except (OSError, ValueError) as error:
            if not _cannot_be(error):
                raise

    def delete_folder(self, name: str) -> None:
        """Delete a folder in this one with all that is in it; a missing one is fine."""
        if not name or {"", ".", ".."} & {*name.split("/")}:
            raise ValueError(f"{name!r} is no folder in {self.folder}")
        with suppress(FileNotFoundError):
            self.filesystem.delete_dir(self.path(name))

    def has(self, name: str) -> bool:
        return bool(self.filesystem.get_file_info(self.path(name)).type.name != "NotFound")

    def mark(self, name: str) -> None:
        self.open(name).close()

    def remove_empty(self, names: Iterable[str]) -> None:
        """Remove those folders that are empty, where the file system sees to that itself; stores have no folders."""
        if self._is_local:
            for name in sorted(names, key=len, reverse=True):
                with suppress(OSError, ValueError):
                    Path(self.path(name)).rmdir()

    def stamps(self, names: Iterable[str]) -> dict[str, str]:
        """Of those that are there what tells each from another file of its name: its size and time."""
        names = list(names)
        self._forget_listings()
        try:
            infos = self.filesystem.get_file_info([self.path(name) for name in names])
        except (OSError, ValueError) as error:
            if not _cannot_be(error):
                raise
            return {}
        known = zip(names, infos, strict=True)
        return {name: f"{info.size} {info.mtime_ns}" for name, info in known if info.type.name != "NotFound"}

    def prepare(self, names: Iterable[str]) -> None:
        """See whether files can have these names, and make their folders where the file system has folders. Raises
        OSError, or pyarrow's ValueError: they cannot.
        """
        names = list(names)
        self.filesystem.get_file_info([self.path(name) for name in names])
        if self.filesystem.type_name not in _STORES:
            for parent in {name.rpartition("/")[0] for name in names} - {""}:
                self.filesystem.create_dir(self.path(parent), recursive=True)

    def may_delete(self, names: Iterable[str]) -> bool:
        """Whether files may be deleted, as far as that can be known before."""
        parents = {self.path(name).rpartition("/")[0] for name in names}
        return not self._is_local or all(
            os.access(parent, os.W_OK | os.X_OK, effective_ids=True) for parent in parents
        )

    def names(self) -> list[str]:
        """What is directly in the folder."""
        return [name for name, _ in self._listed(recursive=False)]

    def visible(self) -> Iterator[str]:
        """All files below, but those that readers pass over, because a part of their path is hidden. A link to a folder
        is one of them: what is behind it is not below.
        """
        if self._is_local:
            yield from self._visible_on_disk()
            return
        for name, info in self._listed(recursive=True):
            if info.is_file and not any(map(is_hidden, name.split("/"))):
                yield name

    def _visible_on_disk(self) -> Iterator[str]:
        root = Path(self.folder)
        for parent, folders, files in os.walk(root):
            folders[:] = [each for each in folders if not is_hidden(each)]
            links = [each for each in folders if Path(parent, each).is_symlink()]
            yield from (
                str(Path(parent, name).relative_to(root)) for name in (*files, *links) if not is_hidden(name)
            )

    @property
    def _is_local(self) -> bool:
        from pyarrow import fs  # noqa: PLC0415 - as above

        return isinstance(self.filesystem, fs.LocalFileSystem)

    def _listed(self, *, recursive: bool) -> list[tuple[str, Any]]:
        from pyarrow import fs  # noqa: PLC0415 - as above

        self._forget_listings()
        selector = fs.FileSelector(self.folder, allow_not_found=True, recursive=recursive)
        for left in reversed(range(_LISTINGS)):
            try:
                infos = self.filesystem.get_file_info(selector)
            except FileNotFoundError:
                if not left:
                    raise
            else:
                break
        odd = next((info.path for info in infos if not info.path.startswith(self.folder)), None)
        if odd is not None:
            raise InvalidRequest(
                f"{odd} is listed below {self.folder}: give the path in the file system's own form"
            )
        return [(info.path.removeprefix(self.folder).strip("/"), info) for info in infos]

    def _forget_listings(self) -> None:
        """Systems of fsspec remember them, without what others have written since."""
        remembering = _of_fsspec(self.filesystem)
        if hasattr(remembering, "invalidate_cache"):
            remembering.invalidate_cache()

    def _make_parent(self, path: str) -> None:
        self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)


def _check_links(folder: Path, where: str) -> None:
    """Raise InvalidRequest: it is, or is below, a link to what is not there, in whose place no folder can be made."""
    for each in (folder, *folder.parents):
        if each.is_symlink() and not each.exists():
            raise InvalidRequest(
                f"{where}: {each} is a link to {each.readlink()}, which is not there; make that folder, or give "
                "another path"
            )


def _cannot_be(error: Exception) -> bool:
    """Whether no file can be, or is, where the error comes from; pyarrow's own, of a name with a zero byte, has no
    number.
    """
    return isinstance(error, FileNotFoundError | ValueError) or getattr(error, "errno", None) in _IMPOSSIBLE


def _of_fsspec(filesystem: Any) -> Any:
    """The file system of fsspec behind one of pyarrow; None if there is none."""
    return getattr(getattr(filesystem, "handler", None), "fs", None)
