"""What the driver does itself: whose steps, and how much they may read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_client.arrow import Declared
from spark_client.jobs import SealedDataset, Shares, TaskNumbers
from spark_client.pipeline.in_driver import PARTITION_BYTES, driver_bytes, driver_may_run
from spark_client.pipeline.nodes import Exchange, Input, Leg, Origin, Pair, PlanPart
from spark_client.steps import (
    JoinStage,
    Stage,
    TableJoinStage,
)

NOTHING: Any = None
SCHEMA = pa.schema({"a": pa.int64(), "b": pa.string()})
DECLARED = Declared("a stage", SCHEMA)
FRAME = Input(NOTHING, "DataFrame")
JOIN: Stage = JoinStage(DECLARED, NOTHING)


def scan(size_bytes: int | None) -> Input:
    return Input(TaskNumbers(NOTHING, 1), "scan", NOTHING, Shares.each(1), driver_bytes=size_bytes)


def leg(*parts: PlanPart) -> Leg:
    return Leg(parts, StructType([]), DECLARED)


def of(origin: Origin, *stages: Stage) -> Leg:
    return leg(PlanPart(origin, stages))


def sealed(rows: int, *partition_bytes: int) -> SealedDataset:
    return SealedDataset(NOTHING, SCHEMA, partition_bytes, rows)


EXCHANGE, OTHER = (Exchange(of(FRAME), 2, ("a",), label=label) for label in ("one", "two"))


def test_rows_of_a_dataframe_or_of_files_that_tasks_reach_alone_never_may() -> None:
    assert not driver_may_run(of(FRAME))
    assert not driver_may_run(of(scan(None)))
    assert not driver_may_run(leg(PlanPart(EXCHANGE), PlanPart(FRAME)))


def test_all_that_is_read_counts() -> None:
    written = {EXCHANGE: sealed(10, 1000, 2000), OTHER: sealed(10, 500)}
    one, other = 3000 + 2 * PARTITION_BYTES, 500 + PARTITION_BYTES
    assert driver_bytes([of(EXCHANGE)], written) == one
    assert driver_bytes([of(scan(70))], {}) == 70
    assert driver_bytes([leg(PlanPart(EXCHANGE), PlanPart(scan(70)))], written) == one + 70
    assert driver_bytes([of(Pair(PlanPart(EXCHANGE), PlanPart(OTHER)), JOIN)], written) == one + other
    assert driver_bytes([of(EXCHANGE), of(OTHER)], written) == one + other


def test_rows_count_though_they_were_compressed_to_nothing() -> None:
    assert driver_bytes([of(EXCHANGE)], {EXCHANGE: sealed(1_000_000, 10)}) > 2 * 8 * 1_000_000


def test_a_table_that_a_join_holds_counts() -> None:
    table: Any = SimpleNamespace(size_bytes=1 << 30)
    join = TableJoinStage(DECLARED, NOTHING, table, DECLARED)
    assert driver_may_run(of(scan(1), join))
    assert driver_bytes([of(scan(1), join)], {}) == (1 << 30) + 1
