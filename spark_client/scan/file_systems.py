"""Where files are: addresses become file systems of pyarrow, and those become values for Spark's tasks.

Guarantee: :func:`portable` gives a file system without the secrets that the driver's object had: a task finds its
credentials in its own environment, as pyarrow and fsspec do where they are given none. What says *where* the files are
(region, endpoint, account) goes along, so that no task asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flight_server.protocol import InvalidRequest

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|file:/")
_HADOOP_NAMES = ("s3a://", "s3n://")
# The ends of the names of secrets among the arguments of file systems, of pyarrow and of fsspec, at any depth.
_SECRET = re.compile(
    r"(secret|token|password|passphrase|credentials?|credential_token_expiration|authorization|cookies?"
    r"|connection_string|(^|[_-])(auth|key|key_id))$",
    re.IGNORECASE,
)
# gcsfs also takes a word that says where to look for the token.
_NO_SECRETS = ("anon", "browser", "cache", "cloud", "google_default")


def locate(texts: Iterable[str]) -> list[tuple[Any, str]]:
    """For each address or local path its file system, and the path in it. One bucket has one file system.

    Raises:
        InvalidRequest: an address has a password, cannot be reached, or neither pyarrow nor fsspec knows its kind.
    """
    buckets: dict[tuple[str, str, str], Any] = {}
    return [_located(text, buckets) for text in texts]


def _located(text: str, buckets: dict[tuple[str, str, str], Any]) -> tuple[Any, str]:
    from pyarrow import fs  # noqa: PLC0415 - only a scan needs it

    if not _ADDRESS.match(text):
        return fs.LocalFileSystem(), str(Path(text).absolute())
    if text.startswith(_HADOOP_NAMES):
        text = "s3://" + text.partition("://")[2]
    parts = urlsplit(text)
    if parts.password is not None:
        raise InvalidRequest(
            f"scan: the address of {parts.scheme}://...@{parts.hostname} has a password in it; leave it out: tasks "
            "take credentials from their environment"
        )
    bucket = (parts.scheme, parts.netloc, parts.query)
    if bucket in buckets:
        # Not from the address again: pyarrow asks the store for its region each time.
        return buckets[bucket], f"{parts.netloc}{parts.path}".rstrip("/")
    try:
        found, path = fs.FileSystem.from_uri(text)
    except ValueError as error:
        if "Unrecognized filesystem" not in str(error):
            raise InvalidRequest(f"scan: {text}: {error}") from error
        found, path = _of_fsspec(text)
    except OSError as error:
        raise InvalidRequest(f"scan: {text} cannot be reached: {error}") from error
    if found.type_name in ("s3", "gcs"):
        buckets[bucket] = found
    return found, path


def portable(filesystem: Any) -> Any:
    """An equal file system without secrets, for a task."""
    from pyarrow import fs  # noqa: PLC0415 - as above

    if isinstance(filesystem, fs.SubTreeFileSystem):
        return fs.SubTreeFileSystem(filesystem.base_path, portable(filesystem.base_fs))
    if isinstance(filesystem, fs.PyFileSystem):
        handler = filesystem.handler
        return (
            fs.PyFileSystem(_without_secrets(handler))
            if isinstance(handler, fs.FSSpecHandler)
            else filesystem
        )
    make, arguments = filesystem.__reduce__()[:2]
    return make(*(_cleaned(each) if isinstance(each, dict) else each for each in arguments))


def _cleaned(options: dict[str, Any]) -> dict[str, Any]:
    found = {
        name: None if _SECRET.search(str(name)) and not _is_word(value) else _cleaned_value(value)
        for name, value in options.items()
    }
    if isinstance(proxy := found.get("proxy_options"), dict):
        found["proxy_options"] = {**proxy, "username": "", "password": ""}
    if options.get("client_secret") and found.get("tenant_id"):
        # Azure takes these only together.
        found["tenant_id"] = found["client_id"] = None
    return found


def _cleaned_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: each for name, each in _cleaned(value).items() if each is not None}
    # A file system of fsspec within another one, such as a cache's.
    return _of_its_kind(value) if hasattr(value, "storage_options") else value


def _is_word(value: Any) -> bool:
    return value in _NO_SECRETS if isinstance(value, str) else False


def _without_secrets(handler: Any) -> Any:
    return type(handler)(_of_its_kind(handler.fs))


def _of_its_kind(given: Any) -> Any:
    options = {name: value for name, value in _cleaned(given.storage_options).items() if value is not None}
    return type(given)(*given.storage_args, **options)


def _of_fsspec(text: str) -> tuple[Any, str]:
    from pyarrow import fs  # noqa: PLC0415 - as above

    try:
        import fsspec  # type: ignore[import-not-found]  # noqa: PLC0415 - optional
    except ImportError as error:
        raise InvalidRequest(
            f"scan: pyarrow has no file system for {text}; install fsspec, and what it needs for this address, in the "
            "driver and on the executors"
        ) from error
    try:
        found, path = fsspec.core.url_to_fs(text)
    except (ImportError, ValueError) as error:
        raise InvalidRequest(f"scan: {text}: {error}") from error
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path
