"""``doctor``: checks servers, the link to them and this machine, and says of each finding what to change."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from email.parser import BytesHeaderParser
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from flight_server.protocol import FlightShuffleError, Forbidden, Unauthenticated
from spark_client import Timeouts
from spark_client.connection import NoAnswer, check_locations, is_remote

from .connected import Link, connected
from .printing import print_json, print_line, size

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where hosts keep copies of broadcasts; its size is asked
_LITTLE_BYTES = 512 << 20  # of shared memory; and what a server's process needs beside its memory limit
CLOCK_SECONDS = 5.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_SETTINGS_FRAME, _TLS_ALERT = b"\4", b"\x15\x03"
_ENDS = "ends the connection, as one that speaks TLS does"
_REMEDIES = {
    "refuses connections": "start the server with this port, and with --host 0.0.0.0 if it listens on loopback only",
    "cannot be reached": "open it in firewalls and network policies",
    "takes connections and is silent": "find the proxy, firewall or stopped process that holds it",
    "has a certificate that is not trusted": "renew it with the host's name in it, or say --tls-root-certs",
    "speaks no TLS": "write grpc://, or give the server --tls-cert and --tls-key",
    _ENDS: "write grpc+tls:// and, if need be, --tls-root-certs",
    "wants a certificate of the client": "say --tls-client-cert and --tls-client-key, of its --tls-client-ca",
    "speaks another protocol": "name the gRPC port, 8815 by default; 8816 is the HTTP port",
}
_PROBE = """
import sys, google_crc32c, numpy, pyarrow
from spark_client.version import __version__
print("Python %d.%d," % sys.version_info[:2], f"pyarrow {pyarrow.__version__}, numpy {numpy.__version__},", __version__)
"""


@dataclass(frozen=True)
class Finding:
    """One check's. ``bad``: something does not work, or will not; ``warn``: it works, and may cost time or safety."""

    verdict: Literal["ok", "warn", "bad"]
    check: str
    text: str
    remedy: str | None = None
    server: str | None = None


def finding(check: str, text: str, remedy: str = "", *, bad: bool = False, warn: bool = False) -> Finding:
    """``bad`` if it is, else ``warn`` if it is that."""
    return Finding("bad" if bad else "warn" if warn else "ok", check, text, remedy if bad or warn else None)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(connected(_doctor))


def _doctor(
    link: Link,
    *,
    context: typer.Context,
    pyspark_python: Annotated[
        str | None, typer.Option(envvar="PYSPARK_PYTHON", help="the Python of Spark's tasks")
    ] = None,
    seconds: Annotated[float, typer.Option(help="how long each wait may last", min=0.1)] = 5.0,
) -> None:
    """Check servers, the link to them, this machine and the Python of Spark's tasks. Each finding is ok, warn or bad,
    with what to change; exit code 1 if one is bad.
    """
    try:
        locations = check_locations(link.location)
    except FlightShuffleError as error:
        raise typer.BadParameter(error.message) from None

    def findings() -> Iterator[Finding]:
        for location in locations:
            for each in ServerChecks(link, location, seconds).findings():
                yield replace(each, server=location)
        yield _shared_memory()
        if pyspark_python or find_spec("pyspark"):
            # Servers may be looked at from a host that runs no Spark: only what the command line names is bad.
            source = context.get_parameter_source("pyspark_python")
            yield python_of_tasks(pyspark_python, named=getattr(source, "name", "") == "COMMANDLINE")

    any_bad, about = False, None
    for each in findings():
        any_bad = any_bad or each.verdict == "bad"
        if link.as_json:
            print_json(asdict(each))
            continue
        if each.server not in (about, None):
            print_line(each.server or "")
        about = each.server
        print_line(f"{each.verdict:<4}  {each.check}: {each.text}")
        if each.remedy is not None:
            print_line(f"      -> {each.remedy}")
    if any_bad:
        raise typer.Exit(1)


