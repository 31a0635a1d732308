"""Averages of decimals are Python's own, at any size."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_client.reducing.group_results import decimal_average

EXACT = Context(prec=76)
LONG = 1 << 63
totals = (
    st.integers(1 - 10**38, 10**38 - 1)
    | st.integers(-(10**20), 10**20)
    | st.sampled_from([LONG - 1, -LONG, LONG, 2 * LONG - 1, -2 * LONG, 0])
)
counts = st.integers(1, LONG - 1) | st.integers(1, 12)


def decimals(numbers: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    values = [None if each is None else Decimal(each).scaleb(-kind.scale, EXACT) for each in numbers]
    return pa.array(values, kind)


def average(total: int, count: int) -> int:
    """In units of four digits more, rounded half up."""
    found = (2 * abs(total) * 10**4 + count) // (2 * count)
    return found if total > 0 else -found


@given(groups=st.lists(st.none() | st.tuples(totals, counts), max_size=8), skipped=st.integers(0, 2))
@example(groups=[(LONG - 1, 1)], skipped=0)
@example(groups=[(5, 100_000), (-5, 100_000), (4, 100_000)], skipped=0)
def test_an_average_of_decimals_is_rounded_half_up(
    groups: list[tuple[int, int] | None], skipped: int
) -> None:
    """Also where Arrow's division is wrong: of the greatest ``bigint`` with ten decimals."""
    of_sum, result = pa.decimal128(38, 10), pa.decimal128(38, 14)
    groups = [each if each and abs(average(*each)) < 10**38 else None for each in groups]
    total = decimals([*[0] * skipped, *(each[0] if each else None for each in groups)], of_sum).slice(skipped)
    count = pa.array([1] * skipped + [each[1] if each else 0 for each in groups], pa.int64()).slice(skipped)
    found = decimal_average(result, total, count)
    found.validate(full=True)
    assert found.equals(decimals([average(*each) if each else None for each in groups], result))


@pytest.mark.parametrize("total", [10**30, -(10**15), 10**38 - 1])
def test_an_average_that_leaves_its_type_is_an_error(total: int) -> None:
    with pytest.raises(pa.ArrowInvalid):
        decimal_average(pa.decimal128(18, 4), decimals([1, total], pa.decimal128(38, 0)), pa.array([1, 1]))
