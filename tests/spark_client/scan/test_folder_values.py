"""The types of folders' values; ``tests/integration/spark/test_scan.py`` compares them with Spark's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol.errors import InvalidRequest
from spark_client.scan.folder_values import NULL, FolderRules

TEXT, TIMES = pa.string(), pa.timestamp("us")


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "+5", "007"], pa.int32(), [1, 5, 7]),
        (["5", "2147483648"], pa.int64(), [5, 2147483648]),
        (["5", "12345678901234567890"], pa.decimal128(20, 0), [Decimal(5), Decimal(12345678901234567890)]),
        (["1e5", "1."], pa.decimal128(6, 0), [Decimal(100_000), Decimal(1)]),
        (["9" * 39], pa.float64(), [1e39]),
        (["1", "2.5", "3d", "0x1p3"], pa.float64(), [1, 2.5, 3, 8]),
        (["-Infinity", "1e400"], pa.float64(), [float("-inf"), float("inf")]),
        (["0x1p9999", " 1"], pa.float64(), [float("inf"), 1]),
        (["2147483648", "2.5"], TEXT, ["2147483648", "2.5"]),
        (["1e5", "2.5"], TEXT, ["1e5", "2.5"]),
        (["nan", "a%20b", "%31"], TEXT, ["nan", "a b", "1"]),
        (["2024-05-31", NULL], pa.date32(), [date(2024, 5, 31), None]),
        (["2024-02-30"], TEXT, ["2024-02-30"]),
        (["2024-05-31", "5"], TEXT, ["2024-05-31", "5"]),
        (
            ["2024-05-31", "2024-05-31 10%3A00%3A00"],
            TIMES,
            list(map(datetime.fromisoformat, ["2024-05-31", "2024-05-31 10:00:00"])),
        ),
        (["2024-05-31 10:00"], TEXT, ["2024-05-31 10:00"]),
        (["10%3A00%3A00"], pa.time64("us"), [time(10)]),
        (["24:00:00"], TEXT, ["24:00:00"]),
        ([NULL], pa.null(), [None]),
    ],
)
def test_values_have_the_type_that_fits_all(texts: list[str], kind: pa.DataType, values: list[Any]) -> None:
    found = FolderRules().values("k", texts)
    assert list(found) == texts
    assert {each.type for each in found.values()} == {kind}
    assert [each.as_py() for each in found.values()] == values


def test_nothing_is_inferred_where_the_session_says_so() -> None:
    found = FolderRules(infers=False).values("k", ["1", "2024-05-31", NULL])
    assert [each.as_py() for each in found.values()] == ["1", "2024-05-31", None]


def test_times_are_instants_of_the_sessions_zone() -> None:
    def instants(texts: Sequence[str]) -> list[int]:
        assert texts == ["2024-05-31 10:00:00"]
        return [0]

    found = FolderRules(instants=instants).values("k", ["2024-05-31 10%3A00%3A00", NULL])
    assert [each.as_py() for each in found.values()] == [datetime(1970, 1, 1, tzinfo=UTC), None]


@pytest.mark.parametrize("text", ["0000-01-01", "-2024-05-31", "+12024-05-31", "-0001-01-01 00%3A00%3A00"])
def test_years_that_python_does_not_have_are_refused_with_the_column(text: str) -> None:
    with pytest.raises(
        InvalidRequest, match="folder of column 'k' has a date or time that Python cannot hold"
    ):
        FolderRules().values("k", [text])
