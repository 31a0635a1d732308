"""Values as text: what each parser takes, and what it says of anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_client.settings.texts import integer, one_of, seconds, size_bytes


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (seconds(0), "90", 90.0),
        (seconds(0), "0.5", 0.5),
        (seconds(0), " 5 min ", 300.0),
        (seconds(0), "5m", 300.0),
        (seconds(0), "250MS", 0.25),
        (seconds(0), "2h", 7200.0),
        (size_bytes(0), "1000", 1000),
        (size_bytes(0), "64m", 64 << 20),
        (size_bytes(0), "64 MiB", 64 << 20),
        (size_bytes(0), "2G", 2 << 30),
        (integer(0), " 7 ", 7),
        (one_of("auto", "bulk"), "BULK", "bulk"),
    ],
)
def test_a_value_may_have_a_unit(parse: Callable[[str], Any], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (seconds(0.001), "0"),
        (seconds(0), "-1"),
        (seconds(0), "inf"),
        (seconds(0), "5 weeks"),
        (seconds(0), ""),
        (size_bytes(1), "0"),
        (size_bytes(0), "64MB"),  # 1024² to Spark, 1000² to the server
        (size_bytes(0), "1.5m"),
        (size_bytes(0), "b"),
        (integer(1), "0"),
        (integer(0), "1.0"),
        (integer(0), "-1"),
    ],
)
def test_any_other_value_is_refused_with_what_there_may_be(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError, match="from"):
        parse(text)
