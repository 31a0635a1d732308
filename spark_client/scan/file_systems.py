"""Where files are: addresses become file systems of pyarrow, and those become values for Spark's tasks.

Sent to tasks
    The paths, as they were given, because a task opens the files by them: a signed address is one. Of a file system the
    arguments that are known to be needed (``NEEDED``), which say where the files are and how they are read. All else
    stays in the driver, and :func:`portable` logs its names: a task finds credentials in its own environment, as
    pyarrow, fsspec and deltalake do where they are given none. File systems and fragments of other libraries, such as
    Lance's, are sent as those libraries pickle them.

Shown
    Addresses without queries and user info, in plans, logs and errors (``protocol.shown_addresses``); :func:`hidden`
    is for the errors of other libraries.
"""

from __future__ import annotations

import inspect
import logging
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from flight_server.protocol import FlightShuffleError, InvalidRequest, SourceUnavailable, shown

from .globs import escaped

_log = logging.getLogger(__name__)

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|file:/")
_HADOOP_NAMES = ("s3a://", "s3n://")
_BUCKETS = ("s3", "gs", "gcs")
# It may have a slash in it, and a port is none.
_PASSWORD = re.compile(r"[^:/]+://[^/:?#]*:(?!\d+(?:/|$))[^?#]*@")
# The whole of an option, such as a proxy or an endpoint, without a scheme.
_USER_INFO = re.compile(r"(?![A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s@/]*:\S*@|\S*@(?=[^\s@]+:\d+$))")
_OPTIONS = re.compile(r"\?[\w.-]+=")
_QUOTED = re.compile(r"((?:%[0-9A-Fa-f]{2})+)")
NEEDED = frozenset(
    """
    account_name account_url blob_storage_authority blob_storage_scheme branch bucket client_id container
    container_name default_location dfs_storage_authority endpoint endpoint_override endpoint_url host http https
    location_mode org port project project_id protocol ref region region_name repo repo_id repo_type revision role_arn
    external_id scheme session_name sha target_protocol target_service_account tenant_id user username

    accept accept-encoding addressing_style allow_http anon anonymous block_size buffer_size cache_storage cache_type
    check_files client_kwargs compression config_kwargs connect_timeout default_block_size default_cache_type
    default_region encoded expiry_time force_virtual_addressing fs headers load_frequency proxies proxy_options
    read_timeout replication request_timeout requester_pays retries retry_strategy retry_time_limit s3 same_names
    same_scheme signature_version simple_links size_policy skip_signature target_options timeout tls_ca_file_path
    use_ssl user-agent verify version_aware virtual_hosted_style_request
    """.split()  # noqa: SIM905 - a line for each would be two pages
)
"""The arguments, at any depth, of the file systems of pyarrow and fsspec, and of requests' headers."""
_PREFIXES = re.compile(r"^(aws|azure(_storage)?|google)_")
"""Of the same arguments in deltalake."""
_PLACES = ("fo", "path")
"""Addresses of files, which a task opens, as paths are."""
_WORDS = ("anon", "browser", "cache", "cloud", "google_default")
"""Of gcsfs, which takes a word in the place of a token: where to look for it."""


def locate(texts: Iterable[str]) -> list[tuple[Any, str]]:
    """For each address or local path its file system, and the pattern of paths in it (``globs``).

    A local path is taken as it is. In an address that pyarrow knows ``%20`` is a blank, ``%2A`` a star that is no
    pattern's, and ``%25`` a percent sign, which Spark, because it decodes nothing, writes as ``%``; on others fsspec
    decides. Options follow the path, ``?region=…``; another ``?`` belongs to the pattern. One bucket has one file
    system.

    Raises:
        InvalidRequest: an address has a password, cannot be reached, or neither pyarrow nor fsspec knows its kind.
    """
    buckets: dict[tuple[str, str, str], tuple[Any, str]] = {}
    return [_locate(text, buckets) for text in texts]


