"""Objects in S3: the counterpart of ``roots`` for ``s3://`` URLs.

Credentials and endpoint are the process's own, found as every AWS client finds them. A URL is only bucket and key: with
credentials, or options such as another endpoint, a client could point this server's requests anywhere.

An object can change between the many requests of a reader, so ``files`` compares its identity before and after.
"""

from __future__ import annotations

import re
from typing import Any

from pyarrow import fs

from flight_server.protocol import InvalidRequest, SourceUnavailable

SCHEME = "s3://"
_URL = re.compile(r"s3://(?P<path>[a-z0-9][a-z0-9.-]{1,62}(/[^?#]*)?)")
_IGNORED = (".", "_")


class S3File:
    """An open object."""

    def __init__(self, files: Any, path: str) -> None:
        self._files = files
        self._path = path
        self.stream = files.open_input_file(path)

    def identity(self) -> tuple[int, ...]:
        """Size and time of writing, now. Blocks."""
        found = self._files.get_file_info(self._path)
        if found.type is not fs.FileType.File:
            raise FileNotFoundError(self._path)
        return int(found.size), int(found.mtime_ns)

    def close(self) -> None:
        self.stream.close()


class S3Files:
    """Every bucket that this process's credentials reach. ``files``: a ``pyarrow.fs.FileSystem``; None for the one of
    each URL's bucket, in its own region.
    """

    def __init__(self, files: Any = None) -> None:
        self._files = files

    def files(self, url: str) -> list[str]:
        """The objects that a URL means: itself, or all below it in order. Blocks.

        Raises:
            InvalidRequest: not a plain URL, or there is nothing.
            SourceUnavailable: S3 cannot be reached, or refuses this server.
        """
        files, path = self._split(url)
        try:
            found = files.get_file_info(path)
            if found.type is fs.FileType.File:
                return [url]
            below = files.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        except OSError as error:
            raise SourceUnavailable(f"source: {url} cannot be listed: {error}") from None
        start = len(path.rstrip("/")) + 1
        paths = sorted(each.path for each in below if each.type is fs.FileType.File)
        kept = [path for path in paths if not _is_ignored(path[start:])]
        if not kept:
            raise InvalidRequest(f"source: there is no object at or below {url!r}")
        return [SCHEME + path for path in kept]

    def open(self, url: str) -> S3File:
        """Open the object to read; its owner closes it. Blocks.

        Raises:
            InvalidRequest: not a plain URL.
            SourceUnavailable: its bucket cannot be reached.
            OSError: it cannot be opened.
        """
        return S3File(*self._split(url))

    def _split(self, url: str) -> tuple[Any, str]:
        matched = _URL.fullmatch(url)
        if matched is None:
            raise InvalidRequest(
                f"source: {url!r} is not s3://bucket/key; credentials and options are the server's, not the URL's"
            )
        path = matched["path"]
        if self._files is not None:
            return self._files, path
        try:
            files, _ = fs.FileSystem.from_uri(SCHEME + path.partition("/")[0])
        except OSError as error:
            raise SourceUnavailable(f"source: {url} cannot be reached: {error}") from None
        return files, path


def _is_ignored(path: str) -> bool:
    return any(part.startswith(_IGNORED) for part in path.split("/"))
