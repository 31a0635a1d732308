"""Result batches of a bounded size, neither too large nor too small."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_client.arrow import gathered
from spark_client.joining import expanded
from spark_client.steps.join_stage import SMALL_BYTES, SMALL_ROWS


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 20))
def test_each_row_comes_as_often_as_it_is_shown_in_pieces(shown: list[int], piece_rows: int) -> None:
    found = []
    for rows, within in expanded(np.array(shown, np.int64), piece_rows):
        assert len(rows) == len(within) <= piece_rows
        found += list(zip(rows.tolist(), within.tolist(), strict=True))
    assert found == [(row, time) for row, times in enumerate(shown) for time in range(times)]


@pytest.mark.parametrize(
    "sizes", [[], [1], [10] * 5000, [SMALL_ROWS, 3, 5, SMALL_ROWS + 1, 7], [3, SMALL_ROWS - 1, 2]]
)
def test_small_batches_are_joined_and_large_ones_are_not_copied(sizes: list[int]) -> None:
    ends = np.cumsum([0, *sizes])
    given_batches = [
        pa.record_batch({"n": pa.array(range(start, end), pa.int64())})
        for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]
    found = list(gathered(iter(given_batches), SMALL_ROWS, SMALL_BYTES))
    assert [number for batch in found for number in batch.column(0).to_pylist()] == list(range(int(ends[-1])))
    small = [batch.num_rows for batch in found if batch.num_rows < SMALL_ROWS]
    assert len(small) <= sum(size >= SMALL_ROWS for size in sizes) + 1
    large = {batch.column(0).buffers()[1].address for batch in given_batches if batch.num_rows >= SMALL_ROWS}
    assert large <= {batch.column(0).buffers()[1].address for batch in found}


def test_few_wide_rows_are_not_joined_beyond_their_bytes() -> None:
    wide = pa.record_batch({"text": ["x" * (SMALL_BYTES // 2)]})
    assert [batch.num_rows for batch in gathered([wide] * 7, SMALL_ROWS, SMALL_BYTES)] == [2, 2, 2, 1]
