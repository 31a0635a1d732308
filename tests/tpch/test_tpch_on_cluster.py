"""The 22 queries on a real cluster with servers in its executors: DuckDB's answers, in DuckDB's order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from spark_client import ShuffleClient
from tests.support.executor_processes import servers_of
from tests.support.spark_cluster import standalone_cluster
from tests.support.spark_session import local_session
from tests.tpch.answers import QUERIES, Query, database, differences
from tests.tpch.data import generate
from tests.tpch.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]
SCALE = 0.01


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("tpch") / "tables", SCALE)


@pytest.fixture(scope="module")
def tables(java_home: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """One client for all queries, as an application has."""
    with (
        standalone_cluster(tmp_path_factory.mktemp("cluster")) as cluster,
        local_session(cluster.master, **cluster.settings) as spark,
        ShuffleClient.get(spark) as client,
    ):
        # Its threads begin with it.
        client.pipeline(spark.range(8, numPartitions=2)).exchange(2).collect().read_all()
        yield Tables(client, folder, SCALE)
        assert len(servers_of(client)) == 2, "one in each executor"


@pytest.fixture(scope="module")
def duck(folder: Path) -> Iterator[Any]:
    with database(folder) as connection:
        yield connection


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_the_pipeline_gives_the_answer_of_the_sql(query: Query, tables: Tables, duck: Any) -> None:
    expected = duck.sql(query.sql(tables.scale)).to_arrow_table()
    found = query.pipeline(tables).collect().read_all()
    assert not differences(found, expected, query.order)
