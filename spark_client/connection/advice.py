"""Arguments and errors in terms of the Python client: addresses, credentials, the server's errors about a dataset.

Guarantee: an error from here names the caller's argument and the Python call that helps. The server's own error is
its ``__context__``, with the same class and ``detail``.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from flight_server.host import load_pair
from flight_server.protocol import (
    DEFAULT_HTTP_PORT,
    DEFAULT_PORT,
    AlreadyExists,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    Unavailable,
    bracketed,
    is_loopback,
)

_LOCATION = re.compile(r"grpc(\+tcp|\+tls)?://(\[[0-9a-fA-F:.]+\]|[^\s/:@]+):([0-9]{1,5})/?")
_DNS = "dns+"
MODES = ("create", "overwrite")


def is_remote(location: str) -> bool:
    """Whether the address has a host, and that is not this one's loopback. To such a server gRPC takes the proxy that
    the environment names, unless the client has started it; the bulk lane takes none.
    """
    host = urlsplit(location).hostname
    return host is not None and not is_loopback(host)


def check_location(location: Any) -> str:
    """The address of a server, without a slash at its end. Raises InvalidRequest: ``location`` is no address; the
    message has the form that was probably meant.
    """
    if isinstance(location, str):
        if _LOCATION.fullmatch(location):
            return location.removesuffix("/")
        if location.startswith("grpc+unix:"):
            return location
    rest = re.sub(r"^[a-z+]*://", "", location).split("/")[0] if isinstance(location, str) else ""
    rest = re.sub(f":{DEFAULT_HTTP_PORT}$", f":{DEFAULT_PORT}", rest)
    meant = (
        rest if re.fullmatch(r"[^\s@]+:[0-9]{1,5}", rest) else f"{rest.rstrip(':') or 'host'}:{DEFAULT_PORT}"
    )
    raise InvalidRequest(
        f"{location!r} is no address of a server: write 'grpc://{meant}', or 'grpc+tls://{meant}' where it has "
        "a certificate"
    )


def check_locations(location: Any) -> tuple[str, ...]:
    """The addresses of one server, or of several with commas between, each once. ``dns+grpc://host:port`` stands for
    each address that the host's name has now, in order.

    Raises:
        InvalidRequest: one is no address; the message has the form that was probably meant.
        Unavailable: the name has no address, or can have none.
    """
    if not isinstance(location, str):
        return (check_location(location),)
    addresses: list[str] = []
    for each in filter(None, (part.strip() for part in location.split(","))):
        if each.startswith(_DNS):
            addresses += _resolved(check_location(each.removeprefix(_DNS)))
        else:
            addresses.append(check_location(each))
    return tuple(dict.fromkeys(addresses)) or (check_location(location),)


def _resolved(location: str) -> list[str]:
    parts = urlsplit(location)
    assert parts.hostname is not None
    port = location.rpartition(":")[2]
    try:
        answers = socket.getaddrinfo(parts.hostname, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a UnicodeError: a part of the name is empty, or too long
        raise Unavailable(f"{_DNS}{location}: the name {parts.hostname!r} has no address: {error}") from error
    hosts = sorted({str(address[0]) for *_, address in answers})
    return [f"{parts.scheme}://{bracketed(host)}:{port}" for host in hosts]


def check_mode(mode: Any) -> str:
    """The mode of a put. Raises InvalidRequest: it is not one of ``MODES``."""
    if mode not in MODES:
        raise InvalidRequest(
            f"mode is 'create', which refuses a name that exists, or 'overwrite', which replaces it, not {mode!r}"
        )
    return str(mode)


def read_credential(path: Path, what: str) -> bytes:
    """A file's bytes. Raises Unauthenticated: it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unauthenticated(
            f"{what} is to be read from {path} on {socket.gethostname()}, in the driver and in every task: {error}"
        ) from error


def read_token(path: Path) -> str:
    """The token in a file, without white space around it. Raises Unauthenticated: the file cannot be read, has other
    bytes than UTF-8, or is empty.
    """
    try:
        token = read_credential(path, "the token of the server").decode().strip()
    except UnicodeDecodeError as error:
        raise Unauthenticated(f"{path} on {socket.gethostname()} has no token: {error}") from error
    if not token:
        raise Unauthenticated(f"{path} on {socket.gethostname()}, which has the server's token, is empty")
    return token


@contextmanager
def about(dataset: str, location: str) -> Iterator[None]:
    """Raise the server's AlreadyExists and NotFound of a whole dataset in terms of the Python client."""
    try:
        yield
    except AlreadyExists as error:
        raise AlreadyExists(
            f"dataset {dataset!r} exists: choose another name, drop({dataset!r}) first, or replace it by "
            f"put({dataset!r}, ..., mode='overwrite')",
            **{"dataset": dataset, **error.detail},
        ) from error
    except NotFound as error:
        if type(error) is not NotFound or "partition" in error.detail:
            raise
        since = error.detail.get("server_started")
        lost = f", or was lost when the server was started, at {since}" if since else ""
        why = error.detail.get("ended", f"was never written, ended long ago{lost}")
        raise NotFound(
            f"the server {location} has no dataset {dataset!r}: it {why}; datasets() lists those there are",
            **{"dataset": dataset, **error.detail},
        ) from error


@dataclass(frozen=True)
class ClientCertificate:
    """PEM, or files that have it.

    A path is a file on each host where the client, or a task of it, runs; new connections present what it then has.
    """

    cert: bytes | Path
    key: bytes | Path = field(repr=False)

    @classmethod
    def of(cls, cert: bytes | Path | None, key: bytes | Path | None) -> Self | None:
        """None without both. Raises InvalidRequest: one is missing."""
        if cert is None and key is None:
            return None
        if cert is None or key is None:
            raise InvalidRequest("tls_client_cert and tls_client_key go together: a certificate and its key")
        return cls(cert, key)

    def read(self) -> tuple[bytes, bytes]:
        """Certificate and key as they are now. Raises Unauthenticated: a file cannot be read."""
        cert, key = self.cert, self.key
        return (
            read_credential(cert, "the client's certificate") if isinstance(cert, Path) else cert,
            read_credential(key, "the key of the client's certificate") if isinstance(key, Path) else key,
        )


class TlsContexts:
    """The context of new HTTPS connections to one server. Thread-safe.

    Args:
        root_certs: PEM; None for the system's.
    """

    def __init__(self, root_certs: bytes | None, certificate: ClientCertificate | None) -> None:
        self._root_certs = root_certs
        self._certificate = certificate
        self._newest: tuple[tuple[bytes, bytes] | None, ssl.SSLContext] | None = None

    def newest(self) -> ssl.SSLContext:
        """Presents the client's certificate as it is now. Raises Unauthenticated: also, it and the key do not fit."""
        pair = None if self._certificate is None else self._certificate.read()
        known = self._newest
        if known is not None and known[0] == pair:
            return known[1]
        # Another one: threads that connect use the last one, and OpenSSL changes certificate and key one by one.
        context = ssl.create_default_context(
            cadata=None if self._root_certs is None else self._root_certs.decode()
        )
        if pair is not None:
            try:
                load_pair(context, *pair)
            except (ssl.SSLError, ValueError) as error:
                raise Unauthenticated(
                    "tls_client_cert and tls_client_key are no PEM certificate chain with its unencrypted key"
                ) from error
        self._newest = pair, context
        return context
