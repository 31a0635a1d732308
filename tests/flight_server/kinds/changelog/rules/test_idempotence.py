"""Queries that compaction would change are refused, with the rows that show it."""

from __future__ import annotations

import functools
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flight_server.kinds.changelog.rules import QueryLimits, Sample
from flight_server.kinds.changelog.rules.sandbox import Sandbox
from flight_server.kinds.changelog.rules.user_query import UserQuery
from flight_server.protocol import InvalidRequest, KeepRule

SCHEMA = pa.schema([("currency", pa.string()), ("time", pa.int64()), ("amount", pa.decimal128(18, 2))])
SAMPLE = pa.RecordBatch.from_pylist(
    [{"currency": ["EUR", "CHF", None][n % 3], "time": n % 31, "amount": Decimal(n % 7)} for n in range(60)],
    SCHEMA,
)
sandbox = Sandbox(QueryLimits())
LATEST = "select * from input qualify row_number() over (partition by currency order by time desc, amount desc) = 1"


def sql(query: str, key: str | None = "currency", schema: pa.Schema = SCHEMA) -> UserQuery:
    declared = {"rule": "sql", "query": query, **({"key": key} if key else {})}
    return UserQuery(KeepRule.parse(declared), schema, sandbox)


@pytest.mark.parametrize(
    ("query", "key"),
    [
        (LATEST, "currency"),
        (
            "select currency, max(time) as time, sum(amount) as amount from input group by currency",
            "currency",
        ),
        ("select * from input where amount > 3", "currency"),
        ("select * from input order by time desc, currency, amount limit 5", None),
        ("select distinct * from input", "currency"),
    ],
)
def test_a_query_that_survives_compaction_is_taken(query: str, key: str | None) -> None:
    sql(query, key).check_idempotent(SAMPLE)
    sql(query, key).check_idempotent(SAMPLE.slice(0, 0))


refused_queries = pytest.mark.parametrize(
    ("query", "key"),
    [
        (
            "select currency, max(time) as time, avg(amount)::decimal(18, 2) as amount from input group by 1",
            "currency",
        ),
        ("select currency, count(*) as time, 0 as amount from input group by 1", "currency"),
        (
            "select * from input qualify row_number() over (partition by currency order by time desc) > 1",
            None,
        ),
        ("select * from input limit 5", None),
        ("select currency, time, amount + 1 as amount from input", "currency"),
    ],
)


@refused_queries
def test_a_query_that_is_not_idempotent_is_refused_with_its_rows(query: str, key: str | None) -> None:
    rule = sql(query, key)
    with pytest.raises(
        InvalidRequest, match=r"is not idempotent: only in keep\(keep\(a\) \+ b\): .*'currency': "
    ) as no:
        rule.check_idempotent(SAMPLE)
    assert query[:40] in str(no.value)
    assert len(no.value.message) < 1200


@refused_queries
def test_it_is_refused_also_when_each_row_comes_alone(query: str, key: str | None) -> None:
    rule, sample = sql(query, key), Sample.empty(SCHEMA)
    keys = pc.dictionary_encode(SAMPLE.column("currency"), null_encoding="encode").indices
    hashes = keys.to_numpy().astype(np.uint64) * (key is not None)

    def put(sample: Sample, number: int) -> Sample:
        sample = sample.plus(SAMPLE.slice(number, 1), hashes[number : number + 1], np.ones(1, np.int64))
        if not sample.due:
            return sample
        rule.check_idempotent(sample.rows)
        return sample.was_tested()

    def put_all() -> None:
        functools.reduce(put, range(SAMPLE.num_rows), sample)

    with pytest.raises(InvalidRequest, match="is not idempotent"):
        put_all()


def test_the_refusal_shows_five_rows_of_each_side_at_most() -> None:
    with pytest.raises(InvalidRequest) as refused:
        sql("select currency, time, amount + 1 as amount from input").check_idempotent(SAMPLE)
    first, second = refused.value.message.split("only in ")[1:]
    assert first.count("'currency'") == second.count("'currency'") == 5


def test_a_sum_of_floating_point_numbers_is_refused() -> None:
    schema = pa.schema([("currency", pa.string()), ("amount", pa.float64())])
    rows = pa.RecordBatch.from_pylist([{"currency": "EUR", "amount": 1.1**n} for n in range(50)], schema)
    rule = sql("select currency, sum(amount) as amount from input group by currency", schema=schema)
    with pytest.raises(InvalidRequest, match="is not idempotent"):
        rule.check_idempotent(rows)


def test_a_query_over_all_keys_is_refused_for_a_changelog_with_a_key() -> None:
    rule = sql("select * from input order by time desc, currency, amount limit 5")
    with pytest.raises(InvalidRequest, match="does not treat each key by itself"):
        rule.check_idempotent(SAMPLE)


def test_a_query_that_moves_rows_to_another_key_is_refused() -> None:
    rule = sql("select 'XAU' as currency, time, amount from input")
    with pytest.raises(InvalidRequest, match=r"keys that are not in its input: \{'currency': 'XAU'\}"):
        rule.check_idempotent(SAMPLE)


def test_a_row_that_python_does_not_have_is_named_by_arrows_text() -> None:
    schema = pa.schema([("currency", pa.string()), ("day", pa.date32())])
    late = pa.array([5_000_000], pa.int32()).view(pa.date32())
    rows = pa.RecordBatch.from_arrays([pa.array(["EUR"]), late], schema=schema)
    query = sql("select error(currency) as currency, day from input", schema=schema)
    with pytest.raises(InvalidRequest, match=r"It fails on the row .*EUR.*15659-07-15"):
        query.check_rows(rows, np.ones(1, np.int64), 10.0)
