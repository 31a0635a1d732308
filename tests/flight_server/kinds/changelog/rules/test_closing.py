"""``until_closed`` on auctions as in NEXMark: bids, the highest of which wins when the auction closes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from flight_server.kinds.changelog.rules import make_rule
from flight_server.protocol import KeepRule
from tests.support.keep_model import Row, collection, groups_of, rows_of

AUCTIONS = pa.schema(
    [("auction", pa.int64()), ("kind", pa.string()), ("price", pa.decimal128(10, 2)), ("bidder", pa.string())]
)
SPEC = KeepRule.parse(
    {
        "rule": "until_closed",
        "key": "auction",
        "closed_by": {"kind": "closed"},
        "keep": {"rule": "latest", "order_by": "price"},
    }
)
RULE = make_rule(SPEC, AUCTIONS)
LOW, HIGH, HIGHER = ((7, "bid", price, name) for price, name in ((10, "Ada"), (20, "Bob"), (30, "Cem")))
CLOSED: Row = (7, "closed", None, None)


def shown(counts: dict[Row, int]) -> dict[Row, int]:
    return collection(RULE.kept(groups_of(SPEC, counts, AUCTIONS)))


def left(counts: dict[Row, int], later: dict[Row, int] | None = None) -> dict[Row, int]:
    groups = groups_of(SPEC, counts, AUCTIONS)
    retractions = [(later or {}).get(row, 0) for row in rows_of(groups.rows)]
    return collection(RULE.needed(groups, np.array(retractions, np.int64)))


def test_an_open_auction_shows_and_needs_all_its_bids() -> None:
    bids = {LOW: 1, HIGH: 1}
    assert shown(bids) == left(bids) == bids


def test_the_runner_up_wins_if_the_leading_bid_is_retracted_while_the_auction_is_open() -> None:
    after_retraction = {LOW: 1, HIGH: 1 - 1}
    assert shown(after_retraction | {CLOSED: 1}) == {LOW: 1}


def test_a_closed_auction_shows_the_winner_and_needs_it_and_one_closing_row() -> None:
    another = (7, "closed", None, "again")
    assert shown({LOW: 1, HIGH: 2, CLOSED: 3, another: 1}) == {HIGH: 1}
    assert len(left({LOW: 1, HIGH: 2, CLOSED: 3})) == len(left({LOW: 1, HIGH: 1, CLOSED: 1, another: 1})) == 2
    assert left({LOW: 1, HIGH: 2, CLOSED: 3}) == {HIGH: 2, CLOSED: 3}


def test_one_closing_row_is_needed_whatever_the_number_of_winners() -> None:
    spec = KeepRule.parse(SPEC.to_json() | {"keep": {"rule": "top_k", "order_by": "price", "k": 2}})
    bids: dict[Row, int] = {LOW: 1, HIGH: 1, HIGHER: 1, CLOSED: 3}
    groups = groups_of(spec, bids, AUCTIONS)
    rule = make_rule(spec, AUCTIONS)
    assert collection(rule.kept(groups)) == {HIGH: 1, HIGHER: 1}
    assert collection(rule.needed(groups, np.zeros(4, np.int64))) == {HIGH: 1, HIGHER: 1, CLOSED: 3}


def test_a_late_bid_competes_with_the_winner_that_compaction_left() -> None:
    compacted = left({LOW: 1, HIGH: 1, CLOSED: 1})
    assert shown(compacted | {HIGHER: 1}) == {HIGHER: 1}
    assert shown(compacted | {LOW: 1}) == {HIGH: 1}


def test_all_bids_are_needed_if_the_closing_row_is_retracted_later() -> None:
    bids = {LOW: 1, HIGH: 1, CLOSED: 1}
    assert left(bids, {CLOSED: -1}) == bids
    assert left(bids | {CLOSED: 2}, {CLOSED: -1}) == {HIGH: 1, CLOSED: 2}


def test_the_bid_that_the_winner_beat_is_needed_if_the_winner_is_retracted_later() -> None:
    assert left({LOW: 2, HIGH: 1, CLOSED: 1}, {HIGH: -1}) == {LOW: 2, HIGH: 1, CLOSED: 1}


def test_a_closing_row_whose_retraction_came_first_closes_nothing() -> None:
    counts = {LOW: 1, HIGH: 1, CLOSED: -1}
    assert shown(counts) == {LOW: 1, HIGH: 1}
    assert left(counts) == counts


@pytest.mark.parametrize("value", [None, "open"])
def test_a_row_closes_only_with_all_the_values(value: str | None) -> None:
    spec = KeepRule.parse(SPEC.to_json() | {"closed_by": {"kind": "closed", "bidder": "house"}})
    rows: dict[Row, int] = {LOW: 1, (7, "closed", None, value): 1}
    assert collection(make_rule(spec, AUCTIONS).kept(groups_of(spec, rows, AUCTIONS))) == rows
