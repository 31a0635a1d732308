"""Names that were probably meant."""

from __future__ import annotations

import pytest

from flight_server.protocol import did_you_mean, nearest

COLUMNS = ["customer_id", "Amount", "day"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("custmer_id", "customer_id"), ("amount", "Amount"), ("AMOUNTS", "Amount"), ("dya", "day")],
)
def test_a_name_with_a_slip_is_asked_for(name: str, meant: str) -> None:
    assert did_you_mean(name, COLUMNS) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize("name", ["price", "", 7, None])
def test_another_name_has_no_suggestion(name: object) -> None:
    assert did_you_mean(name, COLUMNS) == ""
    assert nearest(name, []) is None


def test_of_names_that_differ_by_case_the_first_is_asked_for() -> None:
    assert nearest("KEY", ["key", "Key"]) == "key"
