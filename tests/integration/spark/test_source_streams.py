"""The data source ``flight`` in Structured Streaming: offsets, limits, and batches that are published once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_client import ShuffleClient
from tests.support.spark_source import Tables

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__shuffle__partitions": "2"}


def append(tables: Tables, name: str, start: int, rows: int = 1) -> None:
    """One more partition with these rows."""
    tables.save(tables.spark.range(start, start + rows, 1, 1), name)


def ids(client: ShuffleClient, name: str) -> list[int]:
    found: list[int] = client.get(name, ordered=True).read_all()["id"].to_pylist()
    return found


def offsets(checkpoint: Path) -> list[int]:
    """The partitions up to which each batch has read, as Spark has noted them."""
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1])["partitions"] for path in files]


def test_a_query_reads_each_partition_once_over_its_restarts(
    tables: Tables, client: ShuffleClient, tmp_path: Path
) -> None:
    append(tables, "in", 0, 2)
    append(tables, "in", 2)
    tables.start(tables.stream("in"), "out", tmp_path)
    assert ids(client, "out") == [0, 1, 2]
    tables.start(tables.stream("in"), "out", tmp_path)
    append(tables, "in", 3)
    tables.start(tables.stream("in"), "out", tmp_path)
    assert ids(client, "out") == [0, 1, 2, 3]
    assert offsets(tmp_path) == [2, 3]


@pytest.mark.long
def test_a_trigger_takes_as_many_partitions_as_fit_its_limit(
    tables: Tables, client: ShuffleClient, tmp_path: Path
) -> None:
    for start, rows in ((0, 5), (5, 1), (6, 2)):
        append(tables, "in", start, rows)
    tables.start(tables.stream("in", max_rows_per_trigger="3"), "out", tmp_path / "rows")
    assert offsets(tmp_path / "rows") == [1, 3]
    tables.start(tables.stream("in", max_partitions_per_trigger="2"), "out2", tmp_path / "partitions")
    assert offsets(tmp_path / "partitions") == [2, 3]
    for name in ("out", "out2"):
        assert ids(client, name) == list(range(8))
    given = {"max_rows_per_trigger": "1", "max_bytes_per_trigger": "1"}
    with pytest.raises(Exception, match="one limit of a trigger"):
        tables.start(tables.stream("in", **given), "out3", tmp_path / "both")


def test_a_batch_that_spark_repeats_is_published_once(
    tables: Tables, client: ShuffleClient, tmp_path: Path
) -> None:
    append(tables, "in", 0)
    tables.start(tables.stream("in"), "out", tmp_path)
    # As if Spark had died after the batch was published and before it had noted that.
    for path in (tmp_path / "commits").glob("*0*"):
        path.unlink()
    append(tables, "in", 1)
    tables.start(tables.stream("in"), "out", tmp_path)
    if tables.spark.version.startswith("4.1."):  # which ends after one batch, here the repeated one
        assert ids(client, "out") == [0]
        tables.start(tables.stream("in"), "out", tmp_path)
    assert ids(client, "out") == [0, 1]
    tables.start(tables.stream("in"), "out", tmp_path / "another query")
    assert ids(client, "out") == [0, 1, 0, 1]


@pytest.mark.long
def test_batches_that_were_lost_are_an_error_unless_that_is_allowed(
    tables: Tables, client: ShuffleClient, tmp_path: Path
) -> None:
    append(tables, "in", 0)
    tables.start(tables.stream("in"), "out", tmp_path)
    client.drop("out")
    append(tables, "in", 1)
    with pytest.raises(Exception, match="has had no write with this id since it was created"):
        tables.start(tables.stream("in"), "out", tmp_path)
    tables.start(tables.stream("in"), "out", tmp_path, fail_on_data_loss="false")
    assert ids(client, "out") == [1]


@pytest.mark.long
def test_output_mode_complete_overwrites(tables: Tables, client: ShuffleClient, tmp_path: Path) -> None:
    for start in (0, 1):
        append(tables, "in", start, 2)
        counts = tables.stream("in").groupBy("id").count()
        tables.start(counts, "out", tmp_path, "complete")
        rows = {(row.id, row["count"]) for row in tables.load("out").collect()}
        assert rows == ({(0, 1), (1, 1)} if start == 0 else {(0, 1), (1, 2), (2, 1)})
