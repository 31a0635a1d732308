"""Changelogs at the limits of disk and memory, on real servers: what still works there, and what brings them back."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.changelogs import create, numbers, put, read, rows, signed, ticket
from tests.support.durable import action
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64()), ("text", pa.binary())])
LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
ROW_BYTES = 4 << 10
PAIRS = {"rule": "pair", "key": ["key"], "kind": "time", "values": [-1, -2]}
KEYS = 100
MIB = 1 << 20


def resident(server: ServerProcess) -> int:
    """What the server's memory takes, without pages of mapped files, in bytes."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


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


@pytest.mark.long
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
        # Refused while a merge that finds nothing to leave out has taken the room, until it gives it back.
        eventually(lambda: refused(client, "kept", signed(first, *[-1] * KEYS)), False)
        assert all(row[1] for row in read(client, "kept").rows)
        assert numbers(client, "kept")["state"] == "open"


def test_stalled_readers_of_a_snapshot_stop_no_put_into_any_changelog(tmp_path: Path) -> None:
    with (
        ServerProcess.start(data_dir=tmp_path, memory_limit="32MiB", budget_deadline_seconds=10) as server,
        flight.connect(server.location) as client,
        ExitStack() as stack,
    ):
        create(client, "read", SCHEMA, delay_seconds=0.0)
        create(client, "other", SCHEMA, keep=LATEST, delay_seconds=0.0)
        for number in range(60):  # the last ones are in memory, of which changelogs have 2 MiB
            put(client, "read", batch(number))
        for _ in range(5):
            stalled = stack.enter_context(flight.connect(server.location))
            reader = stalled.do_get(ticket("read"))
            stack.callback(reader.cancel)
            reader.read_chunk()
        for number in range(20):
            put(client, "other", batch(number))
            put(client, "read", batch(number))
        assert numbers(client, "read")["followers"] == 5


@pytest.mark.long
def test_a_key_far_larger_than_memory_is_merged_and_read_within_the_limit(tmp_path: Path) -> None:
    rows, puts = 1000, 40
    with (
        ServerProcess.start(data_dir=tmp_path, memory_limit="32MiB") as server,
        flight.connect(server.location) as client,
    ):
        limit = 32 * MIB + 150 * MIB  # as deploy/README.md says
        create(client, "d", SCHEMA, keep=LATEST, delay_seconds=3600.0)
        create(client, "all", SCHEMA, keep=PAIRS, delay_seconds=3600.0)
        for number in range(puts):
            times = range(number * rows, (number + 1) * rows)
            texts = [os.urandom(2000) for _ in times]
            data = pa.table([[7] * rows, list(times), texts], schema=SCHEMA)
            put(client, "d", data)
            put(client, "all", data)
            assert resident(server) < limit
        assert [row[1] for row in read(client, "d").rows] == [puts * rows - 1]
        reader, found = client.do_get(ticket("all")), 0
        for chunk in reader:
            found += chunk.data.num_rows
            assert resident(server) < limit
        assert found == puts * rows


def test_a_killed_server_starts_again_when_its_logs_have_more_rows_than_memory_had(tmp_path: Path) -> None:
    start = partial(ServerProcess.start, data_dir=tmp_path, memory_limit="16MiB")
    puts, last = 70, batch(70, keys=10)
    with start() as server, flight.connect(server.location) as client:
        for name in ("d", "e"):
            create(client, name, SCHEMA, keep=LATEST, delay_seconds=0.0)
            for time in range(puts):  # each replaces the rows of the one before
                put(client, name, batch(time, keys=10))
            put(client, name, last)
        server.kill()
    with start() as server, flight.connect(server.location) as client:
        for name in ("d", "e"):
            assert sorted(read(client, name).rows) == sorted(rows(last))
        put(client, "d", batch(puts + 1, keys=10))
