"""Rows in the schema of a changelog."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol.errors import InvalidRequest
from spark_client.changelogs.put_rows import PutRows

SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int64())])
ROWS = PutRows("d", SCHEMA)
TABLE = pa.table({"name": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
COUNTED = SCHEMA.append(pa.field("_diff", pa.int64(), nullable=False))
diff = pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint16()], ids=str)


def test_columns_are_taken_by_name_and_cast_safely() -> None:
    given = pa.table({"n": pa.array([1, 2], pa.int8()), "name": pa.array(["a", "b"]).dictionary_encode()})
    assert ROWS.in_schema(given).equals(TABLE)
    assert ROWS.in_schema(TABLE.to_batches()[0]).equals(TABLE.to_batches()[0])


@diff
def test_a_count_of_any_integer_type_is_kept(kind: Any) -> None:
    found = ROWS.in_schema(TABLE.add_column(0, "_diff", pa.array([1, 3], kind)))
    assert found.schema == COUNTED
    assert found["_diff"].to_pylist() == [1, 3]
    assert ROWS.counted(TABLE)["_diff"].to_pylist() == [1, 1]


@diff
def test_a_retraction_turns_the_counts_around(kind: Any) -> None:
    for rows in (TABLE, TABLE.to_batches()[0]):
        assert ROWS.retracted(rows)["_diff"].to_pylist() == [-1, -1]
        found = ROWS.retracted(rows.append_column("_diff", pa.array([1, 3], kind)))
        assert found.schema == COUNTED
        assert found["_diff"].to_pylist() == [-1, -3]


def test_rows_without_rows_have_the_schema() -> None:
    assert ROWS.retracted(SCHEMA.empty_table()).schema == COUNTED


def test_batches_are_joined_with_counts_if_any_has_them() -> None:
    plain = ROWS.batches(TABLE.to_batches(max_chunksize=1))
    assert ROWS.joined(plain).equals(TABLE)
    assert ROWS.joined(plain)["n"].num_chunks == 1
    mixed = ROWS.joined(plain + ROWS.batches(ROWS.retracted(TABLE)))
    assert mixed.schema == COUNTED
    assert mixed["_diff"].to_pylist() == [1, 1, -1, -1]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (TABLE.append_column("_diff", pa.array([1.0, 1.0])), "integer type"),
        (TABLE.append_column("_diff", pa.array([1, None], pa.int64())), "has nulls"),
        (TABLE.append_column("rate", pa.array([1, 2])), "unexpected 'rate'"),
        (TABLE.drop_columns("n"), "missing 'n'"),
        (pa.table({"name": ["a"], "n": ["1"]}), "'n' is string"),
    ],
    ids=["float", "null", "unknown column", "missing column", "type"],
)
def test_what_does_not_fit_is_named(rows: pa.Table, sentence: str) -> None:
    for method in (ROWS.in_schema, ROWS.counted, ROWS.retracted):
        with pytest.raises(InvalidRequest, match=rf"changelog 'd'.*{sentence}"):
            method(rows)
