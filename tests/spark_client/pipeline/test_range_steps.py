"""Boundaries of ranges, also of values that Python does not have."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol import InvalidRequest
from spark_client.arrow import SortKey
from spark_client.pipeline.ranges import _boundaries, _column

YEAR = 366 * 86_400 * 10**6
TIMES = [-3000 * YEAR, -YEAR, 0, YEAR, 9000 * YEAR, 20_000 * YEAR]
DATES = [-900_000, -1, 0, 1, 3_000_000, 40_000_000]


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (pa.date32(), DATES),
        (pa.timestamp("us"), TIMES),
        (pa.timestamp("us", "UTC"), TIMES),
        (pa.timestamp("us", "GMT+2"), TIMES),
        *(
            (pa.timestamp("us", zone), TIMES[1:4])
            for zone in ("GMT+2", "UTC-03:30", "+05", "GMT+02:00", "PST")
        ),
    ],
    ids=str,
)
def test_sampled_boundaries_of_any_time_and_zone_are_boundaries(
    kind: pa.DataType, numbers: list[int]
) -> None:
    keys = pa.array(numbers, pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    sample = pa.record_batch([keys, pa.array(np.ones(len(keys)))], names=["k", "weight"])
    schema = pa.schema([("k", kind)])
    boundaries = _boundaries([sample], (SortKey("k"),), len(keys), schema).column(0)
    assert boundaries.equals(keys[1:])
    # They may be given as Arrow's values, of which Python does not have all.
    assert _column(list(boundaries), kind, "k").equals(keys[1:])


def test_a_time_without_zone_is_on_the_clocks_of_a_session_with_an_offset() -> None:
    kind = pa.timestamp("us", "GMT+2")
    found = _column([datetime(2020, 1, 1, 2)], kind, "k")  # noqa: DTZ001 - that is what is tested
    assert found.equals(_column([datetime(2020, 1, 1, tzinfo=UTC)], kind, "k"))


def test_a_scalar_of_another_type_that_python_does_not_have_is_refused() -> None:
    late = pa.array([30_000_000], pa.int32()).view(pa.date32())[0]
    with pytest.raises(InvalidRequest, match="no value of it"):
        _column([late], pa.int64(), "k")
