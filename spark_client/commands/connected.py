"""The options that all commands of a server share, and the client that they make."""

from __future__ import annotations

import functools
import inspect
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from flight_server.protocol import InvalidRequest
from spark_client import ShuffleClient
from spark_client.connection import ClientCertificate, RemoteServer, ServerOptions, Timeouts, TlsContexts

AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else")]


@dataclass(frozen=True)
class Link:
    """A server, or several, and how a command reaches them and prints.

    Args:
        credentials: as :class:`.ShuffleClient` takes them.
    """

    location: str
    credentials: ServerOptions = field(repr=False)
    as_json: bool

    def tls(self) -> ssl.SSLContext:
        """As the client's connections have it. Raises Unauthenticated: the client's certificate cannot be presented."""
        options = self.credentials
        certificate = ClientCertificate.of(options.get("tls_client_cert"), options.get("tls_client_key"))
        return TlsContexts(options.get("tls_root_certs"), certificate).newest()

    def client(self) -> ShuffleClient:
        """A client of the servers. Raises BadParameter: the location is no address."""
        try:
            return ShuffleClient(self.location, **self.credentials)
        except InvalidRequest as error:
            raise typer.BadParameter(error.message) from None

    def remote(self, location: str, timeouts: Timeouts) -> AbstractContextManager[RemoteServer]:
        """One of the servers, for calls that clients make by themselves."""
        return closing(RemoteServer(location, **(self.credentials | {"timeouts": timeouts})))


def _link(
    *,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            "-s",
            envvar="FLIGHT_SHUFFLE_LOCATION",
            help="the server, for example grpc://127.0.0.1:8815, or several with commas between",
            metavar="LOCATION",
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="FLIGHT_SHUFFLE_TOKEN",
            help="the server's token; better in the variable or in a file: other users see a command line",
            metavar="TOKEN",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="FLIGHT_SHUFFLE_TOKEN_FILE",
            help="a file that has the server's token; counts before --token",
        ),
    ] = None,
    tls_root_certs: Annotated[
        Path | None,
        typer.Option(
            envvar="FLIGHT_SHUFFLE_TLS_ROOT_CERTS",
            help="a PEM file of certificates to trust, instead of the system's",
        ),
    ] = None,
    tls_client_cert: Annotated[
        Path | None,
        typer.Option(
            envvar="FLIGHT_SHUFFLE_TLS_CLIENT_CERT",
            help="a PEM file with the certificate to present to a server with --tls-client-ca",
        ),
    ] = None,
    tls_client_key: Annotated[
        Path | None,
        typer.Option(envvar="FLIGHT_SHUFFLE_TLS_CLIENT_KEY", help="a PEM file with its key"),
    ] = None,
    as_json: AsJson = False,
) -> Link:
    """The link of these options. Raises BadParameter: no server is named; OSError: the certificates cannot be read."""
    if not server:
        raise typer.BadParameter(
            "no server is named: say -s grpc://host:8815 after the command's name, or set FLIGHT_SHUFFLE_LOCATION"
        )
    if (tls_client_cert is None) != (tls_client_key is None):
        raise typer.BadParameter("--tls-client-cert and --tls-client-key go together")
    credentials = ServerOptions(
        token=token_file or token or None,
        tls_root_certs=None if tls_root_certs is None else tls_root_certs.read_bytes(),
        tls_client_cert=tls_client_cert,
        tls_client_key=tls_client_key,
    )
    return Link(server, credentials, as_json)


def connected(function: Callable[..., None]) -> Callable[..., None]:
    """A command of the function, whose first argument is a :class:`Link`: it has the link's options beside its own."""
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    shared = [*inspect.signature(_link, eval_str=True).parameters.values()]

    @functools.wraps(function)
    def run(**options: Any) -> None:
        link = _link(**{each.name: options.pop(each.name) for each in shared})
        function(link, **options)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # what inspect reads first
        [*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *shared]
    )
    run.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
    return run
