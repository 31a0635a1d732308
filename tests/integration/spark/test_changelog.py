"""Changelogs as sources and sinks of Spark: versions, exactly once, on local Spark and a real server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_client import ShuffleClient
from spark_client.datasource.batch_read import AGAIN_SECONDS
from spark_client.datasource.changelog_streams import STREAM_LEASE_SECONDS
from spark_client.pyspark_parts import ReadAllAvailable
from tests.support.changelog_of_rates import KEEP, Model, compacted, declare, facts, rows, table
from tests.support.polling import eventually
from tests.support.spark_source import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__shuffle__partitions": "2"}


def frame(spark: SparkSession, *rows: tuple[str, int, float, int]) -> DataFrame:
    """Rows with their diffs, in two partitions."""
    return spark.createDataFrame(rows, "currency string, time long, rate double, _diff int").repartition(2)


def read(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.collect())


def forget_last_commit(checkpoint: Path) -> None:
    """As if Spark had died after the sink had the last batch, and before Spark had noted that."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    for path in (checkpoint / "commits").glob(f"*{last}*"):
        path.unlink()


def test_each_write_is_a_version_of_which_snapshot_and_deltas_are_read(
    tables: Tables, client: ShuffleClient
) -> None:
    first = frame(tables.spark, ("EUR", 1, 1.5, 1), ("USD", 1, 1.0, 1), ("EUR", 2, 1.25, 1))
    tables.save(first, "rates", changelog=KEEP, delaySeconds="3600")
    second = frame(tables.spark, ("EUR", 2, 1.25, -1), ("GBP", 3, 2.0, 1))
    tables.save(second, "rates", changelog=KEEP, delaySeconds="3600")
    tables.save(frame(tables.spark, ("USD", 4, 1.125, 1)).drop("_diff"), "rates")
    assert facts(client, "rates")["upper"] == 3
    df = tables.load("rates")
    assert df.dtypes == [("currency", "string"), ("time", "bigint"), ("rate", "double"), ("_diff", "bigint")]
    assert read(df) == [("EUR", 1, 1.5, 1), ("GBP", 3, 2.0, 1), ("USD", 4, 1.125, 1)]
    assert read(tables.load("rates", asOf="1")) == [("EUR", 2, 1.25, 1), ("USD", 1, 1.0, 1)]
    assert read(tables.load("rates", after="1", asOf="2")) == [
        ("EUR", 1, 1.5, 1),
        ("EUR", 2, 1.25, -1),
        ("GBP", 3, 2.0, 1),
    ]
    assert read(tables.load("rates", after="2", columns="time,_diff")) == [(1, -1), (4, 1)]


def test_a_plan_reads_its_version_however_late(tables: Tables, client: ShuffleClient) -> None:
    declare(client, "rates", 0.0)
    client.put("rates", table([(("EUR", 1, 1.5), 1)]))
    df = tables.load("rates")
    df._jdf.queryExecution().toRdd().getNumPartitions()
    for time in (2, 3):
        client.put("rates", table([(("EUR", time, 1.5), 1)]))
    # Compaction goes up to the version that the plan holds, and not past it.
    eventually(lambda: facts(client, "rates")["since"], 1)
    (hold,) = facts(client, "rates")["holds"]
    assert hold["lease_left_seconds"] > AGAIN_SECONDS, "it is read when Spark comes to it"
    assert hold["owner"].startswith("Spark, ")
    assert read(df) == [("EUR", 1, 1.5, 1)]
    (hold,) = facts(client, "rates")["holds"]
    assert hold["lease_left_seconds"] <= AGAIN_SECONDS
    name, application = tables.spark.sparkContext.appName, tables.spark.sparkContext.applicationId
    assert re.match(
        f"application '{name}' \\({application}\\), SQL query [0-9]+, driver .*, user ", hold["owner"]
    )
    assert read(tables.load("rates")) == [("EUR", 3, 1.5, 1)]


def test_a_dataframe_reads_the_version_of_its_first_query_and_says_so_when_it_is_gone(
    tables: Tables, client: ShuffleClient
) -> None:
    declare(client, "rates", 0.0)
    client.put("rates", table([(("EUR", 1, 1.5), 1)]))
    df = tables.load("rates")
    assert read(df) == [("EUR", 1, 1.5, 1)]
    client.put("rates", table([(("EUR", 2, 1.5), 1)]))
    assert read(df) == read(df.where("time > 0")) == [("EUR", 1, 1.5, 1)]
    changelog = client.changelog("rates")
    (hold,) = changelog.holds()
    changelog.release(hold)
    compacted(client, "rates")
    with pytest.raises(Exception, match="reads the version of its first query: load it again for the newest"):
        read(df)
    assert read(tables.load("rates")) == [("EUR", 2, 1.5, 1)]


def test_queries_have_each_change_once_over_restarts_and_repeated_batches(
    tables: Tables, client: ShuffleClient, tmp_path: Path
) -> None:
    """From one changelog to another: each batch of a query is a version there."""
    models = {"rates": Model(1), "more": Model(2, "XYZ")}
    for name in models:
        declare(client, name)
    # Spark 4.1 has no limits, and a run ends after one batch: the repeated one, the new one, and none.
    limit, runs = ({"maxVersionsPerTrigger": "2"}, 1) if ReadAllAvailable is not None else ({}, 3)

    def run(name: str, **options: str) -> None:
        for _ in range(3):
            client.put(name, models[name].updates(40))
        for _ in range(runs):
            stream = tables.stream(name, **options)
            tables.start(stream, "copy", tmp_path / name, changelog=KEEP, delaySeconds="3600")
        wanted = [row for model in models.values() for row in model.snapshot()]
        assert rows(client, "copy") == sorted(wanted)

    run("rates")
    forget_last_commit(tmp_path / "rates")
    run("rates", **limit)
    run("more")
    # Of the first query's batches one had three versions, and two had two and one, or one had three.
    assert facts(client, "copy")["upper"] == (4 if limit else 3)
    (hold,) = facts(client, "rates")["holds"]
    assert hold["version"] == 6
    assert 20 * 3600 < hold["lease_left_seconds"] <= STREAM_LEASE_SECONDS
    query = re.search("streaming query (.*), run (.*), driver", hold["owner"])
    assert query is not None
    assert query[1] == json.loads((tmp_path / "rates" / "metadata").read_text())["id"]


def test_keys_that_a_write_or_a_stream_deletes_are_gone(
    tables: Tables, client: ShuffleClient, tmp_path: Path
) -> None:
    declare(client, "rates")
    client.put("rates", table([((name, 1, 1.5), 1) for name in ("EUR", "GBP", "JPY", "USD")]))
    gone = tables.spark.createDataFrame([("EUR",), ("CHF",), ("EUR",)], "currency string").repartition(2)
    tables.save(gone, "rates", delete="true")
    assert rows(client, "rates") == [("GBP", 1, 1.5), ("JPY", 1, 1.5), ("USD", 1, 1.5)]
    client.put("rates", table([(("EUR", 0, 2.0), 1)]))
    names = client.changelog("gone", pa.schema({"currency": pa.string()}))
    names.put(pa.table({"currency": ["GBP", "JPY"]}))
    tables.start(tables.stream("gone", columns="currency"), "rates", tmp_path / "query", delete="true")
    assert rows(client, "rates") == [("EUR", 0, 2.0), ("USD", 1, 1.5)]
    assert read(tables.load("rates", after="1", columns="currency,_diff")) == [
        ("EUR", -1),
        ("EUR", 1),
        ("GBP", -1),
        ("JPY", -1),
    ]