class ServerChecks:
    """Of the server at a location, which are made one after the other. ``seconds``: how long each wait may last."""

    def __init__(self, link: Link, location: str, seconds: float) -> None:
        self._link, self._location, self._seconds = link, location, seconds
        parts = urlsplit(location)
        self._host, self._port, self._is_tls = parts.hostname or "", parts.port or 0, "tls" in parts.scheme

    def findings(self) -> Iterator[Finding]:
        statistics: dict[str, Any] = {}
        refusal: FlightShuffleError | None = None
        silent = False
        trouble, _ = self._probe(self._host, self._port, _PREFACE)
        if trouble is None:
            timeouts = Timeouts(connect_seconds=self._seconds, call_seconds=self._seconds, tries=1)
            try:
                with self._link.remote(self._location, timeouts) as server:
                    places = server.action("locations")["put_locations"]
                    statistics = server.action("statistics")
            except FlightShuffleError as error:
                refusal, silent = error, isinstance(error, NoAnswer)
                if not isinstance(error, Unauthenticated | Forbidden):
                    what = "does not answer a call" if silent else "is another"
                    trouble = f"speaks gRPC, and {what}: {error.message}", "name the port of flight-server"
        yield finding("gRPC port", *(trouble or ("answers",)), bad=trouble is not None)
        if name := proxy_of(self._location):  # not its value, which may have a password
            text = f"gRPC connects through the proxy of the variable {name}, HTTP to the server itself"
            remedy = f"add {self._host} to no_proxy, here and on executors, unless the proxy is meant"
            yield finding("proxy", text, remedy, bad=silent, warn=True)
        if trouble is None:
            yield self._token(refusal)
        if statistics and places:
            yield from self._http_port(places[0])
        servers = statistics.get("servers") or [{}]
        if (host := servers[0].get("host")) is not None:  # which is shown to some principals only
            limit, memory_bytes = sum(each["memory_limit_bytes"] for each in servers), host["memory_bytes"]
            text = f"--memory-limit is {size(limit)}, and its container or machine has {size(memory_bytes)}"
            remedy, tight = (
                "lower --memory-limit, or give it more memory",
                limit + _LITTLE_BYTES > memory_bytes,
            )
            yield finding("memory limit", text, remedy, bad=limit > memory_bytes, warn=tight)

    def _token(self, refusal: FlightShuffleError | None) -> Finding:
        has_token = self._link.credentials.get("token") is not None
        if isinstance(refusal, Unauthenticated):
            text = "the given one is not this server's" if has_token else "one is wanted, and none was given"
            return finding("token", text, "say --token-file, or set FLIGHT_SHUFFLE_TOKEN", bad=True)
        if refusal is not None:
            return finding("token", refusal.message, "check as an administrator, too", warn=True)
        return finding("token", "the server takes it" if has_token else "the server takes calls without one")

    def _http_port(self, place: str) -> Iterator[Finding]:
        parts = urlsplit(place)
        trouble, answer = self._probe(parts.hostname or "", parts.port or 0, _REQUEST)
        yield finding("HTTP port", *(trouble or ("answers",)), bad=trouble is not None)
        date = BytesHeaderParser().parsebytes(answer.partition(b"\r\n")[2])["Date"]
        if trouble is None and date is not None:
            ahead = parsedate_to_datetime(date).timestamp() + 0.5 - time.time()  # it has whole seconds
            text = f"the server's is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this one"
            apart, remedy = abs(ahead) >= CLOCK_SECONDS, "set both by one time server (chrony)"
            yield finding("clock", text, remedy, bad=apart)

    def _probe(self, host: str, port: int, question: bytes) -> tuple[tuple[str, str] | None, bytes]:
        """What is wrong with a port, and what to change, or None; and what it answers to the question."""
        trouble, detail, answer, connected = "cannot be reached", "", b"", False
        try:
            with socket.create_connection((host, port), self._seconds) as sock:
                connected, stream = True, sock
                if self._is_tls:
                    trouble, tls = "speaks no TLS", self._link.tls()
                    tls.set_alpn_protocols(["h2", "http/1.1"])
                    stream = tls.wrap_socket(sock, server_hostname=host)
                trouble = "wants a certificate of the client" if self._is_tls else _ENDS
                with stream:
                    stream.sendall(question)
                    answer = stream.recv(1024)
        except ConnectionRefusedError:
            trouble = "refuses connections"
        except ssl.SSLCertVerificationError as error:
            trouble, detail = "has a certificate that is not trusted", f": {error.verify_message}"
        except (OSError, UnicodeError) as error:
            if connected and isinstance(error, TimeoutError):
                trouble = "takes connections and is silent"
            detail = "" if connected else f": {error}"
        if answer[3:4] == _SETTINGS_FRAME if question is _PREFACE else answer.startswith(b"HTTP/1."):
            return None, answer
        if answer and not answer.startswith(_TLS_ALERT):
            trouble, detail = "speaks another protocol", f": it answers {answer[:20]!r}"
        where, remedy = f"{port}", _REMEDIES[trouble]
        if host != self._host:
            where += f" of {host}, which the server names,"
            remedy = f"start the server with the right --advertise-host, or {remedy}"
        return (f"{where} {trouble}{detail}", remedy), answer


