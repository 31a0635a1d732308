"""What the tests of durable datasets do from outside: put, seal, read, look at the files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

DEADLINE_SECONDS = 90.0
OPTIONS = flight.FlightCallOptions(timeout=DEADLINE_SECONDS)


def table(rows: int = 1000, seed: int = 0) -> pa.Table:
    """Numbers, texts and a dictionary column; different for each seed."""
    numbers = range(seed, seed + rows)
    return pa.table(
        {
            "number": pa.array(numbers, pa.int64()),
            "text": pa.array([f"row {number}" for number in numbers]),
            "kind": pa.array([f"{seed}-{number % 3}" for number in numbers]).dictionary_encode(),
        }
    )


def action(client: flight.FlightClient, name: str, **body: Any) -> dict[str, Any]:
    """Run an action; its answer."""
    (result,) = client.do_action(flight.Action(name, json.dumps(body).encode()), OPTIONS)
    answer: dict[str, Any] = json.loads(result.body.to_pybytes())
    return answer


def put(client: flight.FlightClient, data: pa.Table, *, chunk_rows: int = 100, **command: Any) -> None:
    """Write one partition of kind ``stream``, and return when the server has sealed it."""
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
    writer, _ = client.do_put(descriptor, data.schema, OPTIONS)
    with writer:
        writer.write_table(data, max_chunksize=chunk_rows)


def put_attempt(
    client: flight.FlightClient,
    dataset: str,
    data: Mapping[int, pa.Table],
    *,
    producer: int = 0,
    attempt: str = "1",
    generation: str | None = None,
    chunk_rows: int = 100,
) -> None:
    """Write one attempt of a shuffle, a table for each partition, and commit it."""
    schema = next(iter(data.values())).schema
    command = {"dataset": dataset, "producer": producer, "attempt": attempt}
    if generation is not None:
        command["generation"] = generation
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
    writer, reader = client.do_put(descriptor, schema, OPTIONS)
    frames = 0
    with writer:
        for partition, part in data.items():
            for batch in part.to_batches(max_chunksize=chunk_rows):
                writer.write_with_metadata(batch, b"%d" % partition)
                frames += 1
        rows = sum(part.num_rows for part in data.values())
        writer.write_metadata(json.dumps({"commit": {"rows": rows, "frames": frames}}).encode())
        writer.done_writing()
        reader.read()


def get(client: flight.FlightClient, dataset: str, partition: int = 0) -> pa.Table:
    """Read one partition."""
    ticket = flight.Ticket(json.dumps({"dataset": dataset, "partition": partition}).encode())
    return client.do_get(ticket, OPTIONS).read_all()


def names(client: flight.FlightClient) -> set[str]:
    """The datasets that there are."""
    return {info.descriptor.path[0].decode() for info in client.list_flights(options=OPTIONS)}


def files(data_dir: Path) -> list[Path]:
    """Every file of frames and of runs."""
    return sorted(Path(entry.path) for entry in os.scandir(data_dir / "segments"))


def segment_bytes(data_dir: Path) -> int:
    """The size of all of them, by the file system's word."""
    return sum(path.stat().st_size for path in files(data_dir))
