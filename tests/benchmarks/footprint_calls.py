"""Calls whose requests do not arrive, and bodies that are too large: what ``footprint`` sends of them.

Each function returns when the server has ended, or keeps, all of them as it should.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress

import pyarrow as pa

from tests.benchmarks.measure import MIB
from tests.support import raw_put
from tests.support.open_calls import OpenCalls, begun_message
from tests.support.raw_flight import RawFlight, Refused, path, put_messages
from tests.support.server_process import ServerProcess

REQUEST_BYTES = 15 * MIB
QUIET_SECONDS = 1.0
CALLS_OF_A_CONNECTION = 1000
CALL_BYTES = 13 << 10
"""What deploy/README.md says that a call costs until the server has accepted or ended it."""


def unfinished_requests(server: ServerProcess, count: int) -> None:
    """So many calls of one request that lacks its last byte."""
    data = begun_message(REQUEST_BYTES, bytes(REQUEST_BYTES - 1))
    with OpenCalls(server.location) as calls:
        at = {calls.begin(("DoAction", "GetFlightInfo")[number % 2]): 0 for number in range(count)}
        deadline = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < deadline:
            for number, begun in at.items():
                if taken := calls.send(number, data[begun : begun + MIB]):
                    at[number] += taken
                    deadline = time.monotonic() + QUIET_SECONDS
            while calls.take(0):
                pass
        calls.wait_for_end(*at)


def silent_calls(server: ServerProcess, count: int) -> None:
    """So many calls that send nothing, and a good one beside them."""
    with ExitStack() as opened, RawFlight(server.location) as raw:
        for first in range(0, count, CALLS_OF_A_CONNECTION):
            calls = opened.enter_context(OpenCalls(server.location))
            for number in range(first, min(first + CALLS_OF_A_CONNECTION, count)):
                calls.begin(("DoGet", "DoPut", "GetFlightInfo")[number % 3])
        raw.action("locations")


def stalled_bulk_puts(server: ServerProcess, count: int) -> None:
    """So many puts on the bulk lane, one after the other, that stand still at the last byte of 8 MiB."""
    first, *_ = put_messages(path("d"), [pa.record_batch({"n": [1]})])
    whole = (8 * MIB).to_bytes(4, "big") + bytes(8 * MIB - 1)
    for number in range(count):
        with raw_put.RawPut(f"{server.http}/v1/put") as put:
            put.send(first)
            put.raw(whole)
            with suppress(raw_put.Refused):
                put.answers()
                raise RuntimeError(f"the put {number} was taken")


def large_bodies(server: ServerProcess, count: int) -> None:
    """So many actions, each with a body of 45 MiB of JSON."""
    body = b'{"dataset": "d", "a": [' + b"7," * (22 * MIB) + b"7]}"
    with RawFlight(server.location) as raw:
        for _ in range(count):
            try:
                raw.action("seal", body)
            except Refused as refused:
                if "larger than max" in refused.message or "limit of" in refused.message:
                    continue
                raise
            raise RuntimeError("what should be refused was taken")
