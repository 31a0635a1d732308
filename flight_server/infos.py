"""What the server says about a dataset: FlightInfo, PollInfo, schemas, as Arrow Flight defines them."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
from pyarrow import flight

from . import wire
from .core import Core
from .dataset import Dataset
from .partition import PartitionState
from .protocol import REUSE_CONNECTION, Ticket, bulk_path
from .strict_json import dump_json

EMPTY_SCHEMA = pa.schema([])


def locations(core: Core, dataset: Dataset, index: int) -> list[str]:
    """Where a partition can be read: where the client asks now, by gRPC address, and by HTTP."""
    named = [REUSE_CONNECTION]
    if core.location is not None:
        named.append(core.location)
    if core.http_location is not None:
        named.append(core.http_location + bulk_path(dataset.name, index, dataset.generation))
    return named


def expiration(dataset: Dataset) -> float | None:
    """When the lease ends, in seconds since the epoch."""
    left = dataset.lease_left_seconds
    return None if left is None else time.time() + left


def flight_info(core: Core, dataset: Dataset) -> Any:
    """One endpoint for each partition; totals -1 until the dataset is sealed.

    Raises:
        FlightShuffleError: a partition has failed, or the dataset was dropped: a fresh copy of the cause.
            A source's failed partition is no failure of its dataset: whoever reads it is told.
    """
    for partition in dataset.partitions():
        if dataset.puller is None or dataset.dropped:  # what a source has failed to do it may do next time
            partition.check()
    ends_at = expiration(dataset)
    endpoints = []
    for index in range(dataset.partition_count):
        ticket = Ticket(dataset.name, index, dataset.generation)
        expires = None if ends_at is None else pa.scalar(int(ends_at * 1e6), pa.timestamp("us", "UTC"))
        endpoints.append(flight.FlightEndpoint(ticket.encode(), locations(core, dataset, index), expires))
    schema = dataset.schema.schema if dataset.schema is not None else EMPTY_SCHEMA
    return flight.FlightInfo(
        schema,
        flight.FlightDescriptor.for_path(dataset.name),
        endpoints,
        dataset.rows if dataset.sealed else -1,
        dataset.total_bytes if dataset.sealed else -1,
        ordered=False,
        app_metadata=dump_json(
            {"generation": dataset.generation, "kind": dataset.kind.value, "sealed": dataset.sealed}
        ),
    )


def poll_info(core: Core, dataset: Dataset) -> bytes:
    """The PollInfo message; complete, without a descriptor to ask again with, once sealed."""
    parts = [wire.field(1, flight_info(core, dataset).serialize())]
    if dataset.filling:
        parts.append(wire.field(2, flight.FlightDescriptor.for_path(dataset.name).serialize()))
    parts.append(wire.double_field(3, progress(dataset)))
    ends_at = expiration(dataset)
    if ends_at is not None:
        parts.append(wire.field(4, wire.timestamp(ends_at)))
    return b"".join(parts)


def progress(dataset: Dataset) -> float:
    """Between 0 and 1: committed producers where their number is declared, else sealed partitions."""
    if dataset.sealed:
        return 1.0
    if dataset.producers:
        return min(1.0, dataset.attempts.committed_producers / dataset.producers)
    done = sum(partition.state is PartitionState.SEALED for partition in dataset.partitions())
    return done / dataset.partition_count
