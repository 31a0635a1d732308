"""The data source ``flight`` on local Spark and a real server: reads."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from flight_server.protocol import CreateRequest, Kind, PutCommand, SealRequest
from spark_client import ShuffleClient
from spark_client.connection import RemoteServer
from spark_client.lanes import PutStream
from tests.support.python_program import output_of
from tests.support.server_process import ROOT, ServerProcess
from tests.support.spark_source import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin"}

Read = Callable[..., Any]


@pytest.fixture
def load(tables: Tables) -> Read:
    return tables.load


def write_shuffle(location: str, name: str, partitions: dict[int, pa.Table], count: int) -> None:
    """A sealed shuffle of ``count`` partitions, of which some have rows."""
    schema = next(iter(partitions.values())).schema
    server = RemoteServer(location)
    encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
    request = CreateRequest(name, Kind.SHUFFLE, schema=encoded, partitions=count)
    generation = server.action("create", request.encode())["generation"]
    with PutStream(server, PutCommand(name, producer=0, attempt="1", generation=generation), schema) as put:
        for number, table in partitions.items():
            for batch in table.to_batches():
                put.write(batch, number)
        put.commit()
    server.action("seal", SealRequest(name, generation, {0: "1"}).encode())
    server.close()


def tasks(df: DataFrame) -> int:
    return int(df.rdd.getNumPartitions())


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64()), "s": [f"s{value}" for value in values]})


def test_a_dataset_is_read_with_the_schema_that_the_service_has(client: ShuffleClient, load: Read) -> None:
    client.put("read/plain", numbers(1, 2, 3), mode="overwrite")
    df = load("read/plain")
    assert df.dtypes == [("n", "bigint"), ("s", "string")]
    assert [tuple(row) for row in df.orderBy("n").collect()] == [(1, "s1"), (2, "s2"), (3, "s3")]
    assert df.filter("n > 1").select("s").count() == 2
    assert [tuple(row) for row in load("read/plain", columns="s").collect()] == [("s1",), ("s2",), ("s3",)]


def test_there_is_a_task_for_each_partition_that_has_rows(server: ServerProcess, load: Read) -> None:
    write_shuffle(server.location, "read/parts", {0: numbers(1, 2), 3: numbers(3), 5: numbers(4, 5, 6)}, 8)
    df = load("read/parts")
    assert tasks(df) == 3
    assert sorted(row.n for row in df.collect()) == [1, 2, 3, 4, 5, 6]


def test_every_batch_is_cast_and_not_only_the_first(server: ServerProcess, load: Read) -> None:
    batches = [
        pa.record_batch(
            {"s": pa.array(["a", "b"]).dictionary_encode(), "t": pa.array([1, 2], pa.timestamp("ns"))}
        )
        for _ in range(2)
    ]
    table = pa.Table.from_batches(batches).set_column(
        1, "t", pa.chunked_array([[1000, 2000]] * 2, pa.timestamp("ns"))
    )
    write_shuffle(server.location, "read/cast", {0: table}, 1)
    df = load("read/cast")
    assert df.dtypes == [("s", "string"), ("t", "timestamp_ntz")]
    assert [row.s for row in df.collect()] == ["a", "b", "a", "b"]
    assert {row.t.microsecond for row in df.collect()} == {1, 2}


def test_a_schema_of_the_users_chooses_and_casts_columns(
    spark: SparkSession, server: ServerProcess, client: ShuffleClient
) -> None:
    client.put("read/schema", numbers(1, 2), mode="overwrite")
    reader = spark.read.format("flight").option("location", server.location)
    df = reader.schema("n int").load("read/schema")
    assert df.dtypes == [("n", "int")]
    assert sorted(row.n for row in df.collect()) == [1, 2]
    with pytest.raises(Exception, match="column 's' is string, declared is int"):
        reader.schema("s int").load("read/schema").count()


def test_a_dataframe_reads_one_generation_or_says_that_it_was_replaced(
    client: ShuffleClient, load: Read
) -> None:
    client.put("read/again", numbers(1), mode="overwrite")
    read, unread = load("read/again"), load("read/again")
    assert read.count() == 1
    client.put("read/again", numbers(1, 2), mode="overwrite")
    for df in (read, unread):
        with pytest.raises(
            Exception, match="'read/again' was replaced after this DataFrame was made: load it again"
        ):
            df.count()
    assert load("read/again").count() == 2
    client.drop("read/again")
    with pytest.raises(Exception, match="has no dataset 'read/again'"):
        load("read/again")


def test_a_dataset_that_is_being_written_is_read_to_its_end(server: ServerProcess, load: Read) -> None:
    connection = RemoteServer(server.location)
    schema = numbers(1).schema
    with PutStream(connection, PutCommand("read/open", producer=0, attempt="1"), schema) as put:
        put.write(numbers(1, 2).to_batches()[0])
        df = load("read/open")
        put.write(numbers(3).to_batches()[0])
        put.commit()
    assert df.count() == 3
    connection.close()


def test_what_cannot_be_read_is_said_on_the_driver(client: ShuffleClient, load: Read) -> None:
    client.put("read/odd", pa.table({"u": pa.array([1], pa.uint64()), "n": [1]}), mode="overwrite")
    with pytest.raises(
        Exception, match=r"no type for column 'u' of type uint64; cast it before the put to int64"
    ):
        load("read/odd")
    assert load("read/odd", columns="n").count() == 1
    with pytest.raises(Exception, match="has no dataset 'read/missing'"):
        load("read/missing")
    with pytest.raises(Exception, match=r"no option 'colums' \(did you mean 'columns'\?\)"):
        load("read/odd", colums="n")


def test_a_token_is_asked_of_the_driver_and_of_the_tasks(
    spark: SparkSession, flight_server_process: Callable[..., ServerProcess]
) -> None:
    location = flight_server_process(environment={"FLIGHT_SERVER_TOKEN": "secret"}).location
    with ShuffleClient(location, token="secret") as client:
        client.put("d", numbers(1, 2))
    tables = Tables(spark, location)
    with pytest.raises(Exception, match="Unauthenticated"):
        tables.load("d")
    assert tables.load("d", token="secret").count() == 2
    tables.save(tables.load("d", token="secret"), "e", token="secret")
    assert tables.load("e", token="secret").count() == 2


def test_a_module_that_cannot_load_the_client_is_no_error(tmp_path: Path) -> None:
    file = ROOT / "spark_client" / "datasource" / "pyspark_flight_shuffle.py"
    (tmp_path / "pyspark_flight_shuffle.py").write_bytes(file.read_bytes())
    code = """
import sys
sys.modules["spark_client"] = None
import pyspark_flight_shuffle
assert not hasattr(pyspark_flight_shuffle, "DefaultSource")
"""
    output_of(code, cwd=tmp_path)
