"""The guess of which part of the rows a filter keeps."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow.compute import field

from spark_client.arrow import kept_share

A, B = field("a"), field("b")


@pytest.mark.parametrize(
    ("expression", "share"),
    [
        (None, 1),
        (pc.scalar(True), 1),
        (A.is_valid(), 1),
        (A == 1, 0.1),
        (A != 1, 0.9),
        (A > 1, 1 / 3),
        (A == B, 0.1),
        ((A >= 1) & (A < 2), 1 / 9),
        ((A == 1) & (B == "x") & (A < B), 1 / 300),
        ((A == 1) | (B == 2), 0.19),
        (((A == 1) | (B == 2)) & (A < 5), 0.19 / 3),
        (~(A == 1), 0.9),
        (~((A == 1) & (B == 1)), 0.99),
        (~pc.match_like(B, "%a and b%"), 2 / 3),
        # Texts and sets of values are no conditions.
        (B == 'x and (y or "z', 0.1),
        (A.isin(["p and q", "(", "== 3"]), 1 / 3),
        (A.isin(["p and q"]) & (pc.starts_with(B, "or (")), 1 / 9),
        (pc.and_kleene(A > 1, pc.add(A, 1) > 2), 1 / 9),
        # Python has not these values and zones.
        (pa.scalar(2**62, pa.timestamp("us", "UTC")) > A, 1 / 3),
        (pa.scalar(10**9, pa.date32()) == A, 0.1),
        (pa.scalar(0, pa.timestamp("us", "No/Where")) < A, 1 / 3),
        # Nor are names.
        (field("a == 1) and (b") > 1, 1 / 3),
        (~(field(" != ") == 1), 0.9),
        # It tells no parts.
        (field(0) == 1, 1),
    ],
    ids=str,
)
def test_conditions_keep_a_tenth_or_a_third_and_together_their_product(expression: Any, share: float) -> None:
    assert kept_share(expression) == pytest.approx(share)


def test_more_conditions_than_python_has_levels_are_guessed_too() -> None:
    assert kept_share(reduce(or_, [A == B] * 1200)) == pytest.approx(1)
