"""Readers of what no producer can write any more get an error, whether they wait already or come later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.support.bulk import get
from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, Refused, command, put_messages
from tests.support.server_process import ServerProcess

BATCH = pa.record_batch({"n": [1, 2, 3]})


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    # No reader may get its error from this deadline.
    with ServerProcess.start(memory_limit="64MiB", schema_seconds=3600) as started:
        yield started


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawFlight]:
    with RawFlight(server.location) as connected:
        yield connected


def errors_of_both_lanes(server: ServerProcess, raw: RawFlight, ticket: dict[str, Any]) -> list[str]:
    """What a reader gets that comes now."""
    with pytest.raises(Refused) as refused:
        raw.get(json.dumps(ticket).encode())
    url = f"{server.http}/v1/datasets/{ticket['dataset']}/partitions/0?generation={ticket['generation']}"
    return [str(refused.value.detail["error"]), get(url).json()["error"]]


def while_they_wait(
    server: ServerProcess, raw: RawFlight, ticket: dict[str, Any], end: Callable[[], object]
) -> list[str]:
    """What a reader over gRPC gets that waits when ``end`` is called, and one over HTTP that comes then."""
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(errors_of_both_lanes, server, raw, ticket)
        eventually(lambda: [wait["waiting_for"] for wait in raw.action("why")["waits"]], ["producer"])
        end()
        return waiting.result(30)


def test_a_shuffle_that_is_sealed_without_attempts_and_schema(server: ServerProcess, raw: RawFlight) -> None:
    made = raw.action("create", {"dataset": "s", "kind": "shuffle", "partitions": 2})
    ticket = {"dataset": "s", "partition": 0, "generation": made["generation"]}
    seal = {"dataset": "s", "attempts": {}}
    assert while_they_wait(server, raw, ticket, lambda: raw.action("seal", seal)) == ["conflict"] * 2
    assert errors_of_both_lanes(server, raw, ticket) == ["conflict"] * 2
    with pytest.raises(Refused, match="dataset 's' was sealed without a schema"):
        raw.get(b"s/1")


def test_a_stream_that_is_replaced_before_it_had_a_producer(server: ServerProcess, raw: RawFlight) -> None:
    made = raw.action("create", {"dataset": "d"})
    ticket = {"dataset": "d", "partition": 0, "generation": made["generation"]}
    overwrite = put_messages(command({"dataset": "d", "mode": "overwrite"}), [BATCH])
    errors = while_they_wait(server, raw, ticket, lambda: raw.put(overwrite))
    assert errors == ["dataset_dropped", "stale_ticket"], "the second one came after it was replaced"
    assert len(raw.get(b"d")) == 2
