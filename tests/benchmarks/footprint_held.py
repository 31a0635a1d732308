"""What a server holds for its clients beside frames: answers, schemas, dictionaries and what decoders make.

Each function sends ``count`` of them, or has so many clients hold them, and returns when all were answered as they
should be; ``footprint`` looks at the server's size. Those that are refused, typed and retryable, are as they should be.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pyarrow as pa

from flight_server.protocol import CreateRequest, Kind
from tests.benchmarks.measure import MIB
from tests.support.raw_flight import (
    RawFlight,
    Refused,
    flight_data,
    ipc_messages,
    path,
    put_messages,
)
from tests.support.rooms import ROOT
from tests.support.server_process import ServerProcess

DEADLINE_SECONDS = 120.0
UNREAD_SECONDS = 20.0
FILES = ROOT / "build" / "benchmarks"
SOURCES = {"source_roots": FILES}


def _folder() -> tempfile.TemporaryDirectory[str]:
    """A new one that the server may read."""
    FILES.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=FILES)


def flight_infos(server: ServerProcess, count: int) -> None:
    """So many clients that ask at once for the FlightInfo of 100,000 partitions."""
    with RawFlight(server.location) as raw:
        raw.action("create", CreateRequest("wide", Kind.SHUFFLE, partitions=100_000, producers=1).encode())

    def ask(number: int) -> None:
        with RawFlight(server.location) as raw:
            raw.ask("GetFlightInfo", path("wide"), deadline_seconds=DEADLINE_SECONDS)

    _at_once(ask, count)


def unread_echoes(server: ServerProcess, count: int) -> None:
    """So many puts of batches with 4 MiB of app_metadata, whose clients read no echo."""
    batch = pa.record_batch({"n": [1]})
    schema, message = ipc_messages(batch.schema, [batch])
    messages = [
        flight_data(message.header, message.body, metadata=metadata) for metadata in [b"x" * (4 * MIB)] * 4
    ]

    def put(number: int) -> None:
        first = flight_data(schema.header, descriptor=path(f"d{number}"))
        with RawFlight(server.location, ahead_bytes=64 << 10) as raw:
            # Ends when it is refused, or at its deadline: no answer is read.
            raw.call("DoPut", iter([first, *messages]), deadline_seconds=UNREAD_SECONDS).code()

    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(put, number) for number in range(count)]:
            done.result()


def source_schemas(server: ServerProcess, count: int) -> None:
    """So many sources over one file, each created with a schema of 5 MiB of its own."""
    with _folder() as folder, RawFlight(server.location) as raw:
        file = Path(folder) / "one.arrow"
        _write(file, pa.record_batch({"n": [1]}))
        for number in range(count):
            schema = pa.schema({"n": pa.int64()}, metadata={str(number): "y" * (5 * MIB)})
            body = {
                "dataset": f"s{number}",
                "kind": "source",
                "source": {"format": "ipc", "path": str(file)},
                "schema": base64.b64encode(schema.serialize()).decode(),
            }
            raw.action("create", body)


def delta_dictionaries(server: ServerProcess, count: int) -> None:
    """One put of so many batches, each after a delta that adds a word to its dictionary."""
    words = pa.array(["one", "two"])
    batches = [
        pa.record_batch({"w": pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), each)})
        for each in (words[:1], words)
    ]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    schema, first, batch, delta, _ = ipc_messages(batches[0].schema, batches, options)
    begin = [flight_data(schema.header, descriptor=path("words")), flight_data(first.header, first.body)]
    step = [flight_data(batch.header, batch.body), flight_data(delta.header, delta.body)]
    end = flight_data(batch.header, batch.body)
    with RawFlight(server.location) as raw:
        raw.put(chain(begin, *repeat(step, count), [end]), deadline_seconds=DEADLINE_SECONDS)


def compressed_sources(server: ServerProcess, count: int) -> None:
    """So many sources of an IPC file of 512 MiB of zeros, compressed to a few KiB, and a read of each."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with _folder() as folder, RawFlight(server.location) as raw:
        file = Path(folder) / "zeros.arrow"
        _write(file, pa.record_batch({"n": np.zeros(512 * MIB // 8, np.int64)}), options)
        for number in range(count):
            body = {
                "dataset": f"z{number}",
                "kind": "source",
                "source": {"format": "ipc", "path": str(file)},
            }
            raw.action("create", body)
            _refused_or(lambda name=f"z{number}": raw.get(name.encode(), deadline_seconds=DEADLINE_SECONDS))


def changelog_puts(server: ServerProcess, count: int) -> None:
    """So many puts of 100,000 rows into a changelog, by four producers at once."""
    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    with RawFlight(server.location) as raw:
        body = {
            "dataset": "rates",
            "kind": "changelog",
            "schema": base64.b64encode(schema.serialize()).decode(),
            "keep": {"rule": "latest", "key": ["k"], "order_by": ["v"]},
        }
        raw.action("create", body)

    def put(number: int) -> None:
        keys = np.random.default_rng(number).integers(0, 1_000_000, 100_000)
        batch = pa.record_batch({"k": keys, "v": np.full(100_000, number)}, schema)
        with RawFlight(server.location) as raw:
            raw.put(put_messages(path("rates"), [batch]), deadline_seconds=DEADLINE_SECONDS)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(put, number) for number in range(count)]:
            done.result()


def _write(file: Path, batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> None:
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def _at_once(work: Callable[[int], None], count: int) -> None:
    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(_refused_or, work, number) for number in range(count)]:
            done.result()


def _refused_or(work: Callable[..., object], *arguments: object) -> None:
    """Do the work; a typed refusal is fine (INTERNAL: a pull's failure)."""
    try:
        work(*arguments)
    except Refused as refused:
        if refused.status not in ("UNAVAILABLE", "INVALID_ARGUMENT", "INTERNAL"):
            raise
