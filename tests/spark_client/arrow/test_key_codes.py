"""Rows have one code exactly where their keys are equal, whatever the columns' encoding."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from spark_client.arrow import group_codes


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_zeros_and_nans_in_a_dictionary_are_one_group_each(kind: pa.DataType) -> None:
    numbers = pa.array([0.0, -0.0, math.nan, -math.nan, 1.0], kind)
    indices = pa.array([0, 1, 2, 3, 4, None], pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, numbers)
    assert group_codes([column]).to_pylist() == [0, 0, 1, 1, 2, 3]
