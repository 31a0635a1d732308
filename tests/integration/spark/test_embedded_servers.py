"""Two embedded servers: what works with one works with them, and a run goes on when one of them is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_client import ShuffleClient, latest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROWS = 20_000
RATES = pa.table({"k": [*range(7)], "rate": [number / 2 for number in range(7)]})


@pytest.fixture
def shuffle() -> Iterator[ShuffleClient]:
    with ShuffleClient.embedded(workers=2, memory_limit="512MiB") as client:
        yield client


def servers(shuffle: ShuffleClient) -> list[dict[str, Any]]:
    return list(shuffle.statistics()["servers"])


def keyed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow.compute as pc

    for batch in batches:
        keys = pc.subtract(batch["id"], pc.multiply(pc.divide(batch["id"], 7), 7))
        yield pa.record_batch({"k": keys, "id": batch["id"]})


def test_an_exchange_is_spread_and_what_has_a_name_is_on_one(
    shuffle: ShuffleClient, spark: SparkSession
) -> None:
    rates = shuffle.broadcast(RATES)
    pipeline = (
        shuffle.pipeline(spark.range(0, ROWS, 1, 8))
        .mapInArrow(keyed, "k long, id long")
        .repartition(4, "k")
        .join(rates, on="k")
        .groupBy("k")
        .agg(n=("id", "count"), rate=("rate", "max"))
    )
    found = pipeline.toArrow().sort_by("k").to_pylist()
    expected = [{"k": k, "n": len(range(k, ROWS, 7)), "rate": k / 2} for k in range(7)]
    assert found == expected
    frame = pipeline.toDF()
    assert sorted(map(tuple, frame.collect())) == [(each["k"], each["n"], each["rate"]) for each in expected]
    # The driver may have written the last exchange of that plan, and so to one of them.
    rows = shuffle.pipeline(spark.range(0, ROWS, 1, 8)).repartition(4, "id").toDF()
    assert rows.count() == ROWS
    assert all(each["datasets"] for each in servers(shuffle)), "both hold portions of the exchange"
    rates.destroy()


def test_the_data_source_and_a_lookup_find_what_the_client_put(
    shuffle: ShuffleClient, spark: SparkSession, tmp_path: Path
) -> None:
    shuffle.register(spark)
    for number in range(4):
        shuffle.put(f"countries-{number}", RATES)
        assert spark.read.format("flight").load(f"countries-{number}").count() == 7
    spark.range(5).write.format("flight").mode("overwrite").save("written")
    assert shuffle.get("written").read_all().num_rows == 5
    for number in range(2):
        name = f"rates-{number}"
        shuffle.changelog(name, RATES.schema, key="k", order_by="rate", keep=latest())
        shuffle.put(name, RATES)
        found = shuffle.lookup(spark.range(3).withColumnRenamed("id", "k"), name, on="k").collect()
        assert sorted((row["k"], row["rate"]) for row in found) == [(0, 0.0), (1, 0.5), (2, 1.0)]
