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
from urllib.parse import quote, unquote

from flight_server.protocol import InvalidRequest

from .globs import escaped

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|file:/")
_HADOOP_NAMES = ("s3a://", "s3n://")
_BUCKETS = ("s3", "gs", "gcs")
_OPTIONS = re.compile(r"\?[\w.-]+=")
_QUOTED = re.compile(r"((?:%[0-9A-Fa-f]{2})+)")
# The ends of the names of secrets among the arguments of file systems, of pyarrow and of fsspec, at any depth.
_SECRET = re.compile(
    r"(secret|token|password|passphrase|credentials?|credential_token_expiration|authorization|cookies?"
    r"|connection_string|(^|[_-])(auth|key|key_id))$",
    re.IGNORECASE,
)
# gcsfs also takes a word that says where to look for the token.
_NO_SECRETS = ("anon", "browser", "cache", "cloud", "google_default")


def locate(texts: Iterable[str]) -> list[tuple[Any, str]]:
    """For each address or local path its file system, and the pattern of paths in it (``globs``).

    A local path is taken as it is. In an address that pyarrow knows ``%20`` is a blank, ``%2A`` a star that is no
    pattern's, and ``%25`` what Spark, which decodes nothing, writes as ``%``; on others fsspec decides. Options follow
    the path, ``?region=…``; another ``?`` belongs to the pattern. One bucket has one file system.

    Raises:
        InvalidRequest: an address has a password, cannot be reached, or neither pyarrow nor fsspec knows its kind.
    """
    buckets: dict[tuple[str, str, str], tuple[Any, str]] = {}
    return [_located(text, buckets) for text in texts]


def _located(text: str, buckets: dict[tuple[str, str, str], tuple[Any, str]]) -> tuple[Any, str]:
    from pyarrow import fs  # noqa: PLC0415 - only a scan needs it

    if not _ADDRESS.match(text):
        here = "" if text.startswith("/") else escaped(str(Path.cwd()))
        return fs.LocalFileSystem(), str(Path(here, text))
    if text.startswith(_HADOOP_NAMES):
        text = "s3://" + text.partition("://")[2]
    scheme, place, path, options = _parts(text)
    shown = f"{scheme}://{place.rpartition('@')[2]}{path}"
    if ":" in place.rpartition("@")[0]:
        raise InvalidRequest(
            f"scan: the address of {scheme}://...@{place.rpartition('@')[2]} has a password in it; leave it out: "
            "tasks take credentials from their environment"
        )
    pattern = _decoded(path)
    if scheme == "file" and place in ("", "localhost"):
        return fs.LocalFileSystem(), str(Path(pattern))
    bucket = (scheme, place, options)
    try:
        if scheme in _BUCKETS:
            if bucket not in buckets:
                # Once, because pyarrow asks the store for its region each time.
                buckets[bucket] = fs.FileSystem.from_uri(f"{scheme}://{place}{options}")
            found, root = buckets[bucket]
            return found, f"{root}{pattern}".rstrip("/")
        found, path = fs.FileSystem.from_uri(f"{scheme}://{place}{quote(pattern)}{options}")
    except ValueError as error:
        if "Unrecognized filesystem" not in str(error):
            raise InvalidRequest(f"scan: {shown}: {error}") from error
        found, path = _of_fsspec(text)
        # What HTTP serves cannot be listed, so that a pattern has no meaning there.
        return found, escaped(path) if scheme in ("http", "https") else path
    except OSError as error:
        raise InvalidRequest(f"scan: {shown} cannot be reached: {error}") from error
    return found, path


def _parts(text: str) -> tuple[str, str, str, str]:
    """An address's scheme, place, path and options, with the question mark."""
    scheme, _, rest = text.partition(":")
    place, path = "", rest
    if rest.startswith("//"):
        place, slash, path = rest[2:].partition("/")
        if not slash and (found := _OPTIONS.search(place)):
            return scheme.lower(), place[: found.start()], "", place[found.start() :]
        path = slash + path
    found = _OPTIONS.search(path) if scheme.lower() != "file" else None
    end = found.start() if found else len(path)
    return scheme.lower(), place, path[:end], path[end:]


def _decoded(path: str) -> str:
    """The pattern that an address's path is of. What was quoted there is not special."""
    parts = _QUOTED.split(path)
    parts[1::2] = [escaped(unquote(part)) for part in parts[1::2]]
    return "".join(parts)


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
