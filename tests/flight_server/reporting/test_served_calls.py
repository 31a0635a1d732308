"""One line in the log for each call that fails, with all that is known of it; of a flood a few lines and a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from flight_server.reporting.served_calls import LINES_A_SECOND, LineLimit
from tests.support.bulk import RawGet, get
from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, Refused, command, commit, path, put_messages
from tests.support.raw_put import RawPut
from tests.support.raw_put import Refused as PutRefused
from tests.support.server_process import ServerProcess

TOKEN = "S3CR3T"
BATCH = pa.record_batch({"n": [1, 2, 3]})
PUT = {"dataset": "s", "producer": 7, "attempt": "7-1"}


@pytest.fixture(scope="module")
def shared() -> Iterator[ServerProcess]:
    environment = {"FLIGHT_SERVER_TOKEN": TOKEN}
    with ServerProcess.start(memory_limit="64MiB", log_level="debug", environment=environment) as server:
        with RawFlight(server.location, token=TOKEN) as raw:
            raw.action("create", {"dataset": "s", "kind": "shuffle", "partitions": 4})
        yield server
        assert server.terminate() == 0
    assert TOKEN not in server.tail(100_000)


@pytest.fixture
def server(shared: ServerProcess) -> ServerProcess:
    """The server, whose log begins with the test."""
    shared.log.clear()
    return shared


def lines(server: ServerProcess, event: str = "call_failed") -> list[dict[str, Any]]:
    """The lines of the event, once the last call's line must have been read from the log."""
    with RawFlight(server.location, token=TOKEN) as raw, pytest.raises(Refused):
        raw.action("no such action")
    eventually(lambda: any(each["code"] == "unsupported" for each in server.events("call_failed")), True)
    return [each for each in server.events(event) if each.get("code") != "unsupported"]


def messages() -> list[bytes]:
    return put_messages(command(PUT), [BATCH], metadata=iter([b"2"]))


def wrong_totals(server: ServerProcess) -> None:
    with RawFlight(server.location, token=TOKEN) as raw:
        raw.put([*messages(), commit(4, 1)])


def wrong_totals_in_bulk(server: ServerProcess) -> None:
    with RawPut(f"{server.http}/v1/put", token=TOKEN) as put:
        put.send(*messages(), commit(4, 1))
        put.finish()


def get_of_nothing(server: ServerProcess) -> None:
    with RawFlight(server.location, token=TOKEN) as raw:
        raw.get(b'{"dataset": "s", "partition": 9}')


def bulk_get_of_nothing(server: ServerProcess) -> None:
    url = f"{server.http}/v1/datasets/s/partitions/9"
    assert get(url, Authorization=f"Bearer {TOKEN}").status == 404


def drop_of_nothing(server: ServerProcess) -> None:
    with RawFlight(server.location, token=TOKEN) as raw:
        raw.action("drop", {"dataset": "nothing"})


def wrong_token(server: ServerProcess) -> None:
    with RawFlight(server.location, token=TOKEN + "!") as raw:
        raw.get(b"s")


OF_PUT = {"dataset": "s", "producer": 7, "attempt": "7-1"}


@pytest.mark.parametrize(
    ("fail", "level", "said"),
    [
        (wrong_totals, "info", {"lane": "grpc", "operation": "DoPut", "code": "invalid_request", **OF_PUT}),
        (
            wrong_totals_in_bulk,
            "info",
            {"lane": "http", "operation": "POST /v1/put", "code": "invalid_request", **OF_PUT},
        ),
        (
            get_of_nothing,
            "info",
            {"lane": "grpc", "operation": "DoGet", "code": "not_found", "dataset": "s", "partition": 9},
        ),
        (
            bulk_get_of_nothing,
            "info",
            {
                "lane": "http",
                "operation": "GET /v1/datasets/{rest}",
                "code": "not_found",
                "dataset": "s",
                "partition": 9,
            },
        ),
        (
            drop_of_nothing,
            "info",
            {"lane": "grpc", "operation": "DoAction drop", "code": "not_found", "dataset": "nothing"},
        ),
        (wrong_token, "warning", {"lane": "grpc", "operation": "DoGet", "code": "unauthenticated"}),
    ],
)
def test_a_call_that_fails_has_one_line_that_says_all_that_is_known_of_it(
    server: ServerProcess, fail: Callable[[ServerProcess], None], level: str, said: dict[str, Any]
) -> None:
    with suppress(Refused, PutRefused):
        fail(server)
    (line,) = lines(server)
    assert line["peer"].startswith("ipv4:127.0.0.1:")
    assert line["reason"]
    assert line.pop("principal", None) == (None if line["code"] == "unauthenticated" else "token")
    assert {key: line[key] for key in line.keys() - {"event", "timestamp", "peer", "reason", "level"}} == said
    assert line["level"] == level


def test_a_client_that_leaves_is_no_failure(server: ServerProcess) -> None:
    reading = RawGet(
        f"{server.http}/v1/datasets/s/partitions/0", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    put = RawPut(f"{server.http}/v1/put", token=TOKEN)
    put.send(*messages())
    eventually(lambda: _waiting(server), {"producer", "writer"})
    reading.close()
    put.reset()
    eventually(lambda: {line["operation"] for line in server.events("call_left")}, _OPERATIONS)
    assert {line["level"] for line in server.events("call_left")} == {"debug"}
    assert lines(server) == []


_OPERATIONS = {"GET /v1/datasets/{rest}", "POST /v1/put"}


def _waiting(server: ServerProcess) -> set[str]:
    with RawFlight(server.location, token=TOKEN) as raw:
        return {wait["waiting_for"] for wait in raw.action("why")["waits"]}


def test_of_a_flood_a_few_lines_are_written_and_the_others_counted(server: ServerProcess) -> None:
    calls = 20 * LINES_A_SECOND
    ticket = b'{"dataset": "s", "partition": 0, "generation": "0123456789abcdef"}'
    with RawFlight(server.location, token=TOKEN) as raw:
        for _ in range(calls):
            with pytest.raises(Refused):
                raw.get(ticket)

    def counted() -> int:
        suppressed: int = sum(each["suppressed"] for each in server.events("call_failures_suppressed"))
        return suppressed + len(server.events("call_failed"))

    eventually(counted, calls)
    seconds = len({line["timestamp"][:19] for line in server.events("call_failed")}) + 1
    assert len(server.events("call_failed")) <= LINES_A_SECOND * seconds
    assert {each["code"] for each in server.events("call_failures_suppressed")} == {"stale_ticket"}


def test_each_code_has_its_own_limit_which_begins_anew_after_a_second() -> None:
    now = 0.0
    limit = LineLimit(lambda: now)
    assert [limit.admits("a") for _ in range(LINES_A_SECOND + 2)] == [True] * LINES_A_SECOND + [False] * 2
    assert limit.admits("b")
    assert limit.suppressed() == {"a": 2}
    now = 1.0
    assert limit.admits("a")
    assert limit.suppressed() == {}


def test_errors_are_counted_by_their_code(server: ServerProcess) -> None:
    def counted() -> float:
        text = get(f"{server.http}/metrics", Authorization=f"Bearer {TOKEN}").body.decode()
        (line,) = [line for line in text.splitlines() if 'errors_total{code="not_found"}' in line]
        return float(line.rpartition(" ")[2])

    before = counted()
    with RawFlight(server.location, token=TOKEN) as raw:
        for name in ("one", "two"):
            with pytest.raises(Refused):
                raw.ask("GetFlightInfo", path(name))
    assert counted() - before == 2
    assert [line["dataset"] for line in lines(server)] == ["one", "two"]
