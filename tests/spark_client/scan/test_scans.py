"""Plans of scans: arguments that cannot work are refused where they are written, and types are Spark's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import dataset as ds
from pyarrow import parquet as pq

from flight_server.protocol.errors import InvalidRequest, NotFound
from spark_client import Pipeline, ShuffleClient
from spark_client.jobs.session_facts import split_sizes
from spark_client.pipeline.nodes import Input
from spark_client.scan.file_reading import BATCH_BYTES, BATCH_ROWS, DECODED_BYTES_OF_TEXTS
from spark_client.scan.splits import Splits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SPARK_SETTINGS = {"sql__session__timeZone": "Europe/Berlin"}

TABLE = pa.table({"id": pa.array(range(100), pa.uint32()), "name": ["x"] * 100, "day": [1, 2] * 50})


@pytest.fixture
def client(spark: SparkSession) -> Iterator[ShuffleClient]:
    # No server listens there: a plan that asked it would fail.
    with ShuffleClient("grpc://127.0.0.1:1") as found:
        yield found


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    pq.write_to_dataset(TABLE, tmp_path, partition_cols=["day"])
    return tmp_path


def schema(pipeline: Pipeline) -> str:
    return pipeline.leg.struct.simpleString()


def splits(pipeline: Pipeline) -> Splits:
    start = pipeline.leg.parts[0].origin
    assert isinstance(start, Input)
    assert isinstance(start.source, Splits)
    return start.source


def test_a_plan_shows_the_scan(client: ShuffleClient, lake: Path) -> None:
    assert (
        repr(client.scan(lake).repartition(8, "id"))
        == f"<Pipeline scan('{lake}', 2 tasks) → repartition(8, 'id')>"
    )
    one = client.scan([next(lake.rglob("*.parquet"))], columns=["name"])
    assert repr(one) == "<Pipeline scan(1 path, 1 task)>"
    assert schema(one) == "struct<name:string>"


def test_unsigned_numbers_are_as_in_spark(spark: SparkSession, client: ShuffleClient, lake: Path) -> None:
    assert schema(client.scan(lake)) == spark.read.parquet(str(lake)).schema.simpleString()


def test_a_filter_may_be_of_views_of_text_and_bytes(client: ShuffleClient, tmp_path: Path) -> None:
    texts = [f"{number:02}" for number in range(100)]
    views = {"text": pa.array(texts, pa.string_view()), "data": pa.array(texts, pa.binary_view())}
    pq.write_table(pa.table({"id": range(100), **views}), tmp_path / "views.parquet", row_group_size=10)
    wanted = (pc.field("text") == "55") | pc.starts_with(pc.field("data"), b"9")
    found = splits(client.scan(tmp_path, columns=["id"], filter=wanted & (pc.field("id") < 95)))
    rows = [batch for number in range(len(found)) for batch in found.read(number)]
    assert pa.Table.from_batches(rows)["id"].to_pylist() == [55, 90, 91, 92, 93, 94]
    # Only Arrow's own statistics of views cannot be compared: other columns still prune.
    assert [piece.unit for piece in splits(client.scan(tmp_path, filter=[("id", ">", 94)])).pieces(0)] == [9]


def test_a_filter_may_be_any_function_of_dictionaries(client: ShuffleClient, tmp_path: Path) -> None:
    """As pandas writes categories."""
    texts = pa.array([f"{number:02}" for number in range(100)])
    table = pa.table({"id": range(100), "text": texts.dictionary_encode()})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    wanted = pc.starts_with(pc.field("text"), "9") & (pc.field("text") < "95")
    found = splits(client.scan(tmp_path, columns=["id"], filter=wanted))
    rows = [batch for number in range(len(found)) for batch in found.read(number)]
    assert pa.Table.from_batches(rows)["id"].to_pylist() == [90, 91, 92, 93, 94]
    given = ds.dataset(tmp_path, format="parquet")
    assert len(splits(client.scan(given, filter=wanted))) == 1


def test_columns_come_in_the_order_in_which_they_are_named(client: ShuffleClient, lake: Path) -> None:
    found = client.scan(lake, columns=("day", "id"), filter=[("name", "=", "x")])
    assert schema(found) == "struct<day:int,id:bigint>"
    assert found.leg.declared.schema.names == ["day", "id"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"columns": ["id", "nmae"]}, "no column 'nmae'; there are 'id', 'name', 'day'"),
        ({"columns": "id"}, "columns is a list of names, not 'id'"),
        ({"columns": [1]}, "columns is a list of names"),
        ({"columns": []}, "columns names no column; name at least one"),
        ({"columns": [], "filter": pc.field("id") > 1}, "columns names no column"),
        ({"columns": 5}, "columns is a list of names, not 5"),
        ({"columns": ["id", "id"]}, "names id twice"),
        ({"filter": pc.field("nmae") > 1}, "filter .*No match for FieldRef.Name.nmae."),
        ({"filter": pc.field("name") > 1}, "filter .*has no kernel matching"),
        ({"filter": pc.field("id")}, "filter .*must evaluate to bool"),
        ({"filter": pc.field(0) > 5}, r"scan: filter: .* write its columns by their names, as in"),
        ({"filter": "id > 5"}, r"filter is an expression such as pyarrow.compute.field\('x'\) > 5"),
        ({"filter": [("id", "~", 5)]}, "filter .*operator"),
    ],
)
def test_an_argument_that_cannot_work_is_refused(
    client: ShuffleClient, lake: Path, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidRequest, match=what):
        client.scan(lake, **options)


def test_something_else_than_files_says_what_a_scan_takes(client: ShuffleClient, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidRequest, match=r"scan takes a path, .* or a pyarrow.dataset.Dataset, not Table"
    ):
        client.scan(TABLE)
    with pytest.raises(NotFound, match="no file or directory"):
        client.scan(tmp_path / "nothing")


def test_a_type_that_spark_does_not_have_is_named_unless_it_is_left_out(
    client: ShuffleClient, tmp_path: Path
) -> None:
    table = TABLE.append_column("d", pa.array([None] * 100, pa.decimal256(60, 2)))
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InvalidRequest, match=r"the scan: Spark has no .*type for column 'd' of type decimal"):
        client.scan(tmp_path)
    assert schema(client.scan(tmp_path, columns=["day"])) == "struct<day:bigint>"


def driver_bytes(pipeline: Pipeline) -> int | None:
    start = pipeline.leg.parts[0].origin
    assert isinstance(start, Input)
    return start.driver_bytes


def test_values_in_lists_count_for_the_driver_and_for_batches(client: ShuffleClient, tmp_path: Path) -> None:
    """Zeros take no room in a file."""
    lists = pa.array([[0] * 50_000] * 200, pa.list_(pa.int64()))
    table = pa.table({"n": range(200), "s": pa.StructArray.from_arrays([lists], ["l"])})
    pq.write_table(table, tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < 1 << 20
    scanned = client.scan(tmp_path)
    size_bytes = driver_bytes(scanned)
    assert size_bytes is not None
    assert size_bytes > 8 * 50_000 * 200
    batches = [*splits(scanned).read(0)]
    assert sum(batch.num_rows for batch in batches) == 200
    assert max(batch.nbytes for batch in batches) < 2 * BATCH_BYTES
    size_bytes = driver_bytes(client.scan(tmp_path, columns=["n"]))
    assert size_bytes is not None
    assert size_bytes < 1 << 20


def test_a_batch_of_texts_that_are_stored_once_is_not_large(client: ShuffleClient, tmp_path: Path) -> None:
    for number, (rows, length) in enumerate([(40_000, 5_000), (15_000, 40_000)]):
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * length])
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"t": texts}), path, store_schema=False)
        found = 0
        for filter_ in (None, pc.field("t") != "y"):
            for batch in splits(client.scan(path, filter=filter_)).read(0):
                assert batch.nbytes < 1.5 * DECODED_BYTES_OF_TEXTS
                found += batch.num_rows
        assert found == 2 * rows


def test_the_driver_reads_no_record_batches_of_ipc(client: ShuffleClient, tmp_path: Path) -> None:
    """However large one is as it is decompressed, it is read whole."""
    with pa.ipc.new_file(tmp_path / "x.arrow", pa.schema({"n": pa.int64()})) as writer:
        writer.write_batch(pa.record_batch({"n": [1]}))
    assert driver_bytes(client.scan(tmp_path / "x.arrow")) is None


def test_sizes_and_cores_are_the_sessions(spark: SparkSession) -> None:
    assert split_sizes(spark).parallelism == 2
    assert split_sizes(spark).target_bytes == 128 << 20
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1m")
    try:
        assert split_sizes(spark).target_bytes == 1 << 20
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")


def test_a_scan_reads_no_fewer_rows_at_once_than_usual(
    spark: SparkSession, client: ShuffleClient, lake: Path
) -> None:
    limit = int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") or 0)
    assert 0 < limit < BATCH_ROWS
    assert splits(client.scan(lake)).reading.batch_rows == BATCH_ROWS


def test_a_session_without_a_limit_of_rows_has_the_usual_batches(
    spark: SparkSession, client: ShuffleClient, lake: Path
) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "-1")
    try:
        assert splits(client.scan(lake)).reading.batch_rows == BATCH_ROWS
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_enums_of_parquet_are_texts_as_in_spark(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    table = pa.table({"e": ["a", "b", None], "n": [1, 2, 3]})
    pq.write_table(table, tmp_path / "x.parquet", store_schema=False)
    data = (tmp_path / "x.parquet").read_bytes()
    # Converted and logical type of the footer: from string to enum, which pyarrow does not write.
    string, enum = b"\x25\x00\x4c\x1c\x00\x00\x00", b"\x25\x08\x4c\x4c\x00\x00\x00"
    assert data.count(string) == 1
    (tmp_path / "x.parquet").write_bytes(data.replace(string, enum))
    assert schema(client.scan(tmp_path)) == spark.read.parquet(str(tmp_path)).schema.simpleString()
    assert client.scan(tmp_path).toDF().collect() == [("a", 1), ("b", 2), (None, 3)]
    assert client.scan(tmp_path, filter=pc.field("e") == "b").toDF().collect() == [("b", 2)]


def test_a_parquet_column_of_nulls_is_of_integers_as_in_spark(
    spark: SparkSession, client: ShuffleClient, tmp_path: Path
) -> None:
    """But for one that Spark wrote, which is void."""
    nothing, path, void = pa.null(), tmp_path / "x.parquet", str(tmp_path / "void")
    columns = {
        "id": pa.array([1, 2]),
        "n.n": pa.nulls(2),
        "l": pa.array([[None], None], pa.list_(nothing)),
        "s": pa.array([{"a": None, "b": 1}, None], pa.struct([("a", nothing), ("b", pa.int64())])),
        "m": pa.array([[("k", None)], None], pa.map_(pa.string(), nothing)),
    }
    pq.write_table(pa.table(columns), path)
    spark.sql("select null as n, array(null) as l").write.parquet(void)
    for each in (str(path), void):
        expected = spark.read.parquet(each)
        found = client.scan(each)
        assert schema(found) == expected.schema.simpleString()
        assert found.toDF().collect() == expected.collect()
    for condition, count in (
        (pc.field("n.n") == 1, 0),
        (pc.field("n.n").is_null() & (pc.field("id") > 1), 1),
    ):
        assert len(client.scan(path, filter=condition).toDF().collect()) == count


def test_a_column_of_nulls_has_the_type_of_the_first_file_or_of_the_dataset(
    client: ShuffleClient, tmp_path: Path
) -> None:
    """As pandas writes a column that has no value in a file."""
    first, second = tmp_path / "1.parquet", tmp_path / "2.parquet"
    pq.write_table(pa.table({"t": ["a"]}), first)
    pq.write_table(pa.table({"t": pa.nulls(1)}), second)
    expected = Counter({("a",): 1, (None,): 1})
    assert Counter(client.scan([str(first), str(second)]).toDF().collect()) == expected
    texts = ds.dataset([str(second), str(first)], schema=pa.schema([("t", pa.string())]))
    found = client.scan(texts)
    assert schema(found) == "struct<t:string>"
    assert Counter(found.toDF().collect()) == expected


def test_groups_of_a_scan_are_exchanged_by_their_keys(client: ShuffleClient, lake: Path) -> None:
    groups = client.scan(lake).groupBy("id", numPartitions=3).applyInArrow(lambda table: table, "id long")
    assert "→ exchange(3, 'id') →" in repr(groups)
