"""Offsets of a query over a changelog, on a real server, without Spark: what each batch reads, and what is held."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from flight_server.protocol import Compacted, InvalidRequest, NotFound, StaleTicket, Versions
from spark_client import ShuffleClient
from spark_client.datasource.batch_read import find
from spark_client.datasource.changelog_streams import ChangelogStreamReader, Span
from spark_client.datasource.source_options import STREAM_READ, SourceOptions
from spark_client.pyspark_parts import ReadAllAvailable
from tests.support.changelog_of_rates import compacted, declare, facts, table

STRUCT = StructType(
    [
        StructField("currency", StringType()),
        StructField("time", LongType()),
        StructField("rate", DoubleType()),
        StructField("_diff", LongType(), nullable=False),
    ]
)

limited = pytest.mark.skipif(ReadAllAvailable is None, reason="Spark 4.1 has no limits of triggers")


def reader(client: ShuffleClient, **given: str) -> ChangelogStreamReader:
    """A run of a query over the changelog ``rates``."""
    options = SourceOptions({"location": client.location, "path": "rates", **given}, STREAM_READ)
    return ChangelogStreamReader.plan(options, find(client._open(), "rates"), STRUCT)


def put(client: ShuffleClient, *times: int) -> None:
    """A version for each time."""
    for time in times:
        client.put("rates", table([(("EUR", time, time / 2), 1)]))


def span(found: Any) -> Versions:
    (only,) = found
    assert isinstance(only, Span)
    return only.versions


def rows(query: ChangelogStreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    """Time and diff of each row of a batch."""
    found: list[tuple[int, int]] = []
    for each in query.partitions(start, end):
        for batch in query.read(each):
            found += zip(batch["time"].to_pylist(), batch["_diff"].to_pylist(), strict=True)
    return sorted(found)


def held(client: ShuffleClient) -> list[int]:
    return sorted(hold["version"] for hold in facts(client, "rates")["holds"])


@pytest.mark.parametrize("lane", ["grpc", "bulk"])
def test_a_query_reads_each_version_once_and_holds_what_comes_after_its_last_batch(
    client: ShuffleClient, lane: str
) -> None:
    declare(client, "rates")
    put(client, 1, 2)
    query = reader(client, lane=lane)
    start = query.initialOffset()
    end = query.latestOffset(start)
    assert query.initialOffset() == start, "Spark asks again"
    assert rows(query, start, end) == [(2, 1)]
    assert held(client) == [0]
    assert query.latestOffset(end) == end
    assert held(client) == [2]
    assert query.partitions(end, end) == []
    put(client, 3)
    last = query.latestOffset(end)
    assert rows(query, end, last) == [(2, -1), (3, 1)]
    query.commit(last)
    assert held(client) == [3]


@limited
def test_a_batch_has_at_most_so_many_versions(client: ShuffleClient) -> None:
    declare(client, "rates")
    put(client, 1, 2, 3, 4, 5)
    query = reader(client, maxVersionsPerTrigger="2")
    offset, spans = query.initialOffset(), []
    while (end := query.latestOffset(offset)) != offset:
        spans.append(span(query.partitions(offset, end)))
        offset = end
    assert spans == [Versions(2, 0), Versions(4, 2), Versions(5, 4)]


def test_a_query_that_ends_with_what_there_is_leaves_what_comes_meanwhile(client: ShuffleClient) -> None:
    declare(client, "rates")
    put(client, 1)
    query = reader(client)
    query.prepareForTriggerAvailableNow()
    put(client, 2)
    start = query.initialOffset()
    end = query.latestOffset(start)
    assert end["version"] == 1
    assert query.latestOffset(end) == end


@pytest.mark.parametrize("starting", ["earliest", "latest", "2"])
@pytest.mark.parametrize("delay_seconds", [0.0, 3600.0])
def test_a_first_batch_that_is_repeated_by_another_run_has_the_same_rows(
    client: ShuffleClient, starting: str, delay_seconds: float
) -> None:
    declare(client, "rates", delay_seconds)
    put(client, 1, 2)
    query = reader(client, startingVersion=starting)
    start = query.initialOffset()
    put(client, 3)
    end = query.latestOffset(start)
    first = span(query.partitions(start, end))
    expected = rows(query, start, end)
    put(client, 4)  # a new run begins after it
    again = reader(client, startingVersion=starting if starting != "2" else "4")
    beginning = again.initialOffset()
    assert span(again.partitions(beginning, end)) == first
    assert rows(again, beginning, end) == expected
    assert expected == ([(3, 1)] if starting == "earliest" else [(2, -1), (3, 1)])
    again.commit(end)
    assert held(client) == [3]


@pytest.mark.parametrize("starting", ["earliest", "latest", "1"])
def test_a_query_that_finds_nothing_new_at_first_reads_what_comes(
    client: ShuffleClient, starting: str
) -> None:
    """Spark makes a batch of the first end, whether it is the beginning or not, and writes it to the checkpoint."""
    declare(client, "rates")
    if starting != "earliest":
        put(client, 1)
    query = reader(client, startingVersion=starting)
    start = query.initialOffset()
    end = query.latestOffset(start)
    assert query.partitions(start, end) == []
    assert query.latestOffset(end) == end
    put(client, 2)
    again = reader(client, startingVersion="latest")  # repeats the first batch
    assert again.partitions(again.initialOffset(), end) == []
    again.commit(end)
    last = again.latestOffset(end)
    assert [diff for time, diff in rows(again, end, last) if time == 2] == [1]
    again.commit(last)
    assert held(client) == [last["version"]]


@limited
def test_without_its_past_a_changelog_begins_with_a_snapshot(client: ShuffleClient) -> None:
    declare(client, "rates", 0.0)
    put(client, 1, 2, 3)
    assert compacted(client, "rates") == 3
    query = reader(client, maxVersionsPerTrigger="1")
    start = query.initialOffset()
    put(client, 4)
    end = query.latestOffset(start)
    assert span(query.partitions(start, end)) == Versions(4)
    assert rows(query, start, end) == [(4, 1)]


@pytest.mark.parametrize("starting", ["earliest", "latest", "1"])
def test_spark_without_admission_control_begins_and_goes_on_where_others_do(
    client: ShuffleClient, starting: str
) -> None:
    """Spark 4.1 asks a new query for the end of its first batch before its beginning, and names no last offset."""
    declare(client, "rates", 3600.0)
    put(client, 1, 2)
    query = reader(client, startingVersion=starting)
    end = query.latestOffset()
    start = query.initialOffset()
    first = {"earliest": [(2, 1)], "latest": [], "1": [(1, -1), (2, 1)]}
    assert rows(query, start, end) == first[starting]
    query.commit(end)
    assert query.latestOffset() == end
    put(client, 3)
    again = reader(client, startingVersion=starting)
    assert again.partitions(end, end) == []
    last = again.latestOffset()
    assert rows(again, end, last) == [(2, -1), (3, 1)]
    again.commit(last)
    assert again.latestOffset() == last
    assert held(client) == [3]


def test_a_run_that_repeats_a_batch_still_finds_its_versions(client: ShuffleClient) -> None:
    declare(client, "rates", 0.0)
    put(client, 1)
    query = reader(client)
    start = query.initialOffset()
    end = query.latestOffset(start)
    rows(query, start, end)
    put(client, 2, 3)
    last = query.latestOffset(end)
    again = reader(client)
    assert again.partitions(last, last) == [], "Spark says where the checkpoint ends"
    assert held(client) == [1]
    assert rows(again, end, last) == rows(query, end, last) == [(1, -1), (3, 1)]


def test_versions_that_are_gone_end_a_query_unless_it_may_lose_changes(
    client: ShuffleClient, caplog: pytest.LogCaptureFixture
) -> None:
    declare(client, "rates", 0.0)
    put(client, 1)
    query = reader(client, holdLeaseSeconds="0.1")
    start = query.initialOffset()
    end = query.latestOffset(start)
    query.partitions(start, end)
    query.commit(end)
    put(client, 2, 3)
    assert compacted(client, "rates") == 3
    with pytest.raises(Compacted, match=r"new checkpoint location, .* 'starting_version'"):
        reader(client).latestOffset(end)
    with pytest.raises(Compacted, match="new checkpoint location"):
        reader(client, startingVersion="1").initialOffset()
    with pytest.raises(InvalidRequest, match=r"no version 9|newest is 3"):
        reader(client, startingVersion="9").initialOffset()
    again = reader(client, failOnDataLoss="false")
    lost = again.latestOffset(end)
    assert rows(again, end, lost) == []
    assert "after version 1 up to 3 were compacted, and this query goes on without them" in caplog.text
    put(client, 4)
    last = again.latestOffset(lost)
    assert rows(again, lost, last) == [(3, -1), (4, 1)]
    again.commit(last)
    assert held(client) == [4]


def test_looking_for_more_again_and_again_writes_nothing(client: ShuffleClient) -> None:
    declare(client, "rates")
    put(client, 1)
    query = reader(client)
    end = query.latestOffset(query.initialOffset())
    assert query.latestOffset(end) == end
    left = [hold["lease_left_seconds"] for hold in facts(client, "rates")["holds"]]
    for _ in range(20):
        assert query.latestOffset(end) == end
    # A renewal would give it the whole lease again.
    assert [hold["lease_left_seconds"] for hold in facts(client, "rates")["holds"]] < left
    put(client, 2)
    assert query.latestOffset(end)["version"] == 2


def test_a_changelog_that_is_made_anew_ends_the_query(client: ShuffleClient) -> None:
    declare(client, "rates")
    put(client, 1)
    query = reader(client)
    end = query.latestOffset(query.initialOffset())
    client.drop("rates")
    with pytest.raises(NotFound, match=r"which this query reads, is gone .*was dropped by the client"):
        query.latestOffset(end)
    declare(client, "rates")
    put(client, 1, 2)
    for run in (query, reader(client)):
        with pytest.raises(StaleTicket, match="was dropped and made anew since this query read from it"):
            run.latestOffset(end)


def test_options_of_other_datasets_are_refused(client: ShuffleClient) -> None:
    declare(client, "rates")
    with pytest.raises(
        InvalidRequest, match="'rates' is a changelog, so it takes no option 'max_rows_per_trigger'"
    ):
        reader(client, maxRowsPerTrigger="1")
