"""A server with a client CA serves the clients that it has signed, and new certificates count from the next connection
on, without a restart.
"""

from __future__ import annotations

import pickle
import re
import shutil
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from flight_server.protocol import PUT_PATH, FlightShuffleError, InvalidRequest, Unauthenticated
from spark_client import ShuffleClient
from spark_client.connection import Reading, RemoteServer, Writing, transport
from tests.support.certificates import Authority
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
Lane = Literal["grpc", "bulk"]
LANES: tuple[Lane, Lane] = ("grpc", "bulk")
both_lanes = pytest.mark.parametrize("lane", LANES)
TABLE = pa.table({"n": [1, 2, 3]})
ROUTES = ["/", "/metrics", "/v1/datasets", "/v1/datasets/missing", "/v1/statistics", "/v1/why", "/nowhere"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.new(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.new(tmp_path_factory.mktemp("theirs"), "theirs")


@pytest.fixture(scope="module")
def process(authority: Authority) -> Iterator[ServerProcess]:
    cert, key = authority.sign("server")
    with ServerProcess.start(
        tls_cert=cert, tls_key=key, tls_client_ca=authority.cert, memory_limit="64MiB"
    ) as running:
        yield running
    assert running.events("internal_error") == []


def trusting(authority: Authority, pair: tuple[Path, Path] | None = None) -> dict[str, Any]:
    cert, key = pair or (None, None)
    return {
        "tls_root_certs": authority.cert.read_bytes(),
        "tls_client_cert": cert,
        "tls_client_key": key,
    }


def status(process: ServerProcess, path: str, context: ssl.SSLContext) -> int:
    try:
        with urllib.request.urlopen(f"{process.http}{path}", timeout=30, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def context_of(authority: Authority, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.cert))
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


@both_lanes
def test_a_client_with_a_signed_certificate_is_served(
    process: ServerProcess, authority: Authority, lane: Lane
) -> None:
    cert, key = authority.sign("client")
    given = trusting(authority) | {"reading": Reading(lane), "writing": Writing(lane)}
    pems = {"tls_client_cert": cert.read_bytes(), "tls_client_key": key.read_bytes()}
    for pair in ({"tls_client_cert": cert, "tls_client_key": key}, pems):
        with ShuffleClient(process.location, **(given | pair)) as client:
            client.put("d", TABLE, mode="overwrite")
            assert client.get("d").read_all() == TABLE


def test_a_client_without_one_gets_nothing_over_grpc(
    process: ServerProcess, authority: Authority, stranger: Authority
) -> None:
    for pair in (None, stranger.sign("client")):
        with (
            closing(RemoteServer(process.location, **trusting(authority, pair))) as server,
            pytest.raises(FlightShuffleError),
        ):
            server.action("locations")


def test_a_client_without_one_gets_health_checks_alone_over_http(
    process: ServerProcess, authority: Authority, stranger: Authority
) -> None:
    without, signed = context_of(authority), context_of(authority, authority.sign("client"))
    assert {status(process, path, without) for path in ROUTES} == {401}
    assert {path: status(process, path, signed) for path in ROUTES} == {
        path: 404 if path in ("/nowhere", "/v1/datasets/missing") else 200 for path in ROUTES
    }
    for path in ("/healthz", "/readyz"):
        assert status(process, path, without) == status(process, path, signed) == 200
    with pytest.raises((urllib.error.URLError, OSError)):
        status(process, "/healthz", context_of(authority, stranger.sign("client")))


def test_a_put_without_one_is_refused_before_the_connection_is_upgraded(
    process: ServerProcess, authority: Authority
) -> None:
    request = urllib.request.Request(f"{process.http}{PUT_PATH}", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(request, timeout=30, context=context_of(authority))
    with refused.value as answer:
        assert b"client certificate" in answer.read()


def test_a_pickle_of_files_has_their_names_alone_and_a_missing_one_is_named(
    process: ServerProcess, authority: Authority
) -> None:
    cert, key = authority.sign("client")
    server = RemoteServer(process.location, **trusting(authority, (cert, key)))
    sent = pickle.dumps(server)
    assert key.read_bytes() not in sent
    with closing(pickle.loads(sent)) as received:
        assert received.action("locations")["start"]
        key.unlink()
        with pytest.raises(Unauthenticated, match="the key of the client's certificate is to be read from"):
            received.action("locations")
    with pytest.raises(InvalidRequest, match="tls_client_cert and tls_client_key go together"):
        RemoteServer(process.location, tls_client_cert=cert)


# New certificates.


def reachable(process: ServerProcess, lane: Lane, **credentials: Any) -> bool:
    """Whether a new connection to this lane's port is served."""
    try:
        if lane == "grpc":
            with closing(RemoteServer(process.location, **credentials)) as server:
                server.action("locations", once=True)
            return True
        context = ssl.create_default_context(cadata=credentials["tls_root_certs"].decode())
        if credentials["tls_client_cert"] is not None:
            context.load_cert_chain(credentials["tls_client_cert"], credentials["tls_client_key"])
        return status(process, "/v1/statistics", context) == 200
    except (FlightShuffleError, OSError):
        return False


def asked(process: ServerProcess, context: ssl.SSLContext, session: Any = None) -> Any:
    """Ask over a new connection, which resumes the TLS session if there is one; the session of this one."""
    where = urlsplit(process.http or "")
    with (
        socket.create_connection(("127.0.0.1", where.port or 0), 30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as tls,
    ):
        tls.sendall(b"GET /v1/statistics HTTP/1.0\r\n\r\n")
        if tls.recv(12) != b"HTTP/1.0 200":
            raise ConnectionResetError
        assert tls.session_reused == (session is not None)
        return tls.session


def write(pair: tuple[Path, Path], to: tuple[Path, Path]) -> None:
    for one, other in zip(pair, to, strict=True):
        shutil.copyfile(one, other)


@pytest.fixture
def mounted(tmp_path: Path) -> tuple[Path, Path]:
    directory = tmp_path / "mounted"
    directory.mkdir()
    return directory / "tls.crt", directory / "tls.key"


def test_a_new_certificate_counts_for_new_connections_and_old_ones_go_on(
    flight_server_process: Start,
    authority: Authority,
    stranger: Authority,
    mounted: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "CONNECTIONS", 1)
    write(authority.sign("server"), mounted)
    process = flight_server_process(tls_cert=mounted[0], tls_key=mounted[1], memory_limit="64MiB")
    before, after = trusting(authority), trusting(stranger)
    with closing(RemoteServer(process.location, **before)) as old:
        assert old.action("locations")["start"]
        write(stranger.sign("server"), mounted)
        eventually(lambda: len(process.events("certificates_reloaded")), 1)
        for lane in LANES:
            assert reachable(process, lane, **after)
            assert not reachable(process, lane, **before)
        assert old.action("locations")["start"]


def tls_metrics(process: ServerProcess, context: ssl.SSLContext) -> dict[str, float]:
    with urllib.request.urlopen(f"{process.http}/metrics", timeout=30, context=context) as answer:
        text = answer.read().decode()
    assert re.search("^flight_shuffle_certificate_expiry_seconds [1-9]", text, re.MULTILINE)
    found = re.findall(r'flight_shuffle_(reload\w+){file="tls"} (\S+)', text)
    return {name: float(number) for name, number in found}


def test_files_that_do_not_fit_change_nothing_and_are_logged_once(
    flight_server_process: Start, authority: Authority, mounted: tuple[Path, Path]
) -> None:
    first, second = authority.sign("server"), authority.sign("other")
    write(first, mounted)
    process = flight_server_process(tls_cert=mounted[0], tls_key=mounted[1], memory_limit="64MiB")
    shutil.copyfile(second[0], mounted[0])
    eventually(lambda: len(process.events("certificates_refused")), 1)
    assert all(reachable(process, lane, **trusting(authority)) for lane in LANES)
    assert tls_metrics(process, context_of(authority)) == {"reloads_failed_total": 1, "reload_trouble": 1}
    mounted[1].unlink()
    eventually(lambda: len(process.events("certificates_refused")), 2)
    shutil.copyfile(second[1], mounted[1])
    eventually(lambda: len(process.events("certificates_reloaded")), 1)
    assert tls_metrics(process, context_of(authority)) == {"reloads_failed_total": 2, "reload_trouble": 0}
    refused = [line["error"] for line in process.events("certificates_refused")]
    assert ["no PEM certificate chain" in refused[0], "cannot be read" in refused[1]] == [True, True]
    assert all(reachable(process, lane, **trusting(authority)) for lane in LANES)


def test_a_client_whose_authority_is_taken_away_connects_no_more(
    flight_server_process: Start, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    cert, key = authority.sign("server")
    trusted = tmp_path / "clients.pem"
    shutil.copyfile(authority.cert, trusted)
    process = flight_server_process(tls_cert=cert, tls_key=key, tls_client_ca=trusted, memory_limit="64MiB")
    ours, theirs = (trusting(authority, each.sign("client")) for each in (authority, stranger))
    context = context_of(authority, (ours["tls_client_cert"], ours["tls_client_key"]))
    for lane in LANES:
        assert (reachable(process, lane, **ours), reachable(process, lane, **theirs)) == (True, False)
    session = asked(process, context)
    asked(process, context, session)
    shutil.copyfile(stranger.cert, trusted)
    eventually(lambda: len(process.events("certificates_reloaded")), 1)
    for lane in LANES:
        assert (reachable(process, lane, **ours), reachable(process, lane, **theirs)) == (False, True)
    with pytest.raises(OSError):  # noqa: PT011  # closed with or without an alert
        asked(process, context, session)


def test_a_client_presents_what_its_files_have_now(
    flight_server_process: Start,
    authority: Authority,
    stranger: Authority,
    mounted: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    cert, key = authority.sign("server")
    trusted = tmp_path / "clients.pem"
    shutil.copyfile(authority.cert, trusted)
    process = flight_server_process(tls_cert=cert, tls_key=key, tls_client_ca=trusted, memory_limit="64MiB")
    write(authority.sign("client"), mounted)
    given = trusting(authority, mounted) | {"reading": Reading("bulk"), "writing": Writing("bulk")}
    with ShuffleClient(process.location, **given) as client:
        client.put("d", TABLE)
        shutil.copyfile(stranger.cert, trusted)
        eventually(lambda: len(process.events("certificates_reloaded")), 1)
        write(stranger.sign("client"), mounted)
        client.put("e", TABLE)
        assert client.get("e").read_all() == TABLE
