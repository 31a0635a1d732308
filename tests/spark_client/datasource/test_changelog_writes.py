"""Writes to changelogs as Spark's tasks and driver make them, on a real server, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from flight_server.protocol import (
    AlreadyExists,
    Conflict,
    FlightShuffleError,
    InvalidRequest,
    NotFound,
    WriteMode,
)
from spark_client import ShuffleClient
from spark_client.datasource.source_options import BATCH_WRITE, STREAM_WRITE, SourceOptions
from spark_client.datasource.staging import Staging
from spark_client.datasource.writers import FlightStreamWriter, FlightWriter
from tests.support.changelog_of_rates import KEEP, facts, rows
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

PLAIN = StructType([StructField("currency", StringType()), StructField("time", LongType())])
COUNTED = StructType([*PLAIN.fields, StructField("_diff", IntegerType())])


@pytest.fixture(autouse=True)
def of_query(task: TaskContext) -> None:
    task._localProperties = {"sql.streaming.queryId": "query"}


def options(location: str, use: str, **given: str) -> SourceOptions:
    return SourceOptions({"location": location, "path": "rates", **given}, use)


def stream(location: str, struct: StructType = PLAIN, **given: str) -> FlightStreamWriter:
    """The writer of one micro-batch."""
    checked = options(location, STREAM_WRITE, changelog=KEEP, **given)
    return FlightStreamWriter.plan(checked, struct, overwrite=False)


def batch(*found: tuple[Any, ...]) -> Iterator[Any]:
    names = COUNTED.names[: len(found[0])]
    yield pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in found])


def test_the_first_write_makes_the_changelog_of_its_columns_without_diff(client: ShuffleClient) -> None:
    checked = options(client.location, BATCH_WRITE, changelog=KEEP, delaySeconds="500ms")
    writer = FlightWriter.plan(checked, COUNTED, overwrite=False)
    writer.commit([writer.write(batch(("EUR", 1, 1), ("EUR", 2, 1), ("USD", 1, 1)))])
    assert client._open().schema("rates").names == ["currency", "time"]
    assert (facts(client, "rates")["delay_seconds"], facts(client, "rates")["upper"]) == (0.5, 1)
    # Without the option, and with columns in another order and narrower.
    struct = StructType([COUNTED.fields[2], StructField("time", IntegerType()), COUNTED.fields[0]])
    again = FlightWriter.plan(options(client.location, BATCH_WRITE), struct, overwrite=False)
    retracted = pa.record_batch(
        {"_diff": pa.array([-1], pa.int32()), "time": pa.array([2], pa.int32()), "currency": ["EUR"]}
    )
    again.commit([again.write(iter([retracted]))])
    assert rows(client, "rates") == [("EUR", 1), ("USD", 1)]
    assert facts(client, "rates")["upper"] == 2


KEYS = StructType(PLAIN.fields[:1])


def test_keys_that_are_written_with_the_option_delete_are_deleted(client: ShuffleClient) -> None:
    put = stream(client.location)
    put.commit([put.write(batch(("EUR", 1), ("USD", 1)))], 0)
    checked = options(client.location, BATCH_WRITE, delete="true")
    writer = FlightWriter.plan(checked, KEYS, overwrite=False)
    writer.commit([writer.write(batch(("EUR",), ("CHF",)))])
    assert (rows(client, "rates"), facts(client, "rates")["upper"]) == ([("USD", 1)], 2)
    for _ in range(2):  # a micro-batch that Spark repeats
        again = FlightStreamWriter.plan(
            options(client.location, STREAM_WRITE, delete="true"),
            KEYS,
            overwrite=False,
        )
        again.commit([again.write(batch(("USD",)))], 1)
    assert (rows(client, "rates"), facts(client, "rates")["upper"]) == ([], 3)


def test_a_delete_whose_changelog_is_dropped_before_its_seal_makes_no_dataset(client: ShuffleClient) -> None:
    put = stream(client.location)
    put.commit([put.write(batch(("EUR", 1)))], 0)
    writer = FlightWriter.plan(options(client.location, BATCH_WRITE, delete="true"), KEYS, overwrite=False)
    written = writer.write(batch(("EUR",)))
    client.drop("rates")
    with pytest.raises(FlightShuffleError, match="rates"):
        writer.commit([written])
    assert "rates" not in [info.name for info in client.datasets()]
    client.put("rates", pa.table({"id": [1]}))
    with pytest.raises(InvalidRequest, match="is not a changelog: nothing can be deleted from it by key"):
        writer.commit([written])
    client.drop("rates")
    writer._staging.drop([written.generation])  # type: ignore[attr-defined]


def test_a_delete_that_cannot_be_is_refused_before_a_key_is_sent(client: ShuffleClient) -> None:
    def plan(mode: WriteMode = WriteMode.APPEND, struct: StructType = KEYS, **given: str) -> None:
        Staging.of(
            options(client.location, BATCH_WRITE, delete="true", **given), struct, mode, together=False
        )

    with pytest.raises(NotFound, match="rates"):
        plan()
    client.put("plain", pa.table({"currency": ["EUR"]}))
    with pytest.raises(InvalidRequest, match="is no changelog"):
        plan(path="plain")
    client.changelog("every", pa.schema({"currency": pa.string()}))
    with pytest.raises(InvalidRequest, match="has no keep rule with a key"):
        plan(path="every")
    put = stream(client.location)
    put.commit([put.write(iter(()))], 0)
    with pytest.raises(InvalidRequest, match=r"delete of keys of changelog 'rates': .* unexpected 'time'"):
        plan(struct=PLAIN)
    with pytest.raises(InvalidRequest, match="unexpected '_diff'"):
        plan(struct=StructType([*KEYS.fields, COUNTED.fields[2]]))
    with pytest.raises(InvalidRequest, match="currency"):
        plan(struct=StructType([StructField("currency", LongType())]))
    with pytest.raises(InvalidRequest, match="'delete' goes with mode 'append' alone"):
        plan(WriteMode.OVERWRITE)
    for name, value in (("changelog", KEEP), ("exists", "error"), ("durable", "true")):
        given: dict[str, Any] = {name: value}
        with pytest.raises(InvalidRequest, match=f"'delete' does not go with option '{name}'"):
            plan(**given)


def test_a_write_without_rows_is_a_version_too(client: ShuffleClient) -> None:
    for number in range(2):
        writer = stream(client.location)
        writer.commit([writer.write(iter(()))], number)
    assert facts(client, "rates")["upper"] == 2


def test_a_micro_batch_is_known_again_after_a_restart_of_the_server(tmp_path: Path) -> None:
    def run(location: str, number: int, time: int) -> None:
        writer = stream(location)
        writer.commit([writer.write(batch(("EUR", time)))], number)

    with ServerProcess.start(data_dir=tmp_path) as process:
        run(process.location, 0, 1)
        run(process.location, 1, 2)
        process.kill()
    with ServerProcess.start(data_dir=tmp_path) as process, ShuffleClient(process.location) as client:
        run(process.location, 1, 2)
        assert facts(client, "rates")["upper"] == 2
        run(process.location, 2, 3)
        assert (rows(client, "rates"), facts(client, "rates")["upper"]) == ([("EUR", 3)], 3)
        with pytest.raises(Conflict, match="is to follow 8, and the dataset has those up to 2"):
            run(process.location, 9, 3)


def test_a_query_whose_changelog_was_dropped_fails_and_does_not_make_it_again(client: ShuffleClient) -> None:
    put = stream(client.location)
    put.commit([put.write(batch(("EUR", 1)))], 0)
    client.drop("rates")
    later = stream(client.location)
    written: list[Any] = [later.write(batch(("EUR", 2)))]
    with pytest.raises(Conflict, match="is to follow 0"):
        later.commit(written, 1)
    later.abort(written, 1)
    assert [info.name for info in client.datasets()] == []
    overlooking = stream(client.location, COUNTED, failOnDataLoss="false")
    overlooking.commit([overlooking.write(batch(("EUR", 3, 1)))], 2)
    assert (rows(client, "rates"), facts(client, "rates")["upper"]) == ([("EUR", 3)], 1)


def test_a_job_that_is_aborted_leaves_no_version(client: ShuffleClient) -> None:
    checked = options(client.location, BATCH_WRITE, changelog=KEEP)
    writer = FlightWriter.plan(checked, PLAIN, overwrite=False)
    writer.abort([writer.write(batch(("EUR", 1)))])
    assert facts(client, "rates")["upper"] == 0


def test_a_write_that_may_have_been_published_is_not_said_to_be_lost(client: ShuffleClient) -> None:
    with ServerProcess.start() as restarted, Proxy.to(client.location) as proxy:
        checked = options(proxy.location, BATCH_WRITE, changelog=KEEP, lane="grpc")
        writer = FlightWriter.plan(checked, PLAIN, overwrite=False)
        written = writer.write(batch(("EUR", 1)))
        # The version is made, and the server that is asked again does not know of it.
        proxy.redirect(restarted.location)
        proxy.cut_after(1)
        with pytest.raises(FlightShuffleError, match=r"or was published before .* look whether it is there"):
            writer.commit([written])
        writer._staging.server.close()
    assert facts(client, "rates")["upper"] == 1


def test_what_cannot_be_is_refused_before_a_row_is_sent(client: ShuffleClient) -> None:
    def plan(mode: WriteMode = WriteMode.APPEND, struct: StructType = PLAIN, **given: str) -> None:
        checked = options(client.location, BATCH_WRITE, **given)
        staging = Staging.of(checked, struct, mode, together=False)
        staging.drop([str(staging.stage()["generation"])])

    plan(changelog=KEEP)
    with pytest.raises(Conflict, match="is a changelog, which is not overwritten: drop it"):
        plan(WriteMode.OVERWRITE)
    with pytest.raises(InvalidRequest, match="'changelog' goes with mode 'append' alone"):
        plan(WriteMode.OVERWRITE, changelog=KEEP)
    with pytest.raises(InvalidRequest, match="'delay_seconds' goes with option 'changelog'"):
        plan(delaySeconds="1")
    with pytest.raises(AlreadyExists, match="exists with another keep"):
        plan(changelog="all")
    with pytest.raises(InvalidRequest, match="unexpected 'rate'"):
        plan(struct=StructType([*PLAIN.fields, StructField("rate", LongType())]))
    with pytest.raises(InvalidRequest, match="time"):
        plan(path="other", changelog=KEEP, struct=StructType(PLAIN.fields[:1]))
    client.put("plain", pa.table({"id": [1]}))
    with pytest.raises(InvalidRequest, match="unexpected '_diff'"):
        plan(path="plain", struct=StructType([StructField("id", LongType()), COUNTED.fields[2]]))
