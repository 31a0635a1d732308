"""A server in a container that is stopped, and one whose memory limit is below its data, or above its container."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_client import FlightShuffleError
from tests.support.container_engine import Engine
from tests.support.polling import eventually
from tests.support.server_containers import ServerContainer, running_server

pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(3600)]

SCHEMA = pa.schema([("n", pa.int64())])
MIB = 1 << 20


def batches(size_mib: int) -> Iterator[pa.RecordBatch]:
    """Of 1 MiB each; none has the numbers of another."""
    rows = MIB // 8
    for number in range(size_mib):
        yield pa.record_batch([pa.array(range(number * rows, (number + 1) * rows))], schema=SCHEMA)


class SlowReader(threading.Thread):
    """Takes a batch every 3 s, over gRPC."""

    def __init__(self, server: ServerContainer, dataset: str) -> None:
        super().__init__(name="slow reader")
        self._server, self._dataset = server, dataset
        self.taken = 0
        self.error: Exception | None = None

    def run(self) -> None:
        options = flight.FlightCallOptions(
            headers=[(b"authorization", b"Bearer " + self._server.token.encode())], timeout=600
        )
        try:
            with flight.connect(self._server.location) as client:
                reader = client.do_get(flight.Ticket(self._dataset.encode()), options)
                while True:
                    reader.read_chunk()
                    self.taken += 1
                    time.sleep(3)
        except (flight.FlightError, pa.ArrowException, StopIteration) as error:
            self.error = error


def test_a_stop_ends_a_slow_reader_with_an_error_and_the_server_with_0(images: Engine) -> None:
    with running_server(images, memory_limit="512MiB") as server:
        with server.client() as client:
            client.put("d", pa.Table.from_batches(batches(100)))
        reader = SlowReader(server, "d")
        reader.start()
        eventually(lambda: reader.taken > 1, expected=True)
        begun = time.monotonic()
        images.run("stop", "-t", "50", server.name)
        print(f"\nstopped after {time.monotonic() - begun:.0f} s, of which 20 are the reader's")
        reader.join(60)
        assert isinstance(reader.error, flight.FlightUnavailableError), reader.error
        assert server.fact("{{.State.ExitCode}} {{.State.OOMKilled}}") == "0 false"


def test_more_data_than_the_limit_goes_to_disk_and_comes_back(images: Engine) -> None:
    size_mib = 1024
    with running_server(images, memory="768m", memory_limit="256MiB") as server, server.client() as client:
        begun = time.monotonic()
        reader = pa.RecordBatchReader.from_batches(SCHEMA, batches(size_mib))
        client.put("large", reader)
        rows = total = 0
        for batch in client.get("large"):
            rows += batch.num_rows
            total += batch["n"].to_numpy().sum(dtype="int64").item()
        print(f"\n{size_mib} MiB through 256 MiB: {time.monotonic() - begun:.0f} s")
        assert (rows, total) == (size_mib * MIB // 8, sum(range(size_mib * MIB // 8)))
        assert client.statistics()["spilled_bytes"] > (size_mib - 256) * MIB
        assert server.fact("{{.State.Status}} {{.State.OOMKilled}}") == "running false"
        assert server.is_healthy


def test_a_limit_above_the_container_s_is_told_before_the_kernel_ends_the_server(images: Engine) -> None:
    with running_server(images, memory="320m", memory_limit="2GiB") as server:
        (warning,) = server.events("memory_limit_too_high")
        assert (warning["memory_limit_bytes"], warning["memory_bytes"]) == (2048 * MIB, 320 * MIB)
        table = pa.table({"n": range(100_000)})
        server.put_durable("durable", table)
        with server.client() as client:
            reader = pa.RecordBatchReader.from_batches(SCHEMA, batches(1024))
            with pytest.raises(FlightShuffleError):
                client.put("large", reader)
        eventually(lambda: server.fact("{{.State.OOMKilled}}"), "true")
        images.run("start", server.name)
        server.wait_until_healthy()
        with server.client() as client:
            assert client.get("durable").read_all() == table
