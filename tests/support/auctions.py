"""Auctions as NEXMark has them, by rounds, and a model in plain Python of the rows that are still needed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_client import Changelog

SCHEMA = pa.schema(
    [
        ("auction", pa.int64()),
        ("kind", pa.string()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("time", pa.int64()),
    ]
)
Row = tuple[Any, ...]
OPENED = 10
FIRST = 3
BIDDERS = 50
PRICES = 40


def run_page(code: str, location: str, checkpoint: Path) -> dict[str, Any]:
    """What the page's block ``feedback`` defines when it has run: ``start`` starts its query over the changelog
    ``auctions``, which then has two auctions of numbers below ``FIRST``.
    """
    defined: dict[str, Any] = {}
    code = code.replace("grpc://127.0.0.1:8815", location)
    exec(code.replace('"settled"', repr(str(checkpoint))), defined)
    return defined


def shown(changelog: Changelog) -> Counter[Row]:
    """The rows of the newest snapshot."""
    return Counter(tuple(row.values()) for row in changelog.snapshot().table.to_pylist())


class Auctions:
    """Each round opens ``OPENED`` auctions and closes those of the round before last; it lasts two thirds of the delay.

    Bids come for open auctions, and for those that were closed in the round before. In each auction with bids one is
    retracted while it is open, and one within the delay after its end: the winner, of every other auction.
    """

    def __init__(self, chance: random.Random, *, delay: int, bids_of_auction: int = 10) -> None:
        self._chance = chance
        self._delay = delay
        self._next = FIRST
        self._bids_of_auction = bids_of_auction
        self._time = 1000
        self._open: list[list[int]] = []
        self._closed_at: dict[int, int] = {}
        self._bids: dict[int, Counter[Row]] = {}
        self.bids = 0

    def round(self) -> pa.Table:
        """The changes of the next one."""
        self._time += 2 * self._delay // 3
        late = [auction for auction, at in self._closed_at.items() if self._time - at < self._delay]
        changes = [self._retraction(auction) for auction in late]
        for auction in self._open[-1] if self._open else ():
            changes += [(*self._chance.choice(sorted(self._bids[auction].elements())), -1)]
        self._open.append(list(range(self._next, self._next + OPENED)))
        self._next += OPENED
        for auction in [each for opened in self._open for each in opened] + late:
            changes += [self._bid(auction) for _ in range(self._bids_of_auction)]
        if len(self._open) > 2:
            changes += self._closings(self._open.pop(0))
        return self._table(changes)

    def end(self) -> pa.Table:
        """Close all auctions but those that were opened last, and let the delay pass for all that have a bid."""
        changes: list[Row] = []
        while len(self._open) > 1:
            changes += self._closings(self._open.pop(0))
        self._time += self._delay
        return self._table([*changes, self._bid(self._open[0][0])])

    def needed(self) -> Counter[Row]:
        """The rows that are left once the query has seen all: no more, and no fewer."""
        found = Counter(_closing(auction, at) for auction, at in self._closed_at.items())
        for auction, bids in self._bids.items():
            settled = self._closed_at.get(auction, self._time) <= self._time - self._delay
            found.update([self._winner(auction)] if settled else bids)
        return found

    def _winner(self, auction: int) -> Row:
        return min(self._bids[auction].elements(), key=lambda bid: (-bid[3], bid[4], bid[2]))

    def _retraction(self, auction: int) -> Row:
        bids = self._bids[auction]
        return (*(self._winner(auction) if auction % 2 else self._chance.choice(sorted(bids))), -1)

    def _bid(self, auction: int) -> Row:
        self.bids += 1
        bidder, price = self._chance.randrange(BIDDERS), self._chance.randrange(PRICES)
        return auction, "bid", bidder, price, self._time, 1

    def _closings(self, auctions: list[int]) -> list[Row]:
        self._closed_at |= dict.fromkeys(auctions, self._time)
        return [(*_closing(auction, self._time), 1) for auction in auctions]

    def _table(self, changes: list[Row]) -> pa.Table:
        for *row, diff in changes:
            if row[1] == "bid":
                self._bids.setdefault(row[0], Counter())[tuple(row)] += diff
        schema = SCHEMA.append(pa.field("_diff", pa.int64()))
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in changes], schema)


def _closing(auction: int, time: int) -> Row:
    return auction, "closed", None, None, time
