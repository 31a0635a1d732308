"""``POST /v1/hold``: who may end a hold over HTTP, and with which bodies; and the command that ends one."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flight_server.lanes.http.json_answers import MAX_BODY_BYTES
from spark_client import Changelog, ShuffleClient, latest
from spark_client.cli import main
from tests.support.rates import BY, RATES, rates_of
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]


def post(server: ServerProcess, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    assert server.http is not None
    connection = http.client.HTTPConnection(server.http.partition("://")[2], timeout=60)
    connection.request("POST", "/v1/hold", body, headers)
    answer = connection.getresponse()
    found: tuple[int, dict[str, Any]] = answer.status, json.loads(answer.read())
    connection.close()
    return found


def held(rates: Changelog) -> list[str]:
    return [hold.name for hold in rates.holds()]


def test_who_may_call_the_server_ends_a_hold_over_http_and_by_the_command(
    flight_server_process: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = flight_server_process(token="secret")
    bearer = {"Authorization": "Bearer secret"}
    with ShuffleClient(server.location, token="secret") as client:
        rates = client.changelog("rates", RATES, keep=latest(), **BY)
        rates.put(rates_of(("EUR", 1, 1.0)))
        with rates.hold(lease_seconds=7200.0) as first, rates.hold() as second:
            body = json.dumps({"dataset": "rates", "hold": first.name, "release": True}).encode()
            assert post(server, body)[0] == 401
            assert post(server, body, **bearer, Origin="http://attacker.example")[0] == 403
            assert post(server, b" " * (MAX_BODY_BYTES + 1), **bearer)[1]["error"] == "invalid_request"
            assert post(server, b"{", **bearer)[1]["error"] == "invalid_request"
            assert sorted(held(rates)) == sorted([first.name, second.name])
            assert post(server, body, **bearer)[0] == 200
            assert held(rates) == [second.name]
            status, refused = post(server, body, **bearer)
            assert (status, refused["error"]) == (404, "not_found")
            (token := tmp_path / "token").write_text("secret")
            about = ["rates", "-s", server.location, "--token-file", str(token)]
            main(["holds", *about])
            assert f"{second.name}  version 1, for " in capsys.readouterr().out
            main(["release", about[0], second.name, *about[1:]])
            assert held(rates) == []
            with pytest.raises(SystemExit) as ended:
                main(["release", about[0], second.name, *about[1:]])
            assert ended.value.code == 1
            assert "has no hold" in capsys.readouterr().err
