"""Limits end what comes before them, counts are of all rows, and aligned columns have every value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_client.arrow import Declared
from spark_client.steps import AlignStage, CountStage, LimitStage, run

SCHEMA = pa.schema([("v", pa.int64())])


def batches(*sizes: int, log: list[str] | None = None) -> Iterator[Any]:
    start = 0
    try:
        for size in sizes:
            if log is not None:
                log.append(f"read {size}")
            yield pa.record_batch([pa.array(range(start, start + size), pa.int64())], schema=SCHEMA)
            start += size
    finally:
        if log is not None:
            log.append("closed")


@pytest.mark.parametrize(
    ("rows", "read"), [(0, []), (3, ["read 5"]), (5, ["read 5"]), (6, ["read 5", "read 0", "read 5"])]
)
def test_a_limit_closes_its_input_as_soon_as_it_has_its_rows(rows: int, read: list[str]) -> None:
    log: list[str] = []
    given = batches(5, 0, 5, 5, log=log)
    limited = run([LimitStage(rows, Declared("limit", SCHEMA), divisible=True)], given)
    found = [each for batch in limited for each in batch.column(0).to_pylist()]
    assert found == list(range(rows))
    assert log == [*read, *(["closed"] if read else [])]
    if read:
        assert next(given, None) is None, "the source has ended"


def test_a_limit_beyond_the_rows_gives_them_all() -> None:
    stage = LimitStage(100, Declared("limit", SCHEMA), divisible=False)
    assert sum(batch.num_rows for batch in run([stage], batches(5, 5))) == 10


@pytest.mark.parametrize("sizes", [(), (0,), (3, 4)])
def test_a_count_is_one_row_of_each_partition(sizes: tuple[int, ...]) -> None:
    stage = CountStage(Declared("count", pa.schema([pa.field("count", pa.int64(), nullable=False)])))
    (found,) = run([stage], batches(*sizes))
    assert found.to_pylist() == [{"count": sum(sizes)}]


def test_aligned_columns_go_by_position_and_lose_only_what_sparks_casts_lose() -> None:
    schema = pa.schema([("a", pa.float64()), ("b", pa.decimal128(22, 2))])
    given = pa.record_batch([pa.array([2**53 + 1, None]), pa.array([7, None])], names=["x", "y"])
    (found,) = run([AlignStage(Declared("union", schema))], iter([given]))
    assert found.schema == schema
    assert [str(row["b"]) for row in found.to_pylist()] == ["7.00", "None"]
    assert found.column("a").to_pylist() == [float(2**53), None]
