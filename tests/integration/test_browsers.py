"""A page from elsewhere can neither read a server nor use up what it holds; other programs notice nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from pyarrow import flight

from tests.support.bulk import Answer, RawGet, get
from tests.support.durable import action, put, table
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
TABLE = table(100)
CHROME = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Chrome/140.0"}
PATHS = ["/v1/datasets/once/partitions/0", "/v1/datasets/once", "/v1/datasets", "/v1/statistics", "/metrics"]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = ("--allowed-hosts", "flight.example.org", "--allowed-hosts", ".svc.cluster.local")
    with ServerProcess.start(*options, memory_limit="64MiB") as running:
        yield running
    assert running.events("internal_error") == []


@pytest.fixture
def once(server: ServerProcess) -> Iterator[None]:
    """A dataset that one reader uses up; it must still be whole after the test."""
    with flight.connect(server.location) as client:
        action(client, "create", dataset="once", retention={"readers": 1})
        put(client, TABLE, dataset="once")
        yield
        assert get(f"{server.http}/v1/datasets/once").table() == TABLE
        action(client, "drop", dataset="once")


def port(server: ServerProcess) -> str:
    assert server.http is not None
    return server.http.rpartition(":")[2]


def asked(server: ServerProcess, path: str, method: str = "GET", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with RawGet(f"{server.http}{path}", method=method, headers=named) as raw:
        return raw.answer()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.usefixtures("once")
def test_a_name_that_is_not_the_servers_is_refused(server: ServerProcess, path: str) -> None:
    for host in (
        "attacker.example",
        "attacker.example:80",
        "localhost.attacker.example",
        "xflight.example.org",
    ):
        answer = asked(server, path, Host=host)
        assert (answer.status, answer.json()["error"]) == (403, "forbidden"), host
        assert "--allowed-hosts" in answer.json()["message"]


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST.:8816", "127.0.0.1", "127.0.0.1:1", "10.1.2.3:8816", "[::1]", "[::1]:8816"),
        *("flight.example.org", "Flight.Example.ORG:80", "flight-0.flight.default.svc.cluster.local:8816"),
        *(socket.gethostname(), socket.getfqdn()),
    ],
)
def test_an_address_and_the_servers_own_names_are_answered(server: ServerProcess, host: str) -> None:
    assert asked(server, "/v1/datasets", Host=host).status == 200


@pytest.mark.parametrize(
    "host", ["", "a b", "user@localhost", "http://localhost", "localhost/", "[::1", "[::1]x"]
)
def test_what_is_no_host_is_refused(server: ServerProcess, host: str) -> None:
    assert asked(server, "/v1/datasets", Host=host).status in (400, 403)


def test_two_hosts_are_refused(server: ServerProcess) -> None:
    assert asked(server, "/v1/datasets", Host="localhost\r\nHost: attacker.example").status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1.attacker.example:{port}"},
        {"Origin": "http://127.0.0.1:{port}@attacker.example"},
        {"Origin": "file://127.0.0.1:{port}"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "http://attacker.example"},
    ],
)
@pytest.mark.usefixtures("once")
def test_what_a_page_from_elsewhere_asks_for_is_refused(
    server: ServerProcess, headers: dict[str, str]
) -> None:
    given = {name: value.replace("{port}", port(server)) for name, value in headers.items()}
    for path in (*PATHS, "/"):
        answer = asked(server, path, **CHROME, **given)
        assert answer.status == 403, path
        assert not any(name.startswith("access-control-") for name in answer.headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        {"Referer": "http://attacker.example/"},
        {"Referer": "about:blank"},
        {},
    ],
)
@pytest.mark.usefixtures("once")
def test_neither_a_link_nor_an_image_of_a_silent_browser_uses_a_dataset_up(
    server: ServerProcess, headers: dict[str, str]
) -> None:
    assert asked(server, PATHS[0], **CHROME, **headers).status == 403
    assert asked(server, "/", **CHROME, **headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
        {"Referer": "http://127.0.0.1:{port}/"},
        {"Origin": "http://127.0.0.1:{port}"},
    ],
)
def test_the_servers_own_page_and_what_a_person_asks_for_are_answered(
    server: ServerProcess, headers: dict[str, str]
) -> None:
    given = {name: value.replace("{port}", port(server)) for name, value in headers.items()}
    assert asked(server, "/v1/statistics", **CHROME, **given).status == 200


def test_a_page_from_elsewhere_may_neither_put_nor_ask_whether_it_may(server: ServerProcess) -> None:
    for method, path in (("POST", "/v1/put"), ("OPTIONS", "/v1/put"), ("OPTIONS", "/v1/datasets")):
        answer = asked(
            server, path, method, Origin="http://attacker.example", Upgrade="x", Connection="Upgrade"
        )
        assert answer.status == 403
        assert not any(name.startswith("access-control-") for name in answer.headers)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_is_told_to_everyone(server: ServerProcess, path: str) -> None:
    assert asked(server, path, Host="probe.example", Origin="http://attacker.example").status == 200


def test_with_a_token_any_name_will_do_but_no_page_from_elsewhere(flight_server_process: Start) -> None:
    server = flight_server_process(token="secret")
    bearer = {"Authorization": "Bearer secret"}
    assert asked(server, "/v1/datasets", Host="any.example", **bearer).status == 200
    assert asked(server, "/v1/datasets", Host="any.example").status == 401
    assert (
        asked(server, "/v1/datasets", Host="any.example", Origin="http://b.example", **bearer).status == 403
    )


def test_a_server_on_all_interfaces_is_read_by_the_name_that_it_gives_out(
    flight_server_process: Start,
) -> None:
    server = flight_server_process(host="0.0.0.0", insecure=True, allowed_hosts="flight-server")
    assert server.http is not None
    advertised = server.http.partition("://")[2]
    local = f"http://127.0.0.1:{port(server)}"
    for host, status in ((advertised, 200), ("flight-server:8816", 200), ("flight-server.evil.example", 403)):
        with RawGet(f"{local}/v1/datasets", headers={"Host": host}) as raw:
            assert raw.answer().status == status
