"""Rows that are kept while they are few."""

from __future__ import annotations

import itertools

import pyarrow as pa

from flight_server.protocol import MAX_PARTITIONS
from spark_client.datasource.staging import FEW_BYTES, FewRows, few_bytes

SCHEMA = pa.schema({"id": pa.int64()})


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


def test_few_rows_are_given_again_wherever_an_iteration_ended() -> None:
    given = [batch(number) for number in range(5)]
    rows = FewRows(iter(given))
    for count in (2, 3, 0, 5):
        assert list(itertools.islice(rows, count)) == given[:count]
        assert rows.are_few
    encoded = rows.encoded(SCHEMA)
    assert encoded is not None
    assert pa.ipc.open_stream(encoded).read_all() == pa.Table.from_batches(given)


def test_many_rows_are_given_once_and_not_kept() -> None:
    given = [batch(*range(FEW_BYTES // 8)), batch(1), batch(2)]
    rows = FewRows(iter(given))
    assert list(itertools.islice(rows, 2)) == given[:2]
    assert not rows.are_few
    assert list(rows) == given[2:]
    assert rows.encoded(SCHEMA) is None


def test_the_driver_has_room_for_what_all_tasks_keep() -> None:
    assert few_bytes(0) == few_bytes(200) == FEW_BYTES
    assert sum(map(few_bytes, range(MAX_PARTITIONS))) < 256 << 20  # of Spark's 1 GiB
    wide = pa.schema([(f"column_{number}", pa.int64()) for number in range(10_000)])
    rows = FewRows(iter([pa.RecordBatch.from_pylist([{}], wide)]))
    assert list(rows)
    assert rows.are_few
    assert rows.encoded(wide) is None
