"""A dataset over several servers, written and sealed as a driver and its tasks would, with a stock client."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import flight

from .durable import action
from .server_process import ServerProcess

PARTITIONS = 6


def rows_of(server: int, partition: int) -> list[int]:
    """What the server of that number is to hold of a partition: nothing in some cases."""
    count = 0 if (server + partition) % 4 == 3 else 3
    return [10_000 * partition + 100 * server + row for row in range(count)]


def command_of(name: str, generation: str, producer: int, **more: Any) -> dict[str, Any]:
    create = {"partitions": PARTITIONS, "lease_seconds": 60.0}
    return {
        "dataset": name,
        "producer": producer,
        "attempt": "1",
        "generation": generation,
        "create": create,
        **more,
    }


def put(
    location: str,
    command: dict[str, Any],
    parts: Sequence[tuple[int, Sequence[int]]],
) -> dict[str, Any]:
    """Write frames of partitions; the commit's answer."""
    with flight.connect(location) as client:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
        writer, answers = client.do_put(descriptor, pa.schema([("n", pa.int64())]))
        with writer:
            for partition, values in parts:
                batch = pa.record_batch({"n": pa.array(values, pa.int64())})
                writer.write_with_metadata(batch, b"%d" % partition)
            totals = {"rows": sum(len(values) for _, values in parts), "frames": len(parts)}
            writer.write_metadata(json.dumps({"commit": totals}).encode())
            writer.done_writing()
            answer: dict[str, Any] = json.loads(answers.read().to_pybytes())
            return answer


def spread(
    name: str,
    servers: Sequence[ServerProcess],
    generation: str | None = None,
    *,
    rows: Callable[[int, int], list[int]] = rows_of,
    frame_rows: int = 1 << 30,
    **more: Any,
) -> list[dict[str, Any]]:
    """Write and seal it; the list of servers that each of them was given. ``more``: of the seals."""
    generation = generation or secrets.token_hex(8)
    listed = []
    for number, server in enumerate(servers):
        parts = [
            (partition, found[first : first + frame_rows])
            for partition in range(PARTITIONS)
            for found in [rows(number, partition)]
            for first in range(0, len(found), frame_rows)
        ]
        answer = put(server.location, command_of(name, generation, number), parts)
        listed.append({key: answer[key] for key in ("start", "locations", "rows", "bytes")})
    for number, server in enumerate(servers):
        with flight.connect(server.location) as client:
            seal = {"dataset": name, "generation": generation, "attempts": {str(number): "1"}, **more}
            action(client, "seal", **seal, start=listed[number]["start"], servers=listed)
    return listed


def everything(servers: int) -> list[int]:
    """All rows of the dataset, sorted."""
    return sorted(
        row for server in range(servers) for part in range(PARTITIONS) for row in rows_of(server, part)
    )


def values(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """The numbers of all rows, in order."""
    return [row for batch in batches for row in batch.column(0).to_pylist()]
