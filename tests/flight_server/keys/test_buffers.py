"""Arrow arrays over numpy's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from flight_server.keys import array_over, flags


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_an_array_over_numbers_is_what_arrow_would_make(kind: type, count: int) -> None:
    numbers: NDArray[Any] = np.arange(2 * count).astype(kind)
    for each in (numbers, numbers[::2], numbers[count:]):
        made = array_over(each)
        made.validate(full=True)
        assert made.equals(pa.array(each))


def test_an_array_over_numbers_is_no_copy() -> None:
    numbers = np.arange(100)
    assert array_over(numbers).buffers()[1].address == numbers.__array_interface__["data"][0]


@pytest.mark.parametrize("first", [0, 1, 7, 8, 13])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 83])
def test_flags_are_arrows_booleans_of_any_slice(first: int, count: int) -> None:
    booleans = pa.array(np.random.default_rng(first).integers(0, 2, 100).astype(np.bool_))
    found = flags(booleans.slice(first, count))
    assert found.dtype == np.bool_
    assert found.tolist() == booleans.slice(first, count).to_pylist()


def test_no_booleans_have_no_flags() -> None:
    assert flags(pa.array([], pa.bool_())).tolist() == []
    assert flags(pa.nulls(0, pa.bool_())).tolist() == []
