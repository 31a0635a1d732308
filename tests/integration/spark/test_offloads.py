"""Exchanges that are kept in shared storage, too, and read on when their servers are gone."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from flight_server.protocol import Forbidden, InvalidRequest
from spark_client import ShuffleClient, Timeouts
from tests.support.failing_tasks import kills_first
from tests.support.server_process import ServerProcess
from tests.support.sums import ROWS, ids_of, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUICK = Timeouts(tries=1, connect_seconds=2)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """The prefix of all servers; at the end nothing is below it."""
    found = tmp_path / "shared"
    found.mkdir()
    yield found
    assert not [*found.rglob("*")]


@pytest.fixture
def servers(shared: Path) -> Iterator[list[ServerProcess]]:
    started = [ServerProcess.start(offload_to=shared) for _ in range(2)]
    yield started
    for server in started:
        server.close()


@pytest.fixture
def several(servers: list[ServerProcess]) -> Iterator[ShuffleClient]:
    with ShuffleClient(",".join(server.location for server in servers), timeouts=QUICK) as found:
        yield found


def objects(shared: Path) -> int:
    return sum(1 for path in shared.rglob("*.arrows"))


def test_a_frame_reads_on_when_all_servers_are_killed(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess], shared: Path
) -> None:
    frame = several.pipeline(numbered(spark)).repartition(8, "k", offload=shared).toDF()
    other = several.pipeline(numbered(spark)).repartition(8, "k", offload=f"file://{shared}/mine").toDF()
    assert objects(shared) == 4
    servers[1].kill()
    assert sorted(row["id"] for row in frame.collect()) == list(range(ROWS))
    servers[0].kill()
    assert sorted(row["id"] for row in frame.collect()) == list(range(ROWS))
    assert frame.join(other, "id").count() == ROWS
    several.release(frame)
    assert objects(shared) == 2
    several.release(other)
    (shared / "mine").rmdir()


@pytest.mark.long
def test_a_server_that_is_lost_between_two_exchanges_is_read_from_its_object(
    spark: SparkSession, several: ShuffleClient, servers: list[ServerProcess], shared: Path, tmp_path: Path
) -> None:
    marker, counted = tmp_path / "killed", tmp_path / "first"

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with counted.open("a") as file:
            file.write("x")
        yield from batches

    df = numbered(spark)
    first = several.pipeline(df).mapInArrow(count, df.schema).repartition(8, "id", offload=shared)
    pipeline = first.mapInArrow(kills_first(marker, servers[1].pid), df.schema).repartition(8, "k")
    assert ids_of(pipeline.toArrow()) == list(range(ROWS))
    assert marker.exists()
    assert len(counted.read_text()) == 6, "the first exchange ran once"


def test_a_prefix_that_servers_may_not_write_to_is_refused(
    spark: SparkSession, several: ShuffleClient, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ran.touch()
        yield from batches

    df = numbered(spark)
    pipeline = several.pipeline(df).mapInArrow(note, df.schema)
    with pytest.raises(Forbidden, match=r"may write below file://.*shared"):
        pipeline.repartition(4, "k", offload=tmp_path / "other").toDF()
    assert not ran.exists(), "no task has begun"
    with pytest.raises(
        InvalidRequest, match=r"repartition\(4, 'k'\): offload is a directory's absolute path"
    ):
        pipeline.repartition(4, "k", offload="relative")
    assert not several.datasets()


def test_an_embedded_server_writes_where_its_client_says(
    spark: SparkSession, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with ShuffleClient.embedded(offload_to=shared, timeouts=QUICK) as client:
        frame = client.pipeline(numbered(spark)).repartition(8, "k", offload=shared).toDF()
        assert client._embedded is not None
        os.kill(client._embedded.pid, signal.SIGKILL)
        assert sorted(row["id"] for row in frame.collect()) == list(range(ROWS))
        client.release(frame)
