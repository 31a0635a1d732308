"""What ``doctor`` checks of one server: two ports, each by what the other says; token, clock, limits, round trips."""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from flight_server.protocol import FlightShuffleError, Forbidden, NotFound, Unauthenticated, Unsupported
from spark_client import Reading, Timeouts, Writing
from spark_client.connection import TimedOut, Unreachable, is_loopback, proxy_of

from .connected import Link
from .findings import Finding, bad, ok, warn
from .port_probes import Answer, Speaks, probe
from .server_limits import limits

CLOCK_WARN_SECONDS, CLOCK_BAD_SECONDS = 5.0, 60.0
EXPIRY_DAYS = 14
_GRPC, _HTTP, _TOKEN, _TLS = "gRPC port", "HTTP port", "token", "TLS"


@dataclass(frozen=True)
class _Page:
    """An answer over HTTP."""

    status: int
    body: dict[str, Any]
    date: str | None


class ServerChecks:
    """Of the server at a location, which are made one after the other.

    Args:
        prefix: of the name of the dataset that is written.
        seconds: how long each wait may last.
    """

    def __init__(self, link: Link, location: str, prefix: str, seconds: float) -> None:
        self._link = link
        self._location = location
        self._prefix = prefix
        self._seconds = seconds
        parts = urlsplit(location)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._is_tls = "tls" in parts.scheme
        self._timeouts = Timeouts(connect_seconds=seconds, call_seconds=seconds, tries=1)

    def findings(self) -> Iterator[Finding]:
        """All of them."""
        if self._location.startswith("grpc+unix:"):
            yield ok(_GRPC, "a socket of this host, which is not probed")
            return
        grpc = self._probe(self._host, self._port, Speaks.GRPC)
        statistics = places = said = None
        if grpc.speaks is Speaks.GRPC:
            try:
                with self._link.client(self._location, timeouts=self._timeouts) as client:
                    statistics = client.statistics()
                places = self._places()
            except FlightShuffleError as error:
                said = error
        address = self._http_address(places)
        web = Answer(Speaks.REFUSED) if address is None else self._probe(*address, Speaks.HTTP)
        yield self._grpc_port(grpc, web, said)
        yield from self._proxy(said)
        yield from self._http_port(address, web, grpc, known=places is not None)
        yield from self._certificate(grpc)
        yield self._token(grpc, said, address if web.speaks is Speaks.HTTP else None)
        if address is not None and web.speaks is Speaks.HTTP:
            yield from self._over_http(address, statistics)
        if statistics is not None:
            yield from limits(statistics)
            for lane, works in (("grpc", True), ("bulk", web.speaks is Speaks.HTTP)):
                if works:
                    yield self._round_trip(lane)

    # The ports.

    def _probe(self, host: str, port: int, wanted: Speaks) -> Answer:
        return probe(host, port, wanted, self._link.tls() if self._is_tls else None, self._seconds)

    def _places(self) -> list[str] | None:
        """Where the server takes calls over HTTP, which it says to each principal; None if it is too old to say it."""
        with self._link.remote(self._location, self._timeouts) as server, suppress(NotFound, Unsupported):
            return [*server.action("locations")["put_locations"]]
        return None

    def _http_address(self, places: list[str] | None) -> tuple[str, int] | None:
        """What the server says; else the port after the other one. None: it has none."""
        if places is None:
            return self._host, self._port + 1
        parts = urlsplit(places[0] if places else "")
        return (parts.hostname or "", parts.port or 0) if places else None

    def _grpc_port(self, grpc: Answer, web: Answer, said: FlightShuffleError | None) -> Finding:
        if grpc.speaks is not Speaks.GRPC:
            text, remedy = _explained(grpc, str(self._port), Speaks.GRPC)
            if web.speaks is Speaks.HTTP:
                text += f"; the HTTP port {self._port + 1} of the host answers, so a server runs there"
            return bad(_GRPC, text, remedy)
        if said is not None and not isinstance(said, Unauthenticated | Forbidden):
            if isinstance(said, Unreachable | TimedOut):
                return bad(
                    _GRPC, f"takes connections, and does not answer a call: {said.message}", "see its log"
                )
            return bad(
                _GRPC, f"is a gRPC server, and not this one: {said.message}", "name the port of flight-server"
            )
        return ok(_GRPC, "answers" + (" over TLS" if self._is_tls else ""))

    def _proxy(self, said: FlightShuffleError | None) -> Iterator[Finding]:
        name = proxy_of(self._location)
        if name is None:
            return
        # Not its value, which may have a password.
        text = f"gRPC connects through the proxy of the variable {name}, HTTP to the server itself"
        remedy = f"add {self._host} to no_proxy, here and on executors, unless the proxy is meant"
        failed = isinstance(said, Unreachable | TimedOut)
        yield (
            bad("proxy", f"{text}; the call failed there", remedy) if failed else warn("proxy", text, remedy)
        )

    def _http_port(
        self, address: tuple[str, int] | None, web: Answer, grpc: Answer, *, known: bool
    ) -> Iterator[Finding]:
        if address is None:
            yield warn(
                _HTTP,
                "the server has none, so all data takes gRPC, which costs more CPU time",
                "start it with --http-port",
            )
        elif web.speaks is Speaks.HTTP:
            yield ok(_HTTP, f"{address[1]} answers" + (" over TLS" if self._is_tls else ""))
        elif known:
            where = str(address[1])
            if address[0] != self._host:
                where += f" of {address[0]}, which the server names,"
            text, remedy = _explained(web, where, Speaks.HTTP)
            yield bad(_HTTP, f"{text}; the gRPC port {self._port} answers", remedy)
        elif grpc.speaks is Speaks.GRPC:
            yield warn(
                _HTTP,
                f"not checked: the server has not said its number, and {address[1]} is not one",
                "change first what the other findings of this server say",
            )

    def _certificate(self, grpc: Answer) -> Iterator[Finding]:
        if grpc.certificate is None:
            return
        ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(grpc.certificate["notAfter"]), UTC)
        left = ends - datetime.now(UTC)
        if left.days < EXPIRY_DAYS:
            yield warn(_TLS, f"the certificate expires in {left.days} days, at {ends:%Y-%m-%d}", "renew it")
        else:
            yield ok(_TLS, f"the certificate is for {self._host}, and valid until {ends:%Y-%m-%d}")

    # What the server says.

    def _token(
        self, grpc: Answer, said: FlightShuffleError | None, address: tuple[str, int] | None
    ) -> Finding:
        given = self._link.token is not None
        if isinstance(said, Unauthenticated):
            what = "is not this server's" if given else "is wanted, and none was given"
            return bad(
                _TOKEN,
                f"a token {what}",
                "say --token-file, or set FLIGHT_SHUFFLE_TOKEN, to one of its tokens",
            )
        if isinstance(said, Forbidden):
            return warn(
                _TOKEN, f"it may not do all that is checked: {said.message}", "check as an administrator, too"
            )
        if grpc.speaks is not Speaks.GRPC or said is not None:
            return warn(_TOKEN, "not checked", "make the gRPC port answer first")
        far = not is_loopback(self._host)
        if given and far and not self._is_tls:
            return warn(
                _TOKEN,
                "the server takes it, and it travels unencrypted",
                "give the server --tls-cert and --tls-key",
            )
        if (
            address is not None
            and far
            and self._page(address, "/v1/statistics", authorized=False).status == 200
        ):
            return warn(
                _TOKEN,
                "none is needed: each client may read and drop all data",
                "start the server with a token",
            )
        return ok(_TOKEN, "the server takes it" if given else "the server takes calls without one")

    def _over_http(self, address: tuple[str, int], statistics: Mapping[str, Any] | None) -> Iterator[Finding]:
        before = time.time()
        health = self._page(address, "/healthz")
        now = (before + time.time()) / 2
        if health.status != 200:
            yield bad(
                _HTTP, f"/healthz is answered with {health.status}", "name the HTTP port of flight-server"
            )
            return
        yield from _clock(health.date, now)
        page = self._page(address, "/v1/statistics", authorized=True)
        if page.status == 403:
            said = page.body.get("message") or "the server does not know its own name"
            yield bad(
                _HTTP, f"refuses this client: {said}", f"start the server with --allowed-hosts {address[0]}"
            )
        elif page.status == 200 and statistics is not None:
            starts = [each["servers"][0]["start"] for each in (page.body, statistics) if each.get("servers")]
            if len({*starts}) > 1:
                yield bad(
                    _HTTP,
                    "leads to another server than the gRPC port",
                    "let both ports lead to one server, with --advertise-host or a service for each server",
                )

    def _page(self, address: tuple[str, int], path: str, *, authorized: bool = False) -> _Page:
        """A GET of it; status 0 if that fails."""
        host, port = address
        if self._is_tls:
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=self._seconds, context=self._link.tls()
            )
        else:
            made = http.client.HTTPConnection(host, port, timeout=self._seconds)
        try:
            token = self._link.token_text() if authorized else None
            made.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
            answer = made.getresponse()
            text = answer.read()
            body = json.loads(text) if text.startswith(b"{") else {}
            return _Page(answer.status, body, answer.getheader("Date"))
        except (OSError, http.client.HTTPException, ValueError):
            return _Page(0, {}, None)
        finally:
            made.close()

    def _round_trip(self, lane: Any) -> Finding:
        check = f"round trip over {'HTTP' if lane == 'bulk' else 'gRPC'}"
        name, sent = f"{self._prefix}doctor-{secrets.token_hex(4)}", pa.table({"number": range(1000)})
        began = time.monotonic()
        try:
            with self._link.client(
                self._location,
                timeouts=self._timeouts,
                reading=Reading(lane=lane),
                writing=Writing(lane=lane),
            ) as client:
                client.put(name, sent)
                try:
                    got = client.get(name).read_all()
                finally:
                    client.drop(name)
        except Forbidden as error:
            return warn(
                check, f"this token may not write: {error.message}", "say --prefix of names that it may write"
            )
        except FlightShuffleError as error:
            return bad(check, f"put, get or drop failed: {error.message}", "see the server's log")
        if not got.equals(sent):
            return bad(
                check, "the rows that came back are others", "report it, with the versions of both sides"
            )
        return ok(check, f"put, get and drop in {1000 * (time.monotonic() - began):.0f} ms")