def _locate(text: str, buckets: dict[tuple[str, str, str], tuple[Any, str]]) -> tuple[Any, str]:
    from pyarrow import fs  # noqa: PLC0415 - only a scan needs it

    if not _ADDRESS.match(text):
        here = "" if text.startswith("/") else escaped(str(Path.cwd()))
        return fs.LocalFileSystem(), str(Path(here, text))
    if text.startswith(_HADOOP_NAMES):
        text = "s3://" + text.partition("://")[2]
    address = shown(text)
    if _PASSWORD.match(text):
        raise InvalidRequest(
            f"scan: the address of {address} has a password in it; leave it out: tasks take credentials from their "
            "environment"
        )
    scheme, place, path, options = _parts(text)
    pattern = _decode(path)
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
            raise InvalidRequest(f"scan: {address}: {shown(str(error))}") from error
        found, path = _of_fsspec(text)
        # HTTP has no listing, so a pattern has no meaning there.
        return found, escaped(path) if scheme in ("http", "https") else path
    except OSError as error:
        raise InvalidRequest(f"scan: {address} cannot be reached: {shown(str(error))}") from error
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


def _decode(path: str) -> str:
    """The pattern that an address's path is of. Quoted characters are not special."""
    parts = _QUOTED.split(path)
    parts[1::2] = [escaped(unquote(part)) for part in parts[1::2]]
    return "".join(parts)


def portable(filesystem: Any) -> Any:
    """An equal file system for a task, with the arguments that it needs, and without credentials."""
    from pyarrow import fs  # noqa: PLC0415 - as above

    if isinstance(filesystem, fs.SubTreeFileSystem):
        return fs.SubTreeFileSystem(filesystem.base_path, portable(filesystem.base_fs))
    if isinstance(filesystem, fs.PyFileSystem):
        handler = filesystem.handler
        if isinstance(handler, fs.FSSpecHandler):
            return fs.PyFileSystem(type(handler)(_of_its_kind(handler.fs)))
        if type(handler).__module__.startswith("deltalake."):
            address, options, *others = handler._handler.__getnewargs__()
            return fs.PyFileSystem(type(handler)(address, _pick_needed(options or {}), *others))
        return filesystem
    make, arguments = filesystem.__reduce__()[:2]
    return make(*(_pick_needed(each) if isinstance(each, dict) else each for each in arguments))


def _pick_needed(options: Mapping[str, Any]) -> dict[str, Any]:
    found, left = dict[str, Any](), list[str]()
    for name, value in options.items():
        known = str(name).lower()
        if known in _PLACES or (known == "token" and value in _WORDS):
            found[name] = value
        elif known in NEEDED or _PREFIXES.sub("", known) in NEEDED:
            found[name] = _to_send(value)
        elif value:
            left.append(str(name))
    if isinstance(proxy := found.get("proxy_options"), dict):
        # pyarrow takes these only together.
        found["proxy_options"] = {**proxy, "username": "", "password": ""}
    if options.get("client_secret"):
        # Azure, too. Without a secret they name a machine's identity.
        found.pop("tenant_id", None)
        found.pop("client_id", None)
    if left:
        _log.info("scan: tasks take %s from their own environment", ", ".join(left))
    return found


def _to_send(value: Any) -> Any:
    from pyarrow import fs  # noqa: PLC0415 - as above

    if isinstance(value, Mapping):
        return _pick_needed(value)
    if isinstance(value, str):
        return shown(_USER_INFO.sub("", value, count=1) if _USER_INFO.match(value) else value)
    if type(value) in (list, tuple):
        if value and all(type(each) in (list, tuple) and len(each) == 2 for each in value):
            return [*_pick_needed(dict(value)).items()]  # headers, as pairs
        return type(value)(map(_to_send, value))
    # A file system within another one, such as a cache's.
    if hasattr(value, "storage_options"):
        return _of_its_kind(value)
    return portable(value) if isinstance(value, fs.FileSystem) else value


def _of_its_kind(given: Any) -> Any:
    """A file system of fsspec with the arguments that are needed, all by name: only a name says what one is."""
    try:
        # Of the class itself it would be that of fsspec's metaclass, which takes anything.
        named = inspect.signature(type(given).__init__).bind_partial(given, *given.storage_args).arguments
    except (TypeError, ValueError):
        named = {}
    named.pop("self", None)
    return type(given)(**_pick_needed({**named, **given.storage_options}))


@contextmanager
def hidden() -> Iterator[None]:
    """Raise errors so that no text of theirs shows more of an address than may be shown, their causes' neither. Raises
    SourceUnavailable: for an error of another library that shows more.
    """
    try:
        yield
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        if shown(text) == text:
            raise
        if isinstance(error, FlightShuffleError):
            raise error from None
        raise SourceUnavailable(f"scan: {type(error).__name__}: {error}") from None


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
