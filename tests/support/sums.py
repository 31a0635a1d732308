"""Rows by whose sums a test sees each that was lost, came twice, or met another group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 20_000
GROUPS = "k long, n long, s long"


def numbered(spark: SparkSession, partitions: int = 6) -> DataFrame:
    """``ROWS`` numbers ``id``, each with its group ``k``."""
    return spark.range(0, ROWS, numPartitions=partitions).selectExpr("id", "id % 97 AS k")


def grouped(pipeline: Any) -> Any:
    """The sums of what a pipeline has placed by ``k``."""
    return pipeline.groupBy("k").applyInArrow(_summed, GROUPS)


def _summed(keys: tuple[Any, ...], table: pa.Table) -> pa.Table:
    import pyarrow.compute as pc

    return pa.table({"k": [keys[0].as_py()], "n": [table.num_rows], "s": [pc.sum(table["id"]).as_py()]})


def expected() -> list[tuple[int, int, int]]:
    """The sums of all rows."""
    groups = {key: range(key, ROWS, 97) for key in range(97)}
    return [(key, len(numbers), sum(numbers)) for key, numbers in groups.items()]


def sums_of(table: pa.Table) -> list[tuple[int, int, int]]:
    """The sums that were found."""
    return sorted(zip(*(table[name].to_pylist() for name in ("k", "n", "s")), strict=True))


def ids_of(table: pa.Table) -> list[int]:
    """The numbers that were found."""
    return sorted(table["id"].to_pylist())
