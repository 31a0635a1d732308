"""Snapshots and deltas against servers whose every byte is known; ``tests.integration`` has the real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flight_server.memory import MemoryPool
from flight_server.protocol import Versions
from spark_client.changelogs import VersionBatches
from spark_client.changelogs.version_reads import fetch
from spark_client.connection import Reading, RemoteServer, Timeouts
from spark_client.lanes import CutRead
from spark_client.merge import DatasetRef, Portion
from tests.support.http_source import HttpSource
from tests.support.versions import marked, opening, whole

pytestmark = pytest.mark.usefixtures("hasty")

QUICK = Timeouts(tries=2)


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    made = RemoteServer("grpc://127.0.0.1:1", timeouts=QUICK, reading=Reading(lane="bulk"))
    yield made
    made.close()


def at(server: RemoteServer, source: HttpSource) -> DatasetRef:
    return DatasetRef(server, "d", "g1", (Portion((source.url,)),))


def test_a_table_that_was_cut_is_fetched_again_from_its_start(server: RemoteServer) -> None:
    answers = iter(
        [opening([marked([1], 6)]), opening([marked([1], 7)]), whole([marked([1, 2], 8, last=True)])]
    )
    with HttpSource(lambda *_: next(answers), closes=True) as source:
        version, table = fetch(at(server, source), Versions())
        assert (version, table["n"].to_pylist()) == (8, [1, 2])
        assert len(source.requests) == 3


def test_a_table_that_is_cut_at_each_try_is_an_error(server: RemoteServer) -> None:
    with HttpSource(lambda *_: opening([marked([1], 6)]), closes=True) as source:
        with pytest.raises(CutRead):
            fetch(at(server, source), Versions())
        assert len(source.requests) == QUICK.tries + 1


def test_batches_that_were_cut_are_an_error_and_not_read_again(server: RemoteServer) -> None:
    with HttpSource(lambda *_: opening([marked([1], 6)]), closes=True) as source:
        with (
            pytest.raises(CutRead, match="version 6"),
            VersionBatches(at(server, source), Versions()) as batches,
        ):
            list(batches)
        assert len(source.requests) == 1


def test_the_version_is_known_before_the_batches_are_taken(server: RemoteServer) -> None:
    answer = whole([marked([1], 6), marked([2], 6, last=True)])
    with (
        HttpSource(lambda *_: answer) as source,
        VersionBatches(at(server, source), Versions(6, 4)) as batches,
    ):
        assert batches.version == 6
        assert batches.schema.names == ["n"]
        assert [batch["n"].to_pylist() for batch in batches] == [[1], [2]]
        assert source.requests[0][0].endswith("?generation=g1&as_of=6&after=4")


def test_deltas_say_the_version_up_to_which_they_go(server: RemoteServer) -> None:
    with HttpSource(lambda *_: whole([marked([], 9, last=True)])) as source:
        version, table = fetch(at(server, source), Versions(after=4))
        assert (version, table.num_rows) == (9, 0)


def test_batches_that_wait_for_the_consumer_are_counted_in_the_pool(server: RemoteServer) -> None:
    pool = MemoryPool(1 << 20, "reads")
    answer = whole([marked(list(range(1000)), 6, last=True)])
    with (
        HttpSource(lambda *_: answer) as source,
        VersionBatches(at(server, source), Versions(), pool) as batches,
    ):
        assert batches.version == 6
        assert pool.peak_bytes >= 8000
        assert sum(batch.num_rows for batch in batches) == 1000
    assert pool.used_bytes == 0
