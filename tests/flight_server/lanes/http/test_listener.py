"""The HTTP side apart from the streams: statuses, what there is, health, metrics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyarrow import flight

from flight_server.lanes.http.connections import status_of
from flight_server.protocol.errors import error_classes
from tests.support.bulk import RawGet, get, head_of
from tests.support.durable import action, put, table
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/v1/datasets/none/partitions/0", 404, "not_found"),
        ("/v1/datasets/none", 404, "not_found"),
        ("/v1/datasets/there/partitions/1", 404, "not_found"),
        ("/v1/datasets/there/partitions/0?generation=other", 404, "stale_ticket"),
        ("/v1/datasets/there?generation=other", 404, "stale_ticket"),
        ("/v1/datasets/there/partitions/one", 400, "invalid_request"),
        ("/v1/datasets/there/partitions/-1", 400, "invalid_request"),
        ("/v1/datasets/there/partitions/", 400, "invalid_request"),
        ("/v1/datasets/there/partitions/0?limit=1", 400, "invalid_request"),
        ("/v1/datasets/there/partitions/0?from=1&from=2", 400, "invalid_request"),
        ("/v1/datasets/there/partitions/0?from=-1", 400, "invalid_request"),
        ("/v1/datasets/there/partitions/0?from=%C2%B2", 400, "invalid_request"),
        ("/v1/datasets/there/partitions/0?from=2", 400, "invalid_request"),
        ("/v1/datasets/there?from=1", 400, "invalid_request"),
        ("/v1/datasets/a/../there/partitions/0", 400, "invalid_request"),
        ("/v1/datasets/a%20b", 400, "invalid_request"),
        ("/v1/datasets//there", 400, "invalid_request"),
        ("/v1/datasets?suffix=x", 400, "invalid_request"),
        ("/v1/statistics?dataset=none", 404, "not_found"),
        ("/nothing/here", 404, "not_found"),
        ("/v1/datasets/", 404, "not_found"),
    ],
)
def test_a_request_that_cannot_be_served_is_told_why(
    server: ServerProcess, client: flight.FlightClient, path: str, status: int, error: str
) -> None:
    if not get(f"{server.http}/v1/datasets?prefix=there").json()["datasets"]:
        put(client, table(10), dataset="there")
    answer = get(f"{server.http}{path}")
    assert (answer.status, answer.json()["error"]) == (status, error)
    assert answer.json()["message"]
    assert answer.headers["content-type"].startswith("application/json")
    assert head_of(f"{server.http}{path}").status == status


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("as_of=1", "only a changelog has versions to read"),
        ("after=1&follow=true", "only a changelog has versions to read"),
        ("partitions=0,0", "'partitions' lists numbers from 0 to 99999, each once, not (0, 0)"),
    ],
)
def test_a_refusal_says_what_a_path_of_several_partitions_may_have(
    server: ServerProcess, client: flight.FlightClient, query: str, message: str
) -> None:
    action(client, "create", dataset="several", kind="shuffle", partitions=4)
    answer = get(f"{server.http}/v1/datasets/several?{query}")
    assert (answer.status, answer.json()["error"]) == (400, "invalid_request")
    assert message in answer.json()["message"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_is_written_over_http(server: ServerProcess, method: str) -> None:
    with RawGet(f"{server.http}/v1/datasets/x", method=method) as raw:
        answer = raw.answer()
    assert (answer.status, answer.headers["allow"]) == (405, "GET,HEAD")


def test_every_error_has_a_status() -> None:
    by_status = {kind.status: status_of(kind("x")) for kind in error_classes().values()}
    assert by_status == {
        "INVALID_ARGUMENT": 400,
        "UNAUTHENTICATED": 401,
        "PERMISSION_DENIED": 403,
        "NOT_FOUND": 404,
        "INTERNAL": 500,
        "UNIMPLEMENTED": 501,
        "UNAVAILABLE": 503,
    }


def test_datasets_are_listed_by_prefix(server: ServerProcess, client: flight.FlightClient) -> None:
    put(client, table(30), dataset="listed/b")
    action(client, "create", dataset="listed/a", kind="shuffle", partitions=4)
    first, second = get(f"{server.http}/v1/datasets?prefix=listed/").json()["datasets"]
    assert (first["dataset"], first["kind"], first["partitions"], first["sealed"]) == (
        "listed/a",
        "shuffle",
        4,
        False,
    )
    assert (second["dataset"], second["rows"], second["sealed"], second["failed"]) == (
        "listed/b",
        30,
        True,
        False,
    )
    generation = get(f"{server.http}/v1/datasets/listed/b").headers["x-flight-shuffle-generation"]
    assert second["generation"] == generation


def test_statistics_and_why_are_those_of_the_actions(
    server: ServerProcess, client: flight.FlightClient
) -> None:
    put(client, table(30), dataset="counted")
    here = get(f"{server.http}/v1/statistics?dataset=counted").json()
    there = action(client, "statistics", dataset="counted")
    assert here["datasets"]["counted"]["partitions"] == there["datasets"]["counted"]["partitions"]
    assert here.keys() == there.keys()
    assert get(f"{server.http}/v1/why?dataset=counted").json() == action(client, "why", dataset="counted")
