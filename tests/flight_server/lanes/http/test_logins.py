"""The dashboard's cookie, without a browser: what sets it, how far it reaches, and what ends it."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.support.certificates import self_signed
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
TOKEN = "s3cret"  # of these tests only


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess.start(memory_limit="64MiB", token=TOKEN) as running:
        yield running
    assert running.events("internal_error") == []
    assert not any(TOKEN in line for line in running.log)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


def asked(server: ServerProcess, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection(urlsplit(server.http or "").netloc, timeout=60)
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    found = Answer(
        answer.status,
        {name.lower(): value for name, value in answer.getheaders()},
        json.loads(answer.read()),
    )
    connection.close()
    return found


def log_in(server: ServerProcess, token: str = TOKEN, **headers: str) -> Answer:
    body = json.dumps({"token": token}).encode()
    return asked(server, "/login", "POST", body, **{"Content-Type": "application/json", **headers})


def cookie(server: ServerProcess) -> str:
    return log_in(server).headers["set-cookie"].partition(";")[0]


def test_a_login_sets_a_cookie_that_no_script_and_no_other_site_can_use(server: ServerProcess) -> None:
    answer = log_in(server)
    assert answer.status == 200
    named, *rest = answer.headers["set-cookie"].split("; ")
    assert named.startswith(f"flight-shuffle-{urlsplit(server.http or '').port}=")
    assert TOKEN not in named
    assert {"HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"} <= set(rest)
    assert "Secure" not in rest
    assert asked(server, "/v1/statistics", Cookie=named).status == 200
    assert asked(server, "/v1/statistics").status == 401


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN.upper()])
def test_a_wrong_token_gets_no_cookie(server: ServerProcess, token: str) -> None:
    answer = log_in(server, token)
    assert (answer.status, answer.headers.get("set-cookie")) == (401, None)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"token": "s3cret"}', {"Content-Type": "text/plain"}, 400),
        (b"token=s3cret", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"[]", {"Content-Type": "application/json"}, 400),
        (b'{"token": 1}', {"Content-Type": "application/json"}, 400),
        (b'{"token": "s3cret", "more": 1}', {"Content-Type": "application/json"}, 400),
        (b'{"token": "' + b"s" * 5000 + b'"}', {"Content-Type": "application/json"}, 400),
        (
            b'{"token": "s3cret"}',
            {"Content-Type": "application/json", "Origin": "http://attacker.example"},
            403,
        ),
        (b'{"token": "s3cret"}', {"Content-Type": "application/json", "Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_a_form_of_another_page_cannot_log_in(
    server: ServerProcess, body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = asked(server, "/login", "POST", body, **headers)
    assert (answer.status, answer.headers.get("set-cookie")) == (status, None)


def test_a_cookie_changes_something_only_for_the_servers_own_page(server: ServerProcess) -> None:
    mine, body = cookie(server), b'{"dataset": "none", "hold": "x", "release": true}'
    own = f"http://{urlsplit(server.http or '').netloc}"
    assert asked(server, "/v1/hold", "POST", body, Cookie=mine, Origin=own).status == 404
    assert asked(server, "/v1/hold", "POST", body, Cookie=mine).status == 401
    for origin in ("http://attacker.example", "null", "http://127.0.0.1:1"):
        assert asked(server, "/v1/hold", "POST", body, Cookie=mine, Origin=origin).status == 403


def test_a_logout_ends_the_session_for_all_who_have_its_cookie(server: ServerProcess) -> None:
    mine, other = cookie(server), cookie(server)
    answer = asked(server, "/logout", "POST", Cookie=mine)
    assert answer.status == 200
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert asked(server, "/v1/statistics", Cookie=mine).status == 401
    assert asked(server, "/v1/statistics", Cookie=other).status == 200
    assert asked(server, "/logout", "POST").status == 200


@pytest.mark.parametrize("name", ["flight-shuffle-1", "other"])
def test_a_cookie_of_another_name_or_an_invented_one_counts_for_nothing(
    server: ServerProcess, name: str
) -> None:
    mine = cookie(server)
    assert asked(server, "/v1/statistics", Cookie=f"{name}={mine.partition('=')[2]}").status == 401
    assert asked(server, "/v1/statistics", Cookie=f"{mine}x").status == 401


def test_credentials_that_are_wrong_are_not_saved_by_a_cookie(server: ServerProcess) -> None:
    assert asked(server, "/v1/statistics", Cookie=cookie(server), Authorization="Bearer wrong").status == 401


def test_with_tls_the_cookie_is_sent_to_this_host_by_tls_only(
    flight_server_process: Start, tmp_path: Path
) -> None:
    certificate, key = self_signed(tmp_path)
    server = flight_server_process(token=TOKEN, tls_cert=certificate, tls_key=key)
    where = urlsplit(server.http or "")
    trusted = ssl.create_default_context(cafile=str(certificate))
    connection = http.client.HTTPSConnection(where.netloc, timeout=60, context=trusted)
    body = json.dumps({"token": TOKEN})
    connection.request("POST", "/login", body, {"Content-Type": "application/json"})
    named, *rest = (connection.getresponse().getheader("Set-Cookie") or "").split("; ")
    connection.close()
    assert named.startswith(f"__Host-flight-shuffle-{where.port}=")
    assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/"} <= set(rest)


def test_a_server_without_a_token_has_no_logins(flight_server_process: Start) -> None:
    answer = log_in(flight_server_process())
    assert (answer.status, answer.body["message"]) == (400, "this server wants no token")
