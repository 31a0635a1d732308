"""The types of folders' values; ``tests/integration/spark/test_scan_folders.py`` compares them with Spark's."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol.errors import InvalidRequest
from spark_client.scan.folder_values import NULL, FolderRules

TEXT, TIMES, INSTANTS = pa.string(), pa.timestamp("us"), pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "+5", "007"], pa.int32(), [1, 5, 7]),
        (["5", "2147483648", "-9223372036854775808"], pa.int64(), [5, 2147483648, -(1 << 63)]),
        (["5", "9223372036854775808"], TEXT, ["5", "9223372036854775808"]),
        (["1", "2.5", "1e-5"], pa.float64(), [1, 2.5, 1e-5]),
        (["-Infinity", ".5"], pa.float64(), [float("-inf"), 0.5]),
        (["2147483648", "2.5"], TEXT, ["2147483648", "2.5"]),
        (["1e5", "1."], TEXT, ["1e5", "1."]),
        (["3d", " 1", "nan", "a%20b", "%31"], TEXT, ["3d", " 1", "nan", "a b", "1"]),
        (["2024-05-31", NULL], pa.date32(), [date(2024, 5, 31), None]),
        (["2024-02-30", "10:00:00"], TEXT, ["2024-02-30", "10:00:00"]),
        (["2024%2D05%2D31"], TEXT, ["2024-05-31"]),
        (["2024-05-31", "5"], TEXT, ["2024-05-31", "5"]),
        (
            ["2024-05-31", "2024-05-31 10%3A00%3A00"],
            TIMES,
            list(map(datetime.fromisoformat, ["2024-05-31", "2024-05-31 10:00:00"])),
        ),
        (["2024-05-31 10:00"], TEXT, ["2024-05-31 10:00"]),
        ([NULL], pa.null(), [None]),
    ],
)
def test_values_have_the_type_that_fits_all(texts: list[str], kind: pa.DataType, values: list[Any]) -> None:
    found = FolderRules().values("k", texts)
    assert {each.type for each in found.values()} == {kind}
    assert [found[text].as_py() for text in texts] == values


def test_nothing_is_inferred_where_the_session_says_so() -> None:
    found = FolderRules(infers=False).values("k", ["1", "2024-05-31", NULL])
    assert [each.as_py() for each in found.values()] == ["1", "2024-05-31", None]


@pytest.mark.parametrize("kind", [None, INSTANTS])
def test_times_are_instants_of_the_sessions_zone(kind: pa.DataType | None) -> None:
    def instants(texts: Sequence[str]) -> list[int]:
        assert texts == ["2024-05-31 10:00:00"]
        return [0]

    found = FolderRules(time=INSTANTS, instants=instants).values("k", ["2024-05-31 10%3A00%3A00", NULL], kind)
    assert [each.as_py() for each in found.values()] == [datetime(1970, 1, 1, tzinfo=UTC), None]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(TEXT, "01", "01"), (pa.int64(), "01", 1), (pa.float64(), "5", 5.0), (pa.bool_(), "true", True)],
)
def test_a_type_that_is_given_counts(kind: pa.DataType, text: str, value: object) -> None:
    assert FolderRules().values("k", [text], kind)[text].as_py() == value
    if kind != TEXT:
        with pytest.raises(
            InvalidRequest, match=r"folder of column 'k' has a value that is no .*; give schema="
        ):
            FolderRules().values("k", [text, "x'"], kind)
    with pytest.raises(InvalidRequest, match="no timestamp"):
        FolderRules(instants=lambda _: [1]).values("k", [text], INSTANTS)
