"""Compaction changes nothing that is shown: every rule against a model that keeps everything."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flight_server.kinds.changelog.rules import make_rule
from flight_server.protocol import KeepRule
from tests.support.examples import examples
from tests.support.keep_model import SCHEMA, Row, collection, groups_of, kept

TOP = {"order_by": ["time"]}
CLOSED = {"rule": "until_closed", "key": "key", "closed_by": {"kind": "closed"}}
PAIR = KeepRule.parse({"rule": "pair", "key": "key", "kind": "kind", "values": ["open", "closed"], **TOP})
SPECS = [
    KeepRule.parse(each)
    for each in [
        {"rule": "latest", "key": "key", **TOP},
        {"rule": "latest", "key": ["key", "kind"], "order_by": ["-time", "value"]},
        {"rule": "top_k", "key": "key", "order_by": "-value", "k": 2},
        {"rule": "top_k", "key": "key", "k": 3, **TOP},
        CLOSED | {"keep": {"rule": "latest", **TOP}},
        CLOSED | {"closed_by": {"kind": "closed", "value": 1}, "keep": {"rule": "top_k", "k": 2, **TOP}},
    ]
]
by_name = pytest.mark.parametrize(
    "spec", SPECS, ids=lambda spec: f"{spec.rule}-{spec.k}-{len(spec.closed_by)}"
)

rows = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from(["open", "closed", None]),
    st.sampled_from([0, 1]),
)
# A key with one row of each kind.
partners = st.builds(
    lambda key, kind: (key, {"open": 1, "closed": 3}.get(kind), kind, 0),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["open", "closed", None]),
)
LOW, HIGH = ("a", 1, "open", 0), ("a", 2, "open", 0)
ENDED, AGAIN = ("a", 1, "closed", 1), ("a", 2, "closed", 1)
small, assertions = st.integers(-2, 3), st.integers(1, 2)


def histories(of: st.SearchStrategy[Row]) -> st.SearchStrategy[Any]:
    """The sums up to `since`; versions up to `upper`; assertions after it."""
    return st.tuples(
        st.dictionaries(of, small, max_size=8),
        st.lists(st.dictionaries(of, small, max_size=3), max_size=3),
        st.lists(st.dictionaries(of, assertions, max_size=3), max_size=2),
    )


def plus(counts: dict[Row, int], diffs: dict[Row, int]) -> dict[Row, int]:
    return {row: counts.get(row, 0) + diffs.get(row, 0) for row in {**counts, **diffs}}


def retractions(versions: list[dict[Row, int]]) -> Counter[Row]:
    return Counter(
        {row: sum(min(each.get(row, 0), 0) for each in versions) for version in versions for row in version}
    )


def needed(spec: KeepRule, counts: dict[Row, int], later: Counter[Row]) -> dict[Row, int]:
    groups = groups_of(spec, counts)
    of_rows = np.array([later[row] for row in collection_of_all(groups.rows)], np.int64)
    return dict(collection(make_rule(spec, SCHEMA).needed(groups, of_rows)))


def collection_of_all(batch: Any) -> list[Row]:
    return [tuple(row.values()) for row in batch.to_pylist()]


@by_name
@settings(max_examples=examples(0.5))
@given(counts=st.dictionaries(rows, small, max_size=12))
def test_a_rule_shows_what_the_model_shows(spec: KeepRule, counts: dict[Row, int]) -> None:
    shown = make_rule(spec, SCHEMA).kept(groups_of(spec, counts))
    assert (shown.counts >= 0).all()
    assert collection(shown) == kept(spec, counts)


@given(counts=st.dictionaries(rows, small, max_size=12))
def test_pairs_cancel_as_in_the_model(counts: dict[Row, int]) -> None:
    assert collection(make_rule(PAIR, SCHEMA).kept(groups_of(PAIR, counts))) == kept(PAIR, counts)


def check(spec: KeepRule, history: Any) -> None:
    counts, versions, further = history
    later = retractions(versions)
    left = needed(spec, counts, later)
    assert needed(spec, left, later) == left
    whole = counts
    for version in [{}, *versions, *further]:
        whole, left = plus(whole, version), plus(left, version)
        assert kept(spec, left) == kept(spec, whole)


@by_name
@settings(max_examples=examples(0.5))
@example(history=({LOW: 1, HIGH: 1, ENDED: 1}, [{ENDED: -1}], []))
@example(history=({LOW: 2, HIGH: 1, ENDED: 1}, [{HIGH: -1}], []))
@example(history=({LOW: 1, HIGH: 1}, [{LOW: -1}], [{LOW: 1}, {HIGH: -1}]))
@example(history=({HIGH: 1, ENDED: 1, AGAIN: 1}, [{AGAIN: -1}], [{LOW: 1}]))
@given(history=histories(rows))
def test_compaction_changes_no_later_version(spec: KeepRule, history: Any) -> None:
    check(spec, history)


@example(history=({("a", 1, "open", 0): 1, ("a", 3, "closed", 0): 1}, [{("a", 3, "closed", 0): -1}], []))
@given(history=histories(partners))
def test_compaction_of_pairs_changes_no_later_version(history: Any) -> None:
    check(PAIR, history)


@example(history=({LOW: 1, HIGH: 1, ENDED: 1}, [{LOW: -1}], []))
@given(history=histories(rows))
def test_compaction_of_several_rows_of_one_kind_keeps_their_number(history: Any) -> None:
    counts, versions, further = history
    left = needed(PAIR, counts, retractions(versions))
    whole = counts
    for version in [{}, *versions, *further]:
        whole, left = plus(whole, version), plus(left, version)
        assert of_kinds(left) == of_kinds(whole)


def test_of_settled_pairs_as_many_are_needed_as_late_rows_come() -> None:
    counts = {("a", time, kind, 0): 1 for time in range(1, 50) for kind in ("open", "closed")}
    late = Counter({("a", 1, "open", 0): -1, ("a", 1, "closed", 0): -1})
    assert len(needed(PAIR, counts, late)) <= 6


def of_kinds(counts: dict[Row, int]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for (key, _, kind, _), count in kept(PAIR, counts).items():
        found[key, kind] += count
    return found


@pytest.mark.parametrize(
    ("spec", "counts", "left"),
    [
        (SPECS[3], {("a", n, None, 0): 1 for n in range(10)}, {("a", n, None, 0): 1 for n in (7, 8, 9)}),
        (SPECS[4], {LOW: 1, HIGH: 2, ENDED: 3, AGAIN: 1}, {HIGH: 2, AGAIN: 1}),
        (SPECS[0], {LOW: -1, HIGH: 1, AGAIN: -1}, {LOW: -1, HIGH: 1, AGAIN: -1}),
    ],
)
def test_compaction_removes_what_no_later_version_shows(
    spec: KeepRule, counts: dict[Row, int], left: dict[Row, int]
) -> None:
    assert needed(spec, counts, Counter()) == left


@pytest.mark.parametrize("spec", [*SPECS, PAIR, None])
def test_nothing_is_kept_of_nothing(spec: KeepRule | None) -> None:
    rule, groups = make_rule(spec, SCHEMA), groups_of(SPECS[0], {})
    assert rule.kept(groups).rows.num_rows == len(rule.needed(groups, np.zeros(0, np.int64)).counts) == 0


def test_without_a_rule_every_row_is_shown_and_the_retractions_that_came_first_are_needed() -> None:
    groups = groups_of(SPECS[0], {("a", 1, None, 0): 2, ("a", 2, None, 0): -1})
    rule = make_rule(None, SCHEMA)
    assert rule.kept(groups).counts.tolist() == [2, 0]
    assert rule.needed(groups, np.zeros(2, np.int64)).counts.tolist() == [2, -1]
