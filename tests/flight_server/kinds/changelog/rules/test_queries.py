"""``sql``: rules of the user's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.kinds.changelog.rules import Groups, Query, QueryProcesses, make_rule
from flight_server.protocol import FlightShuffleError, InvalidRequest, KeepRule, OutOfBudget
from tests.flight_server.kinds.changelog.rules.test_needed import histories, plus, retractions, rows
from tests.support.keep_model import SCHEMA, Row, collection, groups_of, kept, rows_of

LATEST = """
    select * from input qualify row_number() over (
        partition by key order by time desc nulls last, kind desc nulls last, value desc nulls last
    ) = 1
"""
MODEL = KeepRule.parse({"rule": "latest", "key": "key", "order_by": ["time"]})
TOTALS = pa.schema([("k", pa.string()), ("v", pa.decimal128(18, 2))])
SUMS = "select k, sum(v) as v from input group by k"
PROCESSES = QueryProcesses()


@pytest.fixture(scope="module", autouse=True)
def _one_process() -> Iterator[None]:
    by_latest.check()
    yield
    PROCESSES.close()


def sql(query: str, schema: pa.Schema = SCHEMA, key: str | None = "key") -> Query:
    spec = KeepRule.parse({"rule": "sql", "query": query} | ({} if key is None else {"key": key}))
    rule = make_rule(spec, schema, PROCESSES)
    assert isinstance(rule, Query)
    return rule


def totals(*values: tuple[str | None, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": key, "v": Decimal(value)} for key, value in values], TOTALS)


by_latest = sql(LATEST)


@given(counts=st.dictionaries(rows, st.integers(-2, 3), max_size=12))
@settings(max_examples=40)
def test_a_query_for_the_latest_row_shows_what_latest_shows(counts: dict[Row, int]) -> None:
    assert collection(by_latest.kept(groups_of(MODEL, counts))) == kept(MODEL, counts)


@given(history=histories(rows))
@settings(max_examples=40)
def test_compaction_by_a_query_changes_no_later_version(history: Any) -> None:
    counts, versions, further = history
    later = retractions(versions)

    def needed(counts: dict[Row, int]) -> dict[Row, int]:
        groups = groups_of(MODEL, counts)
        of_rows = np.array([later[row] for row in rows_of(groups.rows)], np.int64)
        return collection(by_latest.needed(groups, of_rows))

    left = needed(counts)
    assert needed(left) == left
    whole = counts
    for version in [{}, *versions, *further]:
        whole, left = plus(whole, version), plus(left, version)
        assert kept(MODEL, left) == kept(MODEL, whole)


def test_a_running_sum_takes_the_place_of_the_rows_that_it_adds_up() -> None:
    rule = sql(SUMS, TOTALS, "k")
    groups = Groups(totals(("a", 1), ("a", 5), ("b", 7)), np.array([0, 2]), np.array([3, 1, 1]))
    left = rule.needed(groups, np.zeros(3, np.int64))
    assert collection(left) == {("a", Decimal(8)): 1, ("b", Decimal(7)): 1}
    assert left.rows.schema == TOTALS
    later = Groups(pa.concat_batches([left.rows, totals(("b", 2))]), np.array([0]), np.ones(3, np.int64))
    assert collection(rule.kept(later)) == {("a", Decimal(8)): 1, ("b", Decimal(9)): 1}


def test_the_rows_of_a_key_with_later_retractions_stay_and_waiting_ones_stop_nothing() -> None:
    rule = sql(SUMS, TOTALS, "k")
    rows = totals(("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3), ("c", 1), ("c", 2))
    groups = Groups(rows, np.array([0, 2, 5]), np.array([1, 2, 1, -1, 1, 1, 1]))
    left = rule.needed(groups, np.array([0, -1, 0, -1, 0, 0, 0]))
    assert collection(left) == {
        ("a", Decimal(1)): 1,
        ("a", Decimal(2)): 2,
        ("b", Decimal(4)): 1,
        ("b", Decimal(2)): -1,
        ("c", Decimal(3)): 1,
    }
    assert collection(rule.kept(groups))["b", Decimal(4)] == 1


def test_without_a_key_all_rows_are_one_group() -> None:
    rule = sql("select null as k, sum(v) as v from input", TOTALS, None)
    rows = totals(("a", 1), ("b", 2))
    groups = Groups(rows, np.array([0]), np.array([1, 1]))
    assert collection(rule.needed(groups, np.zeros(2, np.int64))) == {(None, Decimal(3)): 1}
    assert collection(rule.needed(groups, np.array([0, -1]))) == Counter(rows_of(rows))


def test_equal_rows_of_the_result_are_counted_nulls_too() -> None:
    schema = pa.schema([("k", pa.string()), ("list", pa.list_(pa.struct([("x", pa.int8())])))])
    rule = sql("select * from input union all (select null, [{'x': 1}] from input)", schema, None)
    rows = pa.RecordBatch.from_pylist(
        [{"k": "a", "list": [{"x": None}]}, {"k": None, "list": [{"x": 1}]}], schema
    )
    shown = rule.kept(Groups(rows, np.array([0]), np.array([2, 1])))
    found = {(str(row), count) for row, count in zip(rows_of(shown.rows), shown.counts.tolist(), strict=True)}
    assert found == {("('a', [{'x': None}])", 2), ("(None, [{'x': 1}])", 4)}


def test_the_result_is_cast_to_the_declared_columns_in_their_order() -> None:
    schema = pa.schema(
        [("Key", pa.large_string()), ("time", pa.timestamp("ns", "Europe/Berlin")), ("n", pa.uint8())]
    )
    rule = sql("select n::hugeint as N, time, KEY from input", schema, "Key")
    rows = pa.RecordBatch.from_pylist([{"Key": "a", "time": 1, "n": 255}], schema)
    shown = rule.kept(Groups(rows, np.array([0]), np.array([1])))
    assert shown.rows == rows


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select key, time, kind from input", "must give the declared ones"),
        ("select *, 1 as more from input", "must give the declared ones"),
        ("select *, time as time from input", "must give the declared ones"),
        (
            "select key, kind as time, kind, [value] as value from input",
            "in the column 'value', which is int64",
        ),
        ("select missing from input", "'select missing from input' cannot be run: Binder Error"),
    ],
)
def test_a_query_that_does_not_give_the_declared_columns_is_refused(query: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        sql(query).check()


def test_a_query_that_fails_on_some_row_says_so() -> None:
    rule = sql("select key, time, kind, value // (1 - error_if(kind)) as value from input".replace(
        "error_if(kind)", "kind::int"
    ))  # fmt: skip
    with pytest.raises(InvalidRequest, match="Could not convert string 'open'"):
        rule.kept(groups_of(MODEL, {("a", 1, "open", 1): 1}))


def test_a_number_that_does_not_fit_the_declared_column_is_an_error() -> None:
    rule = sql("select key, time, kind, value * 1000000000000::hugeint as value from input")
    with pytest.raises(InvalidRequest, match="in the column 'value', which is int64: cast it"):
        rule.kept(groups_of(MODEL, {("a", 1, "open", 10**12): 1}))


@pytest.mark.parametrize(
    "kind", [pa.float16(), pa.duration("s"), pa.struct([("x", pa.list_(pa.duration("ns")))])], ids=str
)
def test_a_column_that_duckdb_would_change_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidRequest, match=r"keep: the column 'c' .* DuckDB does not keep"):
        sql("select * from input", pa.schema([("key", pa.string()), ("c", kind)])).check()


def test_columns_whose_names_differ_by_case_only_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="upper and lower case"):
        sql("select * from input", pa.schema([("key", pa.string()), ("KEY", pa.string())])).check()


def test_many_copies_of_a_row_are_not_made_beyond_the_memory_limit() -> None:
    groups = Groups(totals(("a", 1)), np.array([0]), np.array([10**12]))
    with pytest.raises(OutOfBudget, match="more memory than 256 MiB for 1000000000000 rows"):
        sql("select * from input", TOTALS, "k").kept(groups)
    assert len(PROCESSES) == 1


def test_the_message_of_an_error_can_be_sent_whole() -> None:
    with pytest.raises(FlightShuffleError) as refused:
        sql("select 'é',\n 1 from input").check()
    assert refused.value.message.isascii()
    assert refused.value.message.isprintable()
