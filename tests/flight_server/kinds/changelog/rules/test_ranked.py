"""``latest`` and ``top_k`` on rates and sensors."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from flight_server.kinds.changelog.rules import Groups, make_rule
from flight_server.protocol import KeepRule
from tests.support.keep_model import collection, groups_of

RATES = pa.schema([("currency", pa.string()), ("time", pa.timestamp("ms", "UTC")), ("rate", pa.float64())])
LATEST = KeepRule.parse({"rule": "latest", "key": "currency", "order_by": "time"})


def at(minute: int) -> datetime:
    return datetime(2026, 3, 2, 9, minute, tzinfo=UTC)


def test_the_three_most_recent_measurements_of_each_sensor_are_shown_with_nested_columns() -> None:
    schema = pa.schema(
        [("sensor", pa.int32()), ("at", pa.int64()), ("axes", pa.list_(pa.struct([("x", pa.float32())])))]
    )
    spec = KeepRule.parse({"rule": "top_k", "key": "sensor", "order_by": ["at"], "k": 3})
    rows = pa.RecordBatch.from_pylist(
        [{"sensor": 1 + n // 5, "at": n, "axes": [{"x": float(n)}]} for n in range(7)], schema
    )
    shown = make_rule(spec, schema).kept(Groups(rows, np.array([0, 5]), np.array([1, 1, 1, 2, 0, 1, 1])))
    assert shown.counts.tolist() == [0, 0, 1, 2, 0, 1, 1]


def test_a_row_takes_as_many_places_as_it_is_there() -> None:
    spec = KeepRule.parse({"rule": "top_k", "key": "currency", "order_by": "-time", "k": 4})
    rates = {("EUR", at(1), 1.0): 3, ("EUR", at(2), 1.0): 5, ("EUR", at(3), 1.0): 1}
    rule, groups = make_rule(spec, RATES), groups_of(spec, rates, RATES)
    expected = Counter({("EUR", at(1), 1.0): 3, ("EUR", at(2), 1.0): 1})
    assert collection(rule.kept(groups)) == expected
    left = collection(rule.needed(groups, np.zeros(3, np.int64)))
    assert left == {("EUR", at(1), 1.0): 3, ("EUR", at(2), 1.0): 5}, (
        "each copy finds its retraction, however late"
    )


def test_counts_near_the_largest_number_do_not_overflow() -> None:
    rows = groups_of(LATEST, {("EUR", at(n), 1.0): 1 for n in range(4)}, RATES)
    groups = Groups(rows.rows, rows.starts, np.full(4, 2**62))
    assert make_rule(LATEST, RATES).kept(groups).counts.tolist() == [0, 0, 0, 1]
    assert make_rule(LATEST, RATES).needed(groups, np.zeros(4, np.int64)).counts.tolist() == [0, 0, 0, 2**62]


def test_a_retraction_that_came_first_is_needed_until_its_row_comes() -> None:
    rates = {("EUR", at(1), 1.0): -1, ("EUR", at(2), 1.0): 1, ("EUR", at(3), 1.0): -1}
    rule, groups = make_rule(LATEST, RATES), groups_of(LATEST, rates, RATES)
    assert rule.kept(groups).counts.tolist() == [0, 1, 0]
    assert rule.needed(groups, np.zeros(3, np.int64)).counts.tolist() == [-1, 1, -1]
    assert rule.needed(groups, np.array([0, -1, 0])).counts.tolist() == [-1, 1, -1]
