"""The queries at scale factor 0.05, from the files to the answer: DuckDB's answer, in DuckDB's order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_client import Reading, ShuffleClient
from tests.support.server_process import ServerProcess
from tests.tpch.answers import QUERIES, Query, database, differences
from tests.tpch.data import generate
from tests.tpch.tables import Tables, WholeTables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SCALE = 0.05
BY_TASKS = ("q13", "q21")
ALIKE = frozenset({"q03", "q05", "q06", "q07", "q10", "q12", "q14", "q20"})
"""Each has the steps of another one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("tpch") / "tables", SCALE)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    process = ServerProcess.start(http_port=0)
    yield process
    process.terminate()
    process.close()


@pytest.fixture
def tables(
    spark: SparkSession, server: ServerProcess, folder: Path, request: pytest.FixtureRequest
) -> Iterator[Tables]:
    with ShuffleClient(server.location, reading=Reading(driver_bytes=request.param)) as shuffle:
        yield Tables(shuffle, folder, SCALE)
    with ShuffleClient(server.location) as after:
        assert after.datasets() == [], "a closed client leaves no dataset"


@pytest.fixture(scope="module")
def duck(folder: Path) -> Iterator[Any]:
    with database(folder) as connection:
        yield connection


# Each as it is by default, where the driver runs what is small, and some by tasks alone, as all are in the long run.
CASES = [
    pytest.param(
        query,
        driver_bytes,
        id=query.name if driver_bytes else f"{query.name} by tasks",
        marks=[pytest.mark.long] if query.name in ALIKE else [],
    )
    for query in QUERIES
    for driver_bytes in ((Reading.driver_bytes, 0) if query.name in BY_TASKS else (Reading.driver_bytes,))
]


@pytest.mark.parametrize(("query", "tables"), CASES, indirect=["tables"])
def test_the_pipeline_gives_the_answer_of_the_sql(query: Query, tables: Tables, duck: Any) -> None:
    expected = duck.sql(query.sql(tables.scale)).to_arrow_table()
    assert len(expected) > 0
    found = query.pipeline(tables).toArrow()
    assert not differences(found, expected, query.order)


@pytest.mark.long
@pytest.mark.parametrize("tables", [0], indirect=True)
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_a_pipeline_that_is_not_planned_by_hand_gives_the_answer_by_tasks_alone(
    query: Query, tables: Tables, duck: Any
) -> None:
    expected = duck.sql(query.sql(tables.scale)).to_arrow_table()
    found = query.pipeline(WholeTables(tables.shuffle, tables.folder, tables.scale)).toArrow()
    assert not differences(found, expected, query.order)


def test_a_comparison_finds_a_wrong_value_and_a_wrong_order() -> None:
    from decimal import Decimal

    table = pa.table({"a": [1.0, 2.0, None], "b": [Decimal("0.10"), Decimal("0.20"), Decimal("0.30")]})
    assert differences(table, table.select(["b", "a"])) == []
    other = table.set_column(0, "a", [[1.0, 2.0 + 1e-8, None]])
    assert differences(other, table) == ["row 1, a: 2.00000001, expected 2.0"]
    assert len(differences(table.take([1, 0, 2]), table)) == 4
    assert differences(table.slice(1), table) == ["2 rows, expected 3"]
    assert differences(table.rename_columns(["a", "c"]), table) == ["columns ['a', 'c'], expected ['a', 'b']"]
    means = pa.table({"a": [25.522005853, 0.0500013]})
    rounded = pa.table({"a": [Decimal("25.522006"), Decimal("0.050001")]})
    assert differences(rounded, means) == []
    assert len(differences(pa.table({"a": [Decimal("25.522005"), Decimal("0.050002")]}), means)) == 2
    tied = pa.table({"a": [2, 2, 1], "b": ["x", "y", "z"]})
    assert differences(tied.take([1, 0, 2]), tied, ["a"]) == []
    assert len(differences(tied.take([0, 2, 1]), tied, ["a"])) == 4
    assert len(differences(tied.set_column(1, "b", [["x", "x", "z"]]), tied, ["a"])) == 1
    assert [query.order for query in QUERIES[4:6]] == [["revenue"], []]
