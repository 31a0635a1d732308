"""Requests that are small, or look so, and become large: what ``footprint`` sends beside many small things.

Each function sends ``count`` of them to a server and returns when all were answered as they should be.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import pyarrow as pa

from tests.benchmarks.measure import MIB
from tests.support.folded import folded_schema, with_folded_metadata
from tests.support.raw_flight import RawFlight, Refused, field, flight_data, ipc_messages, path, put_messages
from tests.support.server_process import ServerProcess

ZEROS_BYTES = 24 * MIB


def large_schemas(server: ServerProcess, count: int) -> None:
    """So many datasets, each with 4 MiB of metadata of its own in its schema."""
    with RawFlight(server.location) as raw:
        for number in range(count):
            schema = pa.schema({"n": pa.int64()}, metadata={str(number): "y" * (4 * MIB - 1000)})
            text = base64.b64encode(schema.serialize()).decode()
            raw.action("create", {"dataset": f"d{number}", "schema": text})


def wide_schemas(server: ServerProcess, count: int) -> None:
    """So many puts, each with 10,000 columns of its own and one row."""
    with RawFlight(server.location) as raw:
        for number in range(count):
            columns = {f"c{number}-{column}": pa.array([1], pa.int8()) for column in range(10_000)}
            raw.put(put_messages(path(f"d{number}"), [pa.record_batch(columns)]))


def folded_headers(server: ServerProcess, count: int) -> None:
    """So many schemas and batches whose headers refer to one text from 2,000 places."""
    batch = pa.record_batch({"n": [1]})
    schema, first = ipc_messages(batch.schema, [batch])
    folded = folded_schema(2000, 1, b"x" * MIB)
    message = flight_data(with_folded_metadata(first.header, 2000, MIB), first.body)
    puts = (
        [flight_data(folded, descriptor=path("d"))],
        [flight_data(schema.header, descriptor=path("d")), message],
    )
    with RawFlight(server.location) as raw:
        for number in range(count):
            messages = puts[number % 2]
            _refused("from so many places", partial(raw.put, messages))


def json_bodies(server: ServerProcess, count: int) -> None:
    """So many bodies of actions, tickets and commands of lists in lists, of small objects and of numbers."""
    values = (b"[" * 900 + b"]" * 900, b"{}", b'{"":0}', b"[]", b"7", b'"ab"')
    texts = [
        (name, b'{"dataset": "d", "a": [' + b",".join([value] * (size // (1 + len(value)))) + b"]}")
        for name, size in (("create", 6 * MIB), ("seal", 15 * MIB), ("drop", MIB - 100), ("", MIB - 100))
        for value in values
    ]
    with RawFlight(server.location) as raw:
        for name, text in islice(_again(texts), count):
            _refused("", partial(raw.action, name, text) if name else partial(raw.get, text))


def flight_messages(server: ServerProcess, count: int) -> None:
    """So many FlightInfos, endpoints and descriptors of empty fields."""
    info = field(1, field(2, b"\x08\x02\x12\x01x") + b"\x1a\x00" * (8 * MIB))
    small = MIB // 2 - 100
    with RawFlight(server.location) as raw:
        calls: list[Callable[[], Any]] = [
            lambda: raw.action("CancelFlightInfo", info),
            lambda: raw.action("RenewFlightEndpoint", field(1, b"\x12\x00" * small)),
            lambda: raw.ask("GetFlightInfo", b"\x08\x01" + b"\x1a\x00" * small),
        ]
        for call in islice(_again(calls), count):
            _refused("", call)


def compressed_batches(server: ServerProcess, count: int) -> None:
    """So many batches of 24 MiB of zeros, compressed to a few KiB."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    zeros = pa.Array.from_buffers(pa.int8(), ZEROS_BYTES, [None, pa.py_buffer(bytes(ZEROS_BYTES))])
    first, message = put_messages(path("d"), [pa.record_batch({"n": zeros})], options=options)
    with RawFlight(server.location) as raw:
        raw.put(iter([first, *[message] * count]))


def compressed_requests(server: ServerProcess, count: int) -> None:
    """So many requests of 100 MiB of zeros that gRPC or HTTP would have to decompress."""
    zeros = bytes(100 * MIB)
    body = gzip.compress(zeros)
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.location.removeprefix("grpc://"), options) as channel:
        call = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
        for number in range(count):
            if number % 2:
                headers = {"Content-Encoding": "gzip"}
                try:
                    urlopen(Request(f"{server.http}/v1/put", data=body, headers=headers)).close()
                except (HTTPError, ConnectionError, OSError):
                    continue
            else:
                try:
                    list(call(iter([zeros]), compression=grpc.Compression.Gzip))
                except grpc.RpcError:
                    continue
            raise RuntimeError("a compressed request was taken")


def _again(values: list[Any]) -> Iterator[Any]:
    while True:
        yield from values


def _refused(why: str, call: Callable[[], object]) -> None:
    try:
        call()
    except Refused as refused:
        if refused.status in ("INVALID_ARGUMENT", "NOT_FOUND") and why in refused.message:
            return
        raise
    raise RuntimeError("what should be refused was taken")
