"""Keys that an exchange would place elsewhere are refused, and so are keys that have no groups."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol import InvalidRequest
from spark_client.placement import PlacedKeys, check_groupable, partition_ids

KEYS = pa.schema([("k", pa.int64())])
PLACED = PlacedKeys("repartition(7, 'k')", KEYS, 7)


def keys_of(partition: int) -> pa.RecordBatch:
    numbers = pa.record_batch([pa.array(range(100))], schema=KEYS)
    return numbers.filter(pa.array(partition_ids(numbers, ["k"], 7) == partition))


@pytest.mark.parametrize(
    "type_", [pa.int64(), pa.int32(), pa.string(), pa.float64(), pa.decimal128(30, 2)], ids=str
)
def test_keys_of_any_type_are_checked_as_what_was_placed(type_: Any) -> None:
    for partition in range(7):
        keys = keys_of(partition).set_column(0, "K", keys_of(partition).column(0).cast(type_))
        PLACED.check(keys, partition, "stage 2")
        with pytest.raises(InvalidRequest) as caught:
            PLACED.check(keys, (partition + 1) % 7, "stage 2")
        assert caught.value.message.startswith(
            f"stage 2: {len(keys)} of {len(keys)} groups may be in parts: 'K' = "
        )
        assert f"repartition(7, 'k') places it in partition {partition}; " in caught.value.message
        assert caught.value.message.endswith("place them again after that stage: .repartition(7, 'K')")


@pytest.mark.parametrize("values", [["one"], [1.5]])
def test_a_key_that_cannot_be_what_was_placed_is_refused(values: list[Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"repartition\(7, 'k'\) has placed rows by int64"):
        PLACED.check(pa.record_batch({"k": pa.array(values)}), 0, "stage 2")


def test_maps_are_refused_at_any_depth_and_nothing_else() -> None:
    plain = pa.struct([("x", pa.list_(pa.int64()))])
    type_ = pa.map_(pa.string(), pa.int64())
    for nested in (type_, pa.list_(type_), pa.struct([("inner", pa.list_(type_, 2))])):
        with pytest.raises(InvalidRequest, match="cannot group by 'k'"):
            check_groupable(pa.schema([("k", nested)]), ["k"], "stage 1")
    check_groupable(pa.schema([("k", pa.list_(plain)), ("l", pa.list_(plain, 2))]), ["k", "l"], "stage 1")
