"""Changelogs at the limits of disk and memory, on real servers: what still works there, and what brings them back."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
from pyarrow import flight

from tests.support.changelogs import create, numbers, put, read, signed
from tests.support.durable import action
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64()), ("text", pa.binary())])
LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
ROW_BYTES = 4 << 10
KEYS = 100
MIB = 1 << 20


def batch(time: int, keys: int = KEYS) -> pa.Table:
    return pa.table(
        [list(range(keys)), [time] * keys, [os.urandom(ROW_BYTES) for _ in range(keys)]], schema=SCHEMA
    )


def refused(client: flight.FlightClient, dataset: str, data: pa.Table) -> bool:
    """Put, and whether the disk limit refused it."""
    try:
        put(client, dataset, data)
    except flight.FlightUnavailableError as error:
        if "disk limit" not in str(error):
            raise
        return True
    return False


def fill(client: flight.FlightClient, dataset: str) -> int:
    """Put until the disk limit refuses; how many puts it took."""
    return next(number for number in range(100) if refused(client, dataset, batch(number + 1)))


def disk(client: flight.FlightClient) -> int:
    return int(action(client, "statistics")["disk"]["used_bytes"])


def test_a_hold_is_released_at_the_disk_limit_and_then_compaction_makes_room_for_writes(
    tmp_path: Path,
) -> None:
    with (
        ServerProcess.start(data_dir=tmp_path, disk_limit="16MiB", memory_limit="16MiB") as server,
        flight.connect(server.location) as client,
    ):
        create(client, "d", SCHEMA, keep=LATEST, delay_seconds=0.0)
        put(client, "d", batch(0))
        action(client, "hold", dataset="d", hold="reader", version=1, lease_seconds=600)
        puts = fill(client, "d")
        full = disk(client)
        assert full <= 16 * MIB
        renewed = action(client, "hold", dataset="d", hold="reader", version=1, lease_seconds=600)
        assert renewed["version"] == 1
        assert len(read(client, "d", as_of=1).rows) == KEYS
        action(client, "hold", dataset="d", hold="reader", release=True)
        eventually(lambda: disk(client) < 4 * MIB, True)
        assert {row[1] for row in read(client, "d").rows} == {puts}
        for number in range(puts + 1, 2 * puts):
            put(client, "d", batch(number))


def test_rows_are_retracted_at_the_disk_limit_and_then_there_is_room(tmp_path: Path) -> None:
    with (
        ServerProcess.start(data_dir=tmp_path, disk_limit="16MiB", memory_limit="16MiB") as server,
        flight.connect(server.location) as client,
    ):
        create(client, "kept", SCHEMA, delay_seconds=0.0)
        first = batch(0)
        put(client, "kept", first)
        fill(client, "kept")
        assert refused(client, "kept", signed(first, *[1] * KEYS))
        # Refused while a merge that finds nothing to leave out has taken the room, until it gives it back.
        eventually(lambda: refused(client, "kept", signed(first, *[-1] * KEYS)), False)
        assert all(row[1] for row in read(client, "kept").rows)
        assert numbers(client, "kept")["state"] == "open"
