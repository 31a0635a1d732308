"""The options that all commands of a server share, and the client that they make.

A location may stand before all other arguments, too, as ``flight-shuffle holds grpc://host:8815 prices``: it is then
that of ``--server`` (:func:`with_server_named`). No name of a dataset has a colon.
"""

from __future__ import annotations

import functools
import inspect
import re
import ssl
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from flight_server.protocol import InvalidRequest
from spark_client import ShuffleClient
from spark_client.connection import ClientCertificate, RemoteServer, Timeouts, TlsContexts

_LOCATION = re.compile(r"(dns\+)?grpc[+a-z]*:.+|[\w.-]+:[0-9]{1,5}|[a-z]+://[^/]*:[0-9]{1,5}/?")

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        "-s",
        envvar="FLIGHT_SHUFFLE_LOCATION",
        help="the server, for example grpc://127.0.0.1:8815, or several with commas between",
        metavar="LOCATION",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="FLIGHT_SHUFFLE_TOKEN",
        help="the server's token; better in the variable or in a file: other users see a command line",
        metavar="TOKEN",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="FLIGHT_SHUFFLE_TOKEN_FILE",
        help="a file that has the server's token; counts before --token",
    ),
]
RootCerts = Annotated[
    Path | None,
    typer.Option(
        "--tls-root-certs",
        envvar="FLIGHT_SHUFFLE_TLS_ROOT_CERTS",
        help="a PEM file of certificates to trust, instead of the system's",
    ),
]
ClientCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-client-cert",
        envvar="FLIGHT_SHUFFLE_TLS_CLIENT_CERT",
        help="a PEM file with the certificate to present to a server with --tls-client-ca",
    ),
]
ClientKey = Annotated[
    Path | None,
    typer.Option("--tls-client-key", envvar="FLIGHT_SHUFFLE_TLS_CLIENT_KEY", help="a PEM file with its key"),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else")]


@dataclass(frozen=True)
class Link:
    """A server, or several, and how a command reaches them and prints.

    Args:
        token: as :class:`.ShuffleClient` takes it.
        tls_root_certs: PEM; None for the system's.
        certificate: what it presents; None for none.
    """

    location: str
    token: str | Path | None = field(repr=False)
    tls_root_certs: bytes | None
    as_json: bool
    certificate: ClientCertificate | None = None

    @classmethod
    def of(
        cls,
        server: str | None,
        *,
        token: str | None,
        token_file: Path | None,
        tls_root_certs: Path | None,
        tls_client_cert: Path | None,
        tls_client_key: Path | None,
        as_json: bool,
    ) -> Link:
        """From the options. Raises BadParameter: no server is named; OSError: the certificates cannot be read."""
        if not server:
            raise typer.BadParameter(
                "no server is named: say -s grpc://host:8815, or set FLIGHT_SHUFFLE_LOCATION"
            )
        if (tls_client_cert is None) != (tls_client_key is None):
            raise typer.BadParameter("--tls-client-cert and --tls-client-key go together")
        roots = None if tls_root_certs is None else tls_root_certs.read_bytes()
        certificate = ClientCertificate.of(tls_client_cert, tls_client_key)
        return cls(server, token_file or token or None, roots, as_json, certificate)

    def tls(self) -> ssl.SSLContext:
        """As the client's connections have it. Raises Unauthenticated: the client's certificate cannot be presented."""
        return TlsContexts(self.tls_root_certs, self.certificate).newest()

    def client(self, location: str | None = None, **options: Any) -> ShuffleClient:
        """A client of the server, or of one of them; ``options`` as the client has them. Raises BadParameter: it is no
        address.
        """
        try:
            return ShuffleClient(location or self.location, **self._credentials(), **options)
        except InvalidRequest as error:
            raise typer.BadParameter(error.message) from None

    def remote(self, location: str, timeouts: Timeouts) -> AbstractContextManager[RemoteServer]:
        """One of the servers, for calls that clients make by themselves."""
        return closing(RemoteServer(location, **self._credentials(), timeouts=timeouts))

    def _credentials(self) -> dict[str, Any]:
        given = self.certificate
        return {
            "token": self.token,
            "tls_root_certs": self.tls_root_certs,
            "tls_client_cert": None if given is None else given.cert,
            "tls_client_key": None if given is None else given.key,
        }


def connected(function: Callable[..., None]) -> Callable[..., None]:
    """A command of the function, whose first argument is a :class:`Link`: it has the link's options beside its own."""
    hints = get_type_hints(function, include_extras=True)
    own = [
        each.replace(annotation=hints[each.name])
        for each in [*inspect.signature(function).parameters.values()][1:]
    ]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in (
            ("server", Server, None),
            ("token", Token, None),
            ("token_file", TokenFile, None),
            ("tls_root_certs", RootCerts, None),
            ("tls_client_cert", ClientCert, None),
            ("tls_client_key", ClientKey, None),
            ("as_json", AsJson, False),
        )
    ]

    @functools.wraps(function)
    def run(**given: Any) -> None:
        link = Link.of(**{each.name: given.pop(each.name) for each in shared})
        function(link, **given)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # what inspect reads first
        [*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *shared]
    )
    run.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
    return run


def with_server_named(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, where the first one that is a location by itself is that of ``--server``."""
    found, before = list[str](), ""
    for at, each in enumerate(arguments):
        if at and not before.startswith("-") and _LOCATION.fullmatch(each):
            return [*found, "--server", *arguments[at:]]
        if each == "--":
            break
        found.append(each)
        before = each
    return [*arguments]
