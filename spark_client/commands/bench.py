"""``bench``: what this client's own link to a server carries, and the settings that follow from it.

Rows of random numbers are put and got, on both lanes, by one stream and by ``STREAMS``; what was written is dropped.
The link is that of one client: its processor, the network, and the servers together.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import typer

from flight_server.protocol import FlightShuffleError, InvalidRequest, Unavailable
from spark_client import Reading, ShuffleClient, Writing

from .connected import Link, connected
from .printing import print_json, print_line, print_table, size

STREAMS = 4
ROUND_TRIPS = 20
_ROWS = 1 << 17  # 1 MiB
_LANES: tuple[Literal["bulk", "grpc"], ...] = ("bulk", "grpc")
ZSTD_BYTES_PER_SECOND, LZ4_BYTES_PER_SECOND = 50 << 20, 200 << 20
"""Links below these are faster with a codec for all buffers, as far as rows shrink."""


@dataclass(frozen=True)
class Measured:
    """One way over the link."""

    lane: str
    direction: Literal["put", "get"]
    streams: int
    size_bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> int:
        return round(self.size_bytes / self.seconds)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(connected(_bench))


def _bench(
    link: Link,
    *,
    seconds: Annotated[
        float, typer.Option(help="how long all puts and gets may take together", min=0.1)
    ] = 10.0,
    size_mib: Annotated[
        int, typer.Option("--mib", help="how many MiB one measurement writes at most, of all streams", min=4)
    ] = 512,
    prefix: Annotated[str, typer.Option(help="of the names of what it writes and drops")] = "",
) -> None:
    """Measure the link to the server: round trip, put and get on both lanes, with 1 stream and with 4; then print
    settings that fit it.
    """
    each_seconds = seconds / (len(_LANES) * 2 * 2)
    with link.client() as client:
        round_trip = _round_trip_seconds(client)
    found: list[Measured] = []
    for lane in _LANES:
        with link.client(reading=Reading(lane=lane), writing=Writing(lane=lane)) as client:
            try:
                for streams in (1, STREAMS):
                    found += _both_ways(
                        client, lane, streams, each_seconds, most_bytes=size_mib << 20, prefix=prefix
                    )
            except (Unavailable, InvalidRequest):  # no HTTP port, or one that is not reached
                if lane == "grpc":
                    raise
    advised = settings(found)
    if link.as_json:
        print_json(
            {
                "round_trip_seconds": round(round_trip, 6),
                "measured": [
                    {
                        "lane": each.lane,
                        "direction": each.direction,
                        "streams": each.streams,
                        "size_bytes": each.size_bytes,
                        "seconds": round(each.seconds, 3),
                        "bytes_per_second": each.bytes_per_second,
                    }
                    for each in found
                ],
                "settings": {name: value for name, (value, _) in advised.items()},
            }
        )
        return
    print_line(f"round trip {1000 * round_trip:.2f} ms")
    print_table(
        ("lane", "", ">streams", ">per second", ">size"),
        [(e.lane, e.direction, e.streams, size(e.bytes_per_second), size(e.size_bytes)) for e in found],
    )
    for name, (value, reason) in advised.items():
        print_line(f"--conf {name}={value}    # {reason}")


def settings(found: list[Measured]) -> dict[str, tuple[str, str]]:
    """Settings of a session by their names, each with the reason."""
    best = {(lane, way): _best(found, lane, way) for lane in _LANES for way in ("put", "get")}
    bulk, grpc = (best[lane, "put"] + best[lane, "get"] for lane in _LANES)
    advised: dict[str, tuple[str, str]] = {}
    if not bulk:
        advised["spark.flight.shuffle.lane"] = "grpc", "the HTTP port is not reached"
    elif grpc > 1.2 * bulk:
        advised["spark.flight.shuffle.lane"] = "grpc", "faster here than HTTP"
    else:
        advised["spark.flight.shuffle.lane"] = "auto", "HTTP where it can be reached"
    fastest = max(best.values())
    codec = "zstd" if fastest < ZSTD_BYTES_PER_SECOND else "lz4" if fastest < LZ4_BYTES_PER_SECOND else "auto"
    advised["spark.flight.shuffle.compression"] = codec, f"the link carries {size(fastest)}/s"
    return advised


def _best(found: list[Measured], lane: str, way: str) -> int:
    return max((e.bytes_per_second for e in found if (e.lane, e.direction) == (lane, way)), default=0)


def _round_trip_seconds(client: ShuffleClient) -> float:
    """The median of calls with one small answer."""
    client.datasets("~")  # connects; no name begins so
    taken = []
    for _ in range(ROUND_TRIPS):
        began = time.monotonic()
        client.datasets("~")
        taken.append(time.monotonic() - began)
    return statistics.median(taken)


def _both_ways(
    client: ShuffleClient, lane: str, streams: int, seconds: float, *, most_bytes: int, prefix: str
) -> Iterator[Measured]:
    names = [f"{prefix}bench-{secrets.token_hex(4)}" for _ in range(streams)]
    batch = pa.record_batch([np.random.default_rng(1).integers(0, 1 << 62, _ROWS)], ["number"])

    def put(name: str, until: float) -> int:
        most = max(1, most_bytes // streams // batch.nbytes)

        def batches() -> Iterator[Any]:
            for at in range(most):
                if at and time.monotonic() > until:
                    return
                yield batch

        return client.put(name, batches()) * 8

    def get(name: str, until: float) -> int:
        size_bytes = 0
        with client.get(name) as reader:
            for each in reader:
                size_bytes += each.nbytes
                if time.monotonic() > until:
                    break
        return size_bytes

    try:
        with ThreadPoolExecutor(streams, "bench") as threads:
            for direction, work in (("put", put), ("get", get)):
                began = time.monotonic()
                moved = sum(threads.map(work, names, [began + seconds] * streams))
                yield Measured(lane, direction, streams, moved, time.monotonic() - began)  # type: ignore[arg-type]  # a word of a closed list
    finally:
        for name in names:
            with suppress(FlightShuffleError):
                client.drop(name)
