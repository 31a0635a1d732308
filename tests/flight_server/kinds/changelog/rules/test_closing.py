"""``until_closed`` on auctions as in NEXMark: bids, the highest of which wins when the auction closes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

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
