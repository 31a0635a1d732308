"""Both sides of a join are placed by types whose hashes are equal where their keys are."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from spark_client.jobs.placements import ByKeys
from spark_client.joining import KeyForm
from spark_client.pipeline.pairing import placing_types

MOMENT = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("left", "right", "own"),
    [
        (pa.array([7], pa.int8()), pa.array([7], pa.int32()), True),
        (pa.array([-7], pa.int32()), pa.array([-7], pa.int64()), False),
        (pa.array([2**60 + 1]), pa.array([float(2**60)]), False),
        (pa.array([0.5], pa.float32()), pa.array([0.5]), False),
        (pa.array([0.0]), pa.array([-0.0]), True),
        (pa.array([Decimal("1.5")]), pa.array([Decimal("1.50")]), False),
        (pa.array([Decimal("1.5")]), pa.array([Decimal("1.5")], pa.decimal128(10, 1)), True),
        (pa.array([Decimal("1.5")]), pa.array([Decimal("1.5")], pa.decimal128(20, 1)), False),
        (pa.array([3], pa.int16()), pa.array([Decimal(3)]), False),
        (pa.array(["text"]), pa.array(["text"], pa.large_string()), True),
        (
            pa.array([MOMENT], pa.timestamp("us", "UTC")),
            pa.array([MOMENT], pa.timestamp("us", "Asia/Tokyo")),
            True,
        ),
        (pa.array([True]), pa.array([True]), True),
    ],
    ids=str,
)
def test_equal_keys_of_two_types_go_to_one_partition(left: pa.Array, right: pa.Array, own: bool) -> None:
    form = KeyForm.of(left.type, right.type, "key")
    assert form.normal(left) == form.normal(right)
    types = placing_types((left.type,), (right.type,), [form.compared])
    assert (types == (None, None)) is own, "Spark hashes columns as they are only if both sides' hashes agree"
    found = []
    for column, placed in zip((left, right), types, strict=True):
        batch = pa.RecordBatch.from_arrays([column], names=["k"])
        ids = ByKeys(("k",), 1 << 20, placed).place(batch, 0, 0)
        found.append(ids.tolist())
    assert found[0] == found[1]
