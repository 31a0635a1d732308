"""Batch reads of changelogs on a real server, without Spark: the versions that a plan reads, and how long."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle

from flight_server.protocol import Compacted, InvalidRequest
from spark_client import ShuffleClient
from spark_client.changelogs import with_diff
from spark_client.datasource.batch_read import FlightReader, find, plan_versions
from spark_client.datasource.source_options import BATCH_READ, SourceOptions
from spark_client.datasource.spark_schema import spark_struct
from tests.support.changelog_of_rates import compacted, declare, table


def plan(client: ShuffleClient, **given: str) -> FlightReader:
    options = SourceOptions({"location": client.location, "path": "rates", **given}, BATCH_READ)
    found = find(client._open(), "rates")
    return plan_versions(options, found, spark_struct(with_diff(found.schema), "rates"))


def put(client: ShuffleClient, *times: int) -> None:
    for time in times:
        client.put("rates", table([(("EUR", time, time / 2), 1)]))


def rows(reader: FlightReader) -> list[tuple[int, int]]:
    """Time and diff of each row, as a task reads them."""
    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    (share,) = reader.partitions()
    sent: FlightReader = pickle.loads(dumps(reader))
    found: list[tuple[int, int]] = []
    for batch in sent.read(share):
        found += zip(batch["time"].to_pylist(), batch["_diff"].to_pylist(), strict=True)
    return sorted(found)


def test_a_plan_is_of_one_version_and_may_be_read_again(client: ShuffleClient) -> None:
    declare(client, "rates", 0.0)
    put(client, 1, 2)
    newest, deltas = plan(client), plan(client, after="2")
    put(client, 3)
    assert rows(newest) == rows(newest) == [(2, 1)]
    assert rows(deltas) == [], "up to the version of the plan"
    assert rows(plan(client, after="2")) == [(2, -1), (3, 1)]
    assert rows(plan(client, asOf="2")) == [(2, 1)]


def test_a_version_that_nothing_held_is_gone_and_the_error_says_what_to_do(client: ShuffleClient) -> None:
    declare(client, "rates", 0.0)
    put(client, 1)
    late = plan(client, holdLeaseSeconds="0.1")
    put(client, 2, 3)
    assert compacted(client, "rates") == 3
    with pytest.raises(Compacted, match=r"load it again for the newest, or .* 'hold_lease_seconds' more"):
        rows(late)
    with pytest.raises(Compacted, match="version 1 was compacted"):
        plan(client, asOf="1")


def test_versions_that_are_not_there_are_refused(client: ShuffleClient) -> None:
    declare(client, "rates")
    put(client, 1, 2)
    for given in ({"asOf": "3"}, {"after": "3"}):
        with pytest.raises(InvalidRequest, match="the newest is 2"):
            plan(client, **given)
    for given in ({"after": "1", "asOf": "3"}, {"after": "2", "asOf": "1"}):
        with pytest.raises(InvalidRequest, match="is at version 2: option 'as_of' is a version up to that"):
            plan(client, **given)