def _explained(answer: Answer, port: str, wanted: Speaks) -> tuple[str, str]:
    """What was found at a port that should speak something else, and what to change."""
    option = "--port" if wanted is Speaks.GRPC else "--http-port"
    match answer.speaks:
        case Speaks.REFUSED:
            return (
                f"{port} refuses connections",
                f"start the server with this {option}, and with --host 0.0.0.0 if it listens on loopback only",
            )
        case Speaks.UNREACHABLE:
            return f"{port} cannot be reached: {answer.detail}", "open it in firewalls and network policies"
        case Speaks.NOTHING:
            return (
                f"{port} takes connections and is silent",
                "find the proxy, firewall or stopped process that holds it, and let it lead to the server",
            )
        case Speaks.TLS:
            return (
                f"{port} speaks TLS",
                "write grpc+tls:// and, for a certificate of your own, --tls-root-certs",
            )
        case Speaks.NO_TLS:
            return f"{port} speaks no TLS", "write grpc://, or give the server --tls-cert and --tls-key"
        case Speaks.BAD_CERTIFICATE:
            return (
                f"{port} has a certificate that is not trusted: {answer.detail}",
                "renew it with the host's name in it, or say --tls-root-certs with the file of its authority",
            )
        case Speaks.WANTS_CERTIFICATE:
            return (
                f"{port} takes TLS and ends the connection: it wants a certificate of the client, or another one",
                "say --tls-client-cert and --tls-client-key, of an authority in the server's --tls-client-ca",
            )
        case Speaks.GRPC | Speaks.HTTP:
            return (
                f"{port} speaks {answer.speaks}, not {wanted}",
                "the two ports may be exchanged: name the gRPC port, 8815 by default; 8816 is the HTTP port",
            )
    return (
        f"{port} speaks {answer.speaks}: {answer.detail}",
        f"find the program that has it; {option} chooses another",
    )


def _clock(date: str | None, now_seconds: float) -> Iterator[Finding]:
    try:
        there = parsedate_to_datetime(date or "").timestamp() + 0.5  # it has whole seconds
    except ValueError:
        return
    apart = abs(there - now_seconds)
    remedy = "set both by one time server (chrony, systemd-timesyncd)"
    text = f"the server's clock is {apart:.0f} s {'ahead of' if there > now_seconds else 'behind'} this one"
    if apart >= CLOCK_BAD_SECONDS:
        yield bad("clock", text, remedy)
    elif apart >= CLOCK_WARN_SECONDS:
        yield warn("clock", text, remedy)
    else:
        yield ok("clock", "the server's is this one's, to the second")
