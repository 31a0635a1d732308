"""How partitions and a limit are shared out among tasks."""

from __future__ import annotations

import pytest

from spark_client.datasource.batch_read import Share, share_out


@pytest.mark.parametrize(
    ("rows", "limit", "expected"),
    [
        (None, None, [Share((0,)), Share((1,)), Share((2,))]),
        (None, 5, [Share((0, 1, 2), 5)]),
        ({0: 3, 2: 4}, None, [Share((0,)), Share((2,))]),
        ({0: 3, 2: 4}, 5, [Share((0,)), Share((2,), 2)]),
        ({0: 3, 2: 4}, 3, [Share((0,))]),
        ({0: 3, 2: 4}, 0, [Share(())]),
        ({}, None, [Share(())]),
    ],
)
def test_empty_partitions_are_left_out_and_a_limit_takes_what_it_needs(
    rows: dict[int, int] | None, limit: int | None, expected: list[Share]
) -> None:
    assert list(share_out(range(3), rows, limit)) == expected
