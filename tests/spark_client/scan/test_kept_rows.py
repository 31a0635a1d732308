"""A scan's filter keeps the rows that Arrow's own filter keeps, also where it looks at dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq

from flight_server.protocol.errors import InvalidRequest
from spark_client.arrow import Declared, gathered
from spark_client.scan.filters import KeptRows
from tests.support.arrow_peak import arrow_peak
from tests.support.scanning import read, splits_of

SCHEMA = pa.schema([("a", pa.string()), ("b", pa.string()), ("n", pa.int64())])
A, B, N = map(pc.field, SCHEMA.names)
EXPRESSIONS = [
    A == "x",
    A.isin(["x", "y"]) & (B != "x"),
    A.is_null() | (B == "y"),
    ~(A == "x"),
    (A == "x") & (N > 3),
    (N > 1) & A.isin(["x", "y"]) & (N < 4) & B.is_valid() & N.is_valid(),
    (A == B) & (N > 1),
    (B == "x") & pc.scalar(value=True),
    pc.if_else(A == "x", B, A) == "y",
    N > 100,
    pc.scalar(value=True),
    pc.scalar(value=False),
    pc.scalar(pa.scalar(None, pa.bool_())),
]


def batch_of(rows: Sequence[tuple[str | None, str | None, int]], coded: Sequence[str]) -> pa.RecordBatch:
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(SCHEMA)]
    columns = [
        column.dictionary_encode() if name in coded else column
        for name, column in zip(SCHEMA.names, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)


texts = st.sampled_from(["x", "y", "z", None])


@given(
    rows=st.lists(st.tuples(texts, texts, st.integers(0, 5)), max_size=80),
    names=st.sampled_from([["n", "a"], ["n"], ["b"]]),
    coded=st.sampled_from([(), ("a",), ("a", "b"), ("a", "b", "n")]),
    expression=st.sampled_from(EXPRESSIONS),
    first=st.integers(0, 3),
)
def test_the_kept_rows_are_those_of_arrows_filter(
    rows: list[tuple[str | None, str | None, int]],
    names: list[str],
    coded: Sequence[str],
    expression: Any,
    first: int,
) -> None:
    batch = batch_of(rows, coded).slice(first)
    kept = KeptRows.by(expression, SCHEMA, names)
    read = Declared("the scan", pa.schema([f for f in SCHEMA if f.name in {*names, *kept.looked_at}]))
    kept_rows = kept.of(batch.select(read.schema.names), read)
    expected = Declared("the scan", SCHEMA).cast(batch).filter(expression).select(names)
    if kept_rows is None:
        assert not expected.num_rows
    else:
        assert kept_rows.equals(expected)


def test_a_filter_of_dictionaries_is_evaluated_once_for_each_combination_of_values() -> None:
    batch = batch_of([("x", "y", 1), (None, "x", 2)] * 500, ["a", "b"])
    kept = KeptRows.by(pc.if_else(A.is_null(), B, "y") == "x", SCHEMA, ["n"])
    with mock.patch.object(KeptRows, "_evaluated", side_effect=KeptRows._evaluated) as evaluated:
        assert kept.of(batch, Declared("the scan", SCHEMA)).column("n").to_pylist() == [2] * 500
    assert [call.args[1].num_rows for call in evaluated.call_args_list] == [6]


def test_only_conditions_of_dictionaries_are_looked_up_and_no_text_is_decoded() -> None:
    batch = batch_of([("x", None, 1), ("y", "x", 2), (None, "y", 3)] * 100, ["a", "b"])
    kept = KeptRows.by((N > 1) & A.isin(["x", "y"]) & (N < 3), SCHEMA, ["n"])
    with mock.patch.object(KeptRows, "_evaluated", side_effect=KeptRows._evaluated) as evaluated:
        assert kept.of(batch, Declared("the scan", SCHEMA)).column("n").to_pylist() == [2] * 100
    rows = [call.args[1] for call in evaluated.call_args_list]
    assert [(each.num_rows, each.schema.names) for each in rows] == [(3, ["a"]), (300, ["n"])]


def test_a_column_of_dictionaries_may_be_declared_without_nulls() -> None:
    batch = batch_of([("x", "y", 1), ("y", "y", 2)] * 100, ["a"])
    schema = pa.schema([field.with_nullable(nullable=False) for field in SCHEMA])
    kept_rows = KeptRows.by((A == "y") & (N > 0), schema, ["n", "a"]).of(batch, Declared("the scan", schema))
    assert kept_rows.equals(Declared("the scan", schema).cast(batch).filter(A == "y").select(["n", "a"]))


@pytest.mark.parametrize("index", [pa.int8(), pa.uint32(), pa.uint64()])
@pytest.mark.parametrize("null", [None, 0])
def test_a_dictionary_may_have_any_index(index: pa.DataType, null: int | None) -> None:
    codes = pa.array([null, 0, 1] * 100, index)
    coded = pa.DictionaryArray.from_arrays(codes, pa.array(["x", "y"]))
    batch = pa.record_batch({"a": coded, "b": coded})
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    kept_rows = KeptRows.by((A == "x") & (B != "y"), schema, ["b"]).of(batch, Declared("a scan", schema))
    assert kept_rows["b"].to_pylist() == ["x"] * (100 if null is None else 200)


def test_a_combination_of_values_that_no_row_has_does_not_fail() -> None:
    batch = batch_of([("1", "x", 1), ("zero", None, 2)] * 50, ["a", "b"])
    number = pc.if_else(B.is_valid(), A, "0").cast("int64")
    assert KeptRows.by(number > 0, SCHEMA, ["n"]).of(batch, Declared("the scan", SCHEMA)).num_rows == 50
    with pytest.raises(pa.ArrowInvalid, match="zero"):
        KeptRows.by(A.cast("int64") > 0, SCHEMA, ["n"]).of(batch, Declared("the scan", SCHEMA))


def test_a_long_text_is_not_made_for_each_combination_that_has_it() -> None:
    rows = [("s", f"text {number % 4000}", number) for number in range(64_000)]
    rows[5] = ("x" * 100_000, "text 5", 5)
    batch = batch_of(rows, ["a", "b"])
    kept = KeptRows.by((A == "s") & (B == "text 5"), SCHEMA, ["n"])
    with arrow_peak() as pool:
        assert kept.of(batch, Declared("the scan", SCHEMA)).column("n").to_pylist() == list(
            range(4005, 64_000, 4000)
        )
        assert pool.max_memory() < 100 << 20


def test_a_random_condition_is_drawn_for_each_row() -> None:
    batch = batch_of([("x", "y", 1)] * 10_000, ["a"])
    drawn = (A == "x") & (pc.Expression._call("random", [], pc.RandomOptions()) < 0.5)
    kept_rows = KeptRows.by(drawn, SCHEMA, ["n"]).of(batch, Declared("the scan", SCHEMA))
    assert 4_000 < kept_rows.num_rows < 6_000


def test_small_batches_are_joined_up_to_the_rows_and_the_bytes() -> None:
    one = pa.record_batch({"n": range(10)})
    assert [batch.num_rows for batch in gathered(iter([one] * 7), 30, 1 << 20)] == [30, 30, 10]
    assert [batch.num_rows for batch in gathered(iter([one] * 7), 1000, 2 * one.nbytes)] == [20, 20, 20, 10]
    assert [batch.num_rows for batch in gathered(iter([one] * 2), 1, 1)] == [10, 10]
    assert list(gathered(iter(()), 1, 1)) == []


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_texts_are_read_as_they_are_stored_and_filtered_so(tmp_path: Path, version: str) -> None:
    rows = 60_000
    table = pa.table(
        {
            "few": pa.array([("x", "y", None)[number % 3] for number in range(rows)], pa.string_view()),
            "own": [f"text {number}" for number in range(rows)],
            "n": range(rows),
            "a.b": ["x", "y", "z"] * (rows // 3),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=25_000, data_page_version=version)
    schema = pa.schema([("few", pa.string()), ("own", pa.string()), ("n", pa.int64()), ("a.b", pa.string())])
    plain = pa.table(
        [column.cast(kind) for column, kind in zip(table.columns, schema.types, strict=True)], schema
    )
    real = pq.ParquetFile
    with mock.patch.object(pq, "ParquetFile", side_effect=real) as opened:
        assert read(splits_of(tmp_path, schema=schema, lenient=True, batch_rows=9_999)).equals(plain)
    assert {*opened.call_args.kwargs["read_dictionary"]} == {"few"}
    for expression in (
        pc.field("few") == "y",
        pc.field("few").is_null() & (pc.field("n") > 7),
        pc.field("n") < 0,
    ):
        splits = splits_of(tmp_path, schema=schema, lenient=True, names=["own", "few"], filter=expression)
        assert read(splits).equals(plain.filter(expression).select(["own", "few"]))


def test_a_filter_that_fails_for_a_row_of_a_dictionary_names_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"few": ["1", "x"] * 1000}), tmp_path / "x.parquet")
    with pytest.raises(InvalidRequest, match=r"filter .*for a row of .*x\.parquet; write it so"):
        read(splits_of(tmp_path, filter=pc.field("few").cast("int64") > 0))
