"""``pair`` on messages that are sent and received."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flight_server.kinds.changelog.rules import make_rule
from flight_server.protocol import InvalidRequest, KeepRule
from tests.support.keep_model import SCHEMA, Row, collection, groups_of, rows_of

MESSAGES = pa.schema(
    [
        ("message", pa.string()),
        ("kind", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("hops", pa.list_(pa.string())),
    ]
)
DECLARED: dict[str, Any] = {
    "rule": "pair",
    "key": "message",
    "kind": "kind",
    "values": ["send", "recv"],
    "order_by": "at",
    "emit": "latencies",
}
SPEC = KeepRule.parse(DECLARED)
START = datetime(2026, 3, 2, tzinfo=UTC)


def at(milliseconds: int) -> datetime:
    return START + timedelta(milliseconds=milliseconds)


@example({("a", 1, "send", 0): 2, ("a", 2, "send", 0): 3, ("a", 5, "recv", 0): 1, ("a", 6, "recv", 0): 3})
@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from([None, 1, 2]),
            st.sampled_from(["send", "recv", None]),
            st.integers(0, 1),
        ),
        st.integers(-2, 3),
    )
)
def test_there_is_one_emitted_row_for_each_pair(counts: dict[Row, int]) -> None:
    spec = KeepRule.parse({**DECLARED, "key": "key", "order_by": "time"})
    groups = groups_of(spec, counts)
    expected: Counter[Row] = Counter()
    for key in "abc":
        ends = [
            [
                row[1]
                for row in rows_of(groups.rows)
                for _ in range(counts[row])
                if (row[0], row[2]) == (key, kind)
            ]
            for kind in ("send", "recv")
        ]
        for sent, received in zip(*ends, strict=False):
            latency = None if sent is None or received is None else received - sent
            expected[key, sent, received, latency] += 1
    assert collection(make_rule(spec, SCHEMA).paired(groups)) == expected


def test_the_emitted_rows_have_the_key_both_times_and_the_latency() -> None:
    assert make_rule(SPEC, MESSAGES).emitted_schema == pa.schema(
        [
            ("message", pa.string()),
            ("send", pa.timestamp("us", "UTC")),
            ("recv", pa.timestamp("us", "UTC")),
            ("latency", pa.duration("us")),
        ]
    )


def test_without_an_order_the_emitted_rows_have_the_key_alone() -> None:
    spec = KeepRule.parse({name: value for name, value in DECLARED.items() if name != "order_by"})
    rule = make_rule(spec, MESSAGES)
    assert rule.emitted_schema == pa.schema([("message", pa.string())])
    rows: dict[Row, int] = {
        ("a", "send", at(0), None): 2,
        ("a", "recv", at(0), None): 3,
        ("b", "recv", at(0), None): 1,
    }
    assert collection(rule.paired(groups_of(spec, rows, MESSAGES))) == {("a",): 2}


def test_a_pair_without_a_dataset_for_its_rows_emits_none() -> None:
    spec = KeepRule.parse({name: value for name, value in DECLARED.items() if name != "emit"})
    assert make_rule(spec, MESSAGES).emitted_schema is None


@pytest.mark.parametrize(
    ("kind", "sent", "received", "latency", "difference"),
    [
        (pa.uint8(), 250, 2, pa.int64(), -248),
        (pa.uint64(), 2**64 - 1, 2**64 - 3, pa.int64(), -2),
        (pa.int8(), -128, 127, pa.int64(), 255),
        (pa.float32(), 1.5, 1.0, pa.float32(), -0.5),
        (pa.decimal128(10, 2), Decimal(2), Decimal(1), pa.decimal128(11, 2), Decimal(-1)),
        (pa.date32(), date(2026, 3, 2), date(2026, 3, 1), pa.duration("s"), timedelta(days=-1)),
        (pa.time64("us"), time(9, 1), time(9, 0), pa.duration("us"), timedelta(minutes=-1)),
        (pa.duration("ms"), timedelta(1), timedelta(3), pa.duration("ms"), timedelta(2)),
        (pa.int64(), None, 5, pa.int64(), None),
    ],
    ids=str,
)
def test_a_latency_has_the_type_of_differences_and_may_be_below_zero(
    kind: pa.DataType, sent: Any, received: Any, latency: pa.DataType, difference: Any
) -> None:
    schema = pa.schema([("message", pa.string()), ("kind", pa.string()), ("at", kind)])
    rule = make_rule(SPEC, schema)
    paired = rule.paired(groups_of(SPEC, {("a", "recv", received): 1, ("a", "send", sent): 1}, schema))
    assert rule.emitted_schema is not None
    assert paired.rows.schema == rule.emitted_schema
    assert paired.rows.schema.field("latency").type == latency
    assert collection(paired) == {("a", sent, received, difference): 1}


@pytest.mark.parametrize(
    "change",
    [
        {"key": ["message", "send"]},
        {"key": ["message", "latency"]},
        {"values": ["latency", "recv"]},
        {"values": ["send", "_diff"]},
        {"key": ["message", "kind"]},
        {"order_by": "text"},
        {"values": ["send", 2]},
    ],
    ids=str,
)
def test_pairs_that_cannot_be_told_apart_or_described_are_refused(change: dict[str, Any]) -> None:
    schema = MESSAGES
    for name in ("send", "latency", "text"):
        schema = schema.append(pa.field(name, pa.string()))
    with pytest.raises(InvalidRequest, match="keep: "):
        make_rule(KeepRule.parse(DECLARED | change), schema)
