"""The 22 queries on a real cluster with servers in its executors: DuckDB's answers, in DuckDB's order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_client import ShuffleClient
from tests.support.executor_processes import servers_of
from tests.tpch.answers import QUERIES, Query, database, differences
from tests.tpch.data import generate
from tests.tpch.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]
SPARK_SETTINGS = {"master": "cluster"}
SCALE = 0.01


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """One client for all queries, as an application has."""
    with ShuffleClient.getOrCreate(spark) as client:
        # Its threads begin with it.
        client.pipeline(spark.range(8, numPartitions=2)).repartition(2).toArrow()
        yield Tables(client, generate(tmp_path_factory.mktemp("tpch") / "tables", SCALE), SCALE)
        assert len(servers_of(client)) == 2, "one in each executor"


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_the_pipeline_gives_the_answer_of_the_sql(query: Query, tables: Tables) -> None:
    with database(tables.folder) as duck:
        expected = duck.sql(query.sql(tables.scale)).to_arrow_table()
    assert not differences(query.pipeline(tables).toArrow(), expected, query.order)
