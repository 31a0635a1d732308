"""A rule of one's own: a changelog without a rule, and a query that puts back, as retractions, what is not needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyarrow import flight

from tests.support import changelogs
from tests.support.changelogs import numbers, signed, snapshot
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("auction", pa.int64()), ("price", pa.int64())])
BIDS = 8
ROUNDS = 4


def bids(auction: int, count: int = BIDS) -> pa.Table:
    """Of which the last one wins."""
    return pa.table([[auction] * count, list(range(count))], schema=SCHEMA)


def test_retractions_of_a_query_count_once_over_kills_and_their_rows_vanish(
    flight_server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    """The server is killed after each retraction, once the row is compacted or before, and the query, which has not
    noted the answer, puts it again.
    """
    versions: list[int] = []
    for number in range(ROUNDS):
        server = flight_server_process(data_dir=tmp_path / "data")
        with flight.connect(server.location) as client:
            if number == 0:
                changelogs.create(client, "bids", SCHEMA, delay_seconds=0.0)
            else:
                assert _take_back(client, number - 1) == versions[-1], "it was there before"
            changelogs.put(client, "bids", bids(number), transaction={"id": "bids", "version": number})
            versions.append(_take_back(client, number))
            if number % 2:
                eventually(lambda: numbers(client, "bids")["rows"], len(versions))
        assert server.kill() == -9
    server = flight_server_process(data_dir=tmp_path / "data")
    with flight.connect(server.location) as client:
        assert snapshot(client, "bids") == [(number, BIDS - 1) for number in range(ROUNDS)]
        eventually(lambda: numbers(client, "bids")["rows"], ROUNDS)
        said = numbers(client, "bids")
        assert (said["waiting_retractions"], said["garbage_rows"], said["upper"]) == (0, 0, 2 * ROUNDS)


def _take_back(client: flight.FlightClient, auction: int) -> int:
    losers = signed(bids(auction, BIDS - 1), *[-1] * (BIDS - 1))
    after = {} if auction == 0 else {"after": auction - 1}
    answer = changelogs.put(client, "bids", losers, transaction={"id": "query", "version": auction, **after})
    return int(answer["version"])