def _shared_memory() -> Finding:
    try:
        size_bytes = shutil.disk_usage(SHARED_MEMORY).total
        text = f"has {size(size_bytes)}"
    except OSError as error:
        size_bytes, text = 0, f"cannot be used: {error.strerror}"
    remedy = "mount one, or a larger one: copies of broadcasts and lookups go to the temporary directory"
    return finding(str(SHARED_MEMORY), text, remedy, warn=size_bytes < _LITTLE_BYTES)


def python_of_tasks(python: str | None, *, named: bool) -> Finding:
    """Compare the interpreter that Spark starts for tasks here with this one. ``named``: by the command line."""
    if python is None:
        text = "PYSPARK_PYTHON is not set, so tasks of a local master run with this one; executors take their python3"
        return finding("Spark's Python", text)
    here, theirs = _versions_of(sys.executable), _versions_of(python)
    differs = here != theirs
    text = f"PYSPARK_PYTHON is {python}" + (
        f", which says {theirs!r}, and this one {here!r}" if differs else ""
    )
    remedy = (
        f"leave it out for a local master, name another, such as {sys.executable}, or let it pip install this package "
        "and the same versions"
    )
    return finding("Spark's Python", text, remedy, bad=differs and named, warn=differs)


def _versions_of(python: str) -> str:
    """Those of the packages that a task needs, or why it cannot run one."""
    command = [shutil.which(python) or python, "-c", _PROBE]
    try:  # not in a folder that may have the package's sources
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")  # noqa: S603
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return str(error)
    return (done.stdout or done.stderr).strip().rpartition("\n")[2]


def proxy_of(location: str) -> str | None:
    """The variable by which gRPC in this process goes through a proxy to a server that the client did not start; None
    without one. gRPC looks at the variables in this order, in small letters only, and for TLS as for plain TCP.
    """
    host, name = urlsplit(location).hostname or "", _set("grpc_proxy", "https_proxy", "http_proxy")
    if name is None or not is_remote(location):
        return None
    left_out = os.environ.get(_set("no_grpc_proxy", "no_proxy") or "", "")
    entries = filter(None, map(str.strip, left_out.split(",")))
    return None if any(map(partial(_covers, host), entries)) else name


def _set(*variables: str) -> str | None:
    return next((each for each in variables if os.environ.get(each)), None)


def _covers(host: str, entry: str) -> bool:
    """Whether an entry of ``no_proxy``, the end of a name or a network, is for the host."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower())
