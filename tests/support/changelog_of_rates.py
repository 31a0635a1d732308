"""A changelog of exchange rates for tests: its declaration, random updates, and what it must show."""

from __future__ import annotations

import base64
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from flight_server.protocol import CreateRequest, KeepRule, Kind
from spark_client import ShuffleClient
from tests.support.polling import eventually
from tests.support.rates import LATEST, RATES

KEEP = json.dumps(LATEST)
Row = tuple[str, int, float]


def declare(client: ShuffleClient, name: str, delay_seconds: float = 3600.0) -> None:
    """Make the changelog. With a long delay nothing of it is compacted."""
    schema = base64.b64encode(RATES.serialize().to_pybytes()).decode()
    keep = KeepRule.parse(LATEST)
    request = CreateRequest(name, Kind.CHANGELOG, schema=schema, keep=keep, delay_seconds=delay_seconds)
    client._open().action("create", request.encode())


def table(rows: Iterable[tuple[Row, int]]) -> pa.Table:
    """Rows and how often each is asserted."""
    listed = list(rows)
    columns = [pa.array([row[place] for row, _ in listed], RATES.types[place]) for place in range(3)]
    diffs = pa.array([diff for _, diff in listed], pa.int64())
    return pa.Table.from_arrays([*columns, diffs], schema=RATES.append(pa.field("_diff", pa.int64())))


def facts(client: ShuffleClient, name: str) -> dict[str, Any]:
    """What ``statistics`` says of the changelog."""
    found: dict[str, Any] = client.statistics(name)["datasets"][name]["changelog"]
    return found


def rows(client: ShuffleClient, name: str) -> list[tuple[Any, ...]]:
    """The snapshot of its newest version."""
    found = client.changelog(name).snapshot().table
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def compacted(client: ShuffleClient, name: str) -> int:
    """Wait until only the newest version can be asked for; that version. For a changelog with a short delay."""
    upper: int = facts(client, name)["upper"]
    eventually(lambda: facts(client, name)["since"], upper)
    return upper


@dataclass
class Model:
    """Everything that was put, and the rule applied to it."""

    seed: int
    currencies: str = "ABCDEF"
    counts: Counter[Row] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._numbers = itertools.count()  # no row comes twice

    def updates(self, rows: int) -> pa.Table:
        """Random assertions, and retractions of rows that are there."""
        updates: list[tuple[Row, int]] = []
        for _ in range(rows):
            there = [row for row, count in self.counts.items() if count > 0]
            if there and self._random.random() < 0.3:
                updates.append((self._random.choice(there), -1))
            else:
                row = (
                    self._random.choice(self.currencies),
                    self._random.randrange(100),
                    float(next(self._numbers)),
                )
                updates.append((row, 1))
            self.counts[updates[-1][0]] += updates[-1][1]
        return table(updates)

    def snapshot(self) -> list[Row]:
        """The newest row of each currency; ties are broken by all columns."""
        best: dict[str, Row] = {}
        for row, count in self.counts.items():
            if count > 0:
                best[row[0]] = max(best.get(row[0], row), row, key=lambda each: (each[1], each[2]))
        return sorted(best.values())
