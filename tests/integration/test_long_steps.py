"""Small requests for many things: no step of the server's event loop grows with them.

The tests ask; that no step took long is checked after each test, and of all other tests, by ``loop_steps``.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server import config
from flight_server.protocol import CreateRequest
from flight_server.server import Server
from tests.support import bulk, changelogs, raw_put
from tests.support.polling import eventually
from tests.support.raw_flight import (
    RawFlight,
    Refused,
    command,
    commit,
    flight_data,
    ipc_messages,
    path,
    put_messages,
)
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]

SCHEMA = pa.schema([("n", pa.int64())])
ROW = pa.record_batch([pa.array([1], pa.int64())], schema=SCHEMA)
ENCODED_SCHEMA = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
MANY = 100_000


@pytest.fixture
def server(flight_server_process: Start) -> ServerProcess:
    return flight_server_process(memory_limit="1GiB")


def put_rows(server: ServerProcess, frames: int, partitions: int, **command_: object) -> None:
    """Frames of one row each, to each of the partitions by turns; with a commit where there are several."""
    (first, _), (_, message) = put_messages(command(command_), [ROW]), ipc_messages(SCHEMA, [ROW])
    bodies = [
        flight_data(message.header, message.body, metadata=b"%d" % partition)
        for partition in range(partitions)
    ]
    assert server.http is not None
    with raw_put.RawPut(server.http + "/v1/put") as put:
        put.send(first)
        for start in range(0, frames, 500):
            put.send(*(bodies[number % partitions] for number in range(start, min(frames, start + 500))))
        if "producer" in command_:
            put.send(commit(frames, frames))
        put.finish()


@pytest.mark.long
def test_a_changelog_of_many_columns_is_created_and_takes_puts_and_deletes(raw: RawFlight) -> None:
    wide = pa.schema([(f"column {number}", pa.int8()) for number in range(8000)])
    row = pa.record_batch([pa.array([1], pa.int8())] * len(wide), schema=wide)
    keys = row.select(wide.names[:4000])
    keep = {"rule": "latest", "key": keys.schema.names, "order_by": wide.names[-1:]}
    raw.action("create", changelogs.declaration("wide", wide, keep=keep))
    raw.put(put_messages(path("wide"), [row]))
    raw.put(put_messages(command({"dataset": "wide", "delete": True}), [keys]))
    with pytest.raises(Refused, match="occurs twice"):
        raw.action("create", changelogs.declaration("twice", pa.schema([*wide, wide.field(0)])))


@pytest.mark.long
def test_a_plan_of_the_smallest_pieces_is_one_of_frames(raw: RawFlight) -> None:
    large = pa.record_batch([pa.array(range(1 << 17), pa.int64())], schema=SCHEMA)
    raw.put(put_messages(path("d"), [large] * 64))
    assert len(raw.action("plan", {"dataset": "d", "target_bytes": 1})["pieces"]) == 64
    with pytest.raises(Refused, match="each once"):
        raw.action("plan", {"dataset": "d", "target_bytes": 1, "partitions": [0] * 100_000})


@pytest.mark.long
def test_a_hundred_thousand_partitions_without_rows_are_read_listed_planned_and_dropped(
    server: ServerProcess, raw: RawFlight
) -> None:
    raw.action("create", {"dataset": "d", "kind": "shuffle", "partitions": MANY, "schema": ENCODED_SCHEMA})
    raw.action("seal", {"dataset": "d", "attempts": {}})
    answer = bulk.get(f"{server.http}/v1/datasets/d")
    assert answer.trailers == {"x-flight-shuffle-rows": "0", "x-flight-shuffle-frames": "0"}
    for rpc, request in (("GetFlightInfo", path("d")), ("PollFlightInfo", path("d")), ("ListFlights", b"")):
        assert len(raw.ask(rpc, request)) == 1
    for page in ("/v1/statistics", "/v1/statistics?dataset=d", "/v1/datasets", "/v1/why", "/metrics"):
        assert bulk.get(f"{server.http}{page}").status == 200
    assert (
        raw.action("plan", {"dataset": "d", "target_bytes": 1, "partitions": list(range(MANY))})["pieces"]
        == []
    )
    raw.action("drop", {"dataset": "d"})
    eventually(lambda: raw.action("statistics")["memory"]["used_bytes"], 0)


@pytest.mark.long
@pytest.mark.parametrize("durable", [False, True])
def test_many_frames_are_sealed_read_and_dropped(
    flight_server_process: Start, tmp_path: Path, durable: bool
) -> None:
    server = flight_server_process(memory_limit="1GiB", data_dir=tmp_path if durable else None)
    with RawFlight(server.location) as raw:
        raw.action("create", {"dataset": "d", "kind": "shuffle", "partitions": 15_000, "durable": durable})
        put_rows(server, 20_000, 15_000, dataset="d", producer=0, attempt="a")
        sealed = raw.action("seal", {"dataset": "d", "attempts": {"0": "a"}})
        assert (sealed["rows"], len(sealed["partition_bytes"])) == (20_000, 15_000)
        assert bulk.get(f"{server.http}/v1/datasets/d").trailers["x-flight-shuffle-rows"] == "20000"
        raw.action("drop", {"dataset": "d"})
        eventually(lambda: raw.action("statistics")["memory"]["used_bytes"], 0)


@pytest.mark.long
def test_many_frames_are_appended_and_what_is_overwritten_is_released(
    server: ServerProcess, raw: RawFlight
) -> None:
    create = {"dataset": "d", "kind": "shuffle", "partitions": 10_000}
    for mode, write in (("new", "1"), ("append", "2"), ("overwrite", "3")):
        made = raw.action("create", {**create, "mode": mode, "write": write})
        place = {"dataset": "d", "generation": made["generation"]}
        put_rows(server, 10_000, 10_000, **place, producer=0, attempt="a")
        assert raw.action("seal", {**place, "attempts": {"0": "a"}})["rows"] == 10_000
        info = raw.action("statistics", {"dataset": "d"})["datasets"]["d"]
        assert info["rows"] == (20_000 if mode == "append" else 10_000)
        assert info["partition_states"] == {"sealed": info["partition_count"]}
    raw.action("drop", {"dataset": "d"})
    eventually(lambda: raw.action("statistics")["memory"]["used_bytes"], 0)


@pytest.mark.long
def test_a_partition_of_many_small_frames_is_read_and_dropped(server: ServerProcess, raw: RawFlight) -> None:
    put_rows(server, 20_000, 1, dataset="d")
    assert bulk.get(f"{server.http}/v1/datasets/d/partitions/0").trailers["x-flight-shuffle-rows"] == "20000"
    assert len(raw.get(b"d")) == 20_001
    raw.action("drop", {"dataset": "d"})
    eventually(lambda: raw.action("statistics")["memory"]["used_bytes"], 0)


async def test_of_leases_that_end_at_once_a_few_are_looked_at_in_a_step(tmp_path: Path) -> None:
    given = {"port": 0, "http_port": 0, "memory_limit": "64MiB", "data_dir": tmp_path}
    server = Server(config.load(given))
    for number in range(1000):
        server.catalogue.create(CreateRequest(f"d{number}", lease_seconds=0.1), None)
    await asyncio.sleep(0.2)
    left: list[int] = []

    async def look() -> None:
        while True:
            await asyncio.sleep(0)
            left.append(len(server.catalogue))

    looking = asyncio.create_task(look())
    await server._expire()
    looking.cancel()
    await asyncio.wait([looking])
    assert len(server.catalogue) == 0
    assert len(set(left)) > 5
    await server.stop()


@pytest.mark.long
def test_many_leases_end_at_once(raw: RawFlight) -> None:
    for number in range(500):
        raw.action("create", {"dataset": f"d{number}", "kind": "shuffle", "lease_seconds": 60.0})
    for number in range(3000):
        raw.action("create", {"dataset": f"e{number}", "kind": "shuffle", "lease_seconds": 0.5})
    eventually(lambda: raw.action("statistics")["count"], 500)
