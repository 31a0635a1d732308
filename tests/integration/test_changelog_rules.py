"""Each keep rule with the case that it is for, over the wire."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tests.support import changelogs
from tests.support.changelogs import numbers, read, snapshot
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
Row = tuple[Any, ...]

NOON = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)
TIME = pa.timestamp("us", "UTC")


def table(schema: pa.Schema, rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([list(column) for column in columns], schema=schema)


def settled(client: flight.FlightClient, dataset: str, rows: int) -> None:
    """Wait until compaction has left so many rows."""
    eventually(lambda: numbers(client, dataset)["rows"], rows)


def test_bids_go_when_their_auction_closes_and_the_winner_stays(empty_server: ServerProcess) -> None:
    """As in NEXMark. A leading bid is retracted while its auction is open, so the runner-up leads and wins."""
    schema = pa.schema(
        [("auction", pa.int64()), ("kind", pa.string()), ("bidder", pa.string()), ("cents", pa.int64())]
    )
    keep = {
        "rule": "until_closed",
        "key": ["auction"],
        "closed_by": {"kind": "closed"},
        "keep": {"rule": "latest", "order_by": ["cents"]},
    }
    bids: list[Row] = [(auction, "bid", f"p{n}", 100 * n) for auction in (1, 2) for n in range(50)]
    open_bids = [bid for bid in bids if bid[0] == 2]
    closing: Row = (1, "closed", None, None)
    with flight.connect(empty_server.location) as client:
        changelogs.create(client, "auctions", schema, keep=keep, delay_seconds=0)
        changelogs.put(client, "auctions", table(schema, bids))
        assert snapshot(client, "auctions") == sorted(bids, key=repr)
        leading = table(schema, [(1, "bid", "p49", 4900)]).append_column("_diff", [[-1]])
        changelogs.put(client, "auctions", leading)
        assert (1, "bid", "p49", 4900) not in snapshot(client, "auctions")
        changelogs.put(client, "auctions", table(schema, [closing]))
        winner: Row = (1, "bid", "p48", 4800)
        kept = snapshot(client, "auctions")
        assert [row for row in kept if row[:2] == (1, "bid")] == [winner]
        assert [row for row in kept if row[0] == 2] == sorted(open_bids, key=repr)
        settled(client, "auctions", len(kept) + 1)  # and the closing row, which is not shown
        changelogs.put(client, "auctions", table(schema, [(1, "bid", "late", 10)]))
        assert snapshot(client, "auctions") == kept


def test_sends_and_receives_cancel_in_either_order_and_emit_their_latency_once(
    flight_server_process: Start, tmp_path: Path
) -> None:
    """Also over a kill of the server between the two halves."""
    schema = pa.schema([("message", pa.int64()), ("kind", pa.string()), ("at", TIME)])
    keep = {
        "rule": "pair",
        "key": ["message"],
        "kind": "kind",
        "values": ["send", "recv"],
        "order_by": ["at"],
        "emit": "latencies",
    }
    random_ = random.Random(5)
    sent = [(n, "send", NOON + dt.timedelta(milliseconds=n)) for n in range(500)]
    taken = [(n, "recv", at + dt.timedelta(microseconds=random_.randrange(9_000))) for n, _, at in sent]
    lost = (1000, "send", NOON)
    wanted = Counter((n, at, then, then - at) for (n, _, at), (_, _, then) in zip(sent, taken, strict=True))
    events: list[Row] = [*sent, *taken, lost]
    random_.shuffle(events)
    halves = [events[: len(events) // 2], events[len(events) // 2 :]]

    def write(client: flight.FlightClient, half: list[Row]) -> None:
        for start in range(0, len(half), 50):
            changelogs.put(client, "messages", table(schema, half[start : start + 50]))

    directory = tmp_path / "data"
    server = flight_server_process(data_dir=directory)
    with flight.connect(server.location) as client:
        changelogs.create(client, "messages", schema, keep=keep, delay_seconds=0)
        write(client, halves[0])
    assert server.kill() == -9
    server = flight_server_process(data_dir=directory)
    with flight.connect(server.location) as client:
        write(client, halves[1])
        eventually(lambda: len(snapshot(client, "latencies")), len(wanted))
        found = client.do_get(flight.Ticket(b"latencies")).read_all()
        assert found.column_names == ["message", "send", "recv", "latency"]
        assert found.schema.field("latency").type == pa.duration("us")
        assert Counter(changelogs.rows(found)) == wanted
        assert snapshot(client, "messages") == [lost]
        settled(client, "messages", 1)
    assert server.terminate() == 0
    server = flight_server_process(data_dir=directory)
    with flight.connect(server.location) as client:
        changelogs.put(client, "messages", table(schema, [(1000, "recv", NOON + dt.timedelta(seconds=1))]))
        eventually(lambda: len(snapshot(client, "latencies")), len(wanted) + 1)
        changes = read(client, "latencies", after=numbers(client, "latencies")["since"])
        assert all(diff == 1 for *_, diff in changes.rows), "a latency was taken back"
        assert snapshot(client, "messages") == []
