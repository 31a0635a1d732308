"""Readers on the bulk lane that come and take nothing: what each costs, and that it costs no other reader."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.bulk import RawGet, get
from tests.support.paused import RECEIVE_BUFFER_BYTES
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

MIB = 1 << 20
FRAMES = 32


@pytest.fixture
def server(flight_server_process: Callable[..., ServerProcess]) -> ServerProcess:
    started = flight_server_process(memory_limit="64MiB")
    batch = pa.record_batch({"x": np.zeros(MIB // 8)})
    with flight.connect(started.location) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("d"), batch.schema)
        for _ in range(FRAMES):
            writer.write_batch(batch)
        writer.close()
    return started


def parked(server: ServerProcess) -> int:
    """How many readers the server waits for, if none of them holds room."""
    held = get(f"{server.http}/v1/statistics").json()["memory"]["accounts"]["sends"]["used_bytes"]
    waits = get(f"{server.http}/v1/why").json()["waits"]
    return 0 if held else sum(each["waiting_for"] == "reader" for each in waits)


def test_the_kernel_keeps_little_for_a_reader_that_has_taken_nothing(server: ServerProcess) -> None:
    with RawGet(f"{server.http}/v1/datasets/d", receive_buffer_bytes=RECEIVE_BUFFER_BYTES) as reader:
        reader.head()
        eventually(lambda: parked(server), 1)
        server.kill()  # the kernel still sends what it has
        assert len(reader.raw_rest()) < MIB // 2


def test_a_reader_that_comes_with_many_that_take_nothing_reads_all(server: ServerProcess) -> None:
    url = f"{server.http}/v1/datasets/d"
    with ExitStack() as opened:
        many = [
            opened.enter_context(RawGet(url, receive_buffer_bytes=RECEIVE_BUFFER_BYTES)) for _ in range(200)
        ]
        assert sum(1 for _ in pa.ipc.open_stream(get(url).body)) == FRAMES
        for each in many:
            each.head()
        eventually(lambda: parked(server), len(many))
        assert sum(1 for _ in pa.ipc.open_stream(get(url).body)) == FRAMES
