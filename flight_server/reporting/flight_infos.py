"""FlightInfo and PollInfo of a dataset, as Arrow Flight defines them.

The endpoints, up to 100,000, are appended to the serialized rest of the message (protobuf joins repeated fields), a
slice at a time, so that the loop serves other streams meanwhile. 100,000 are 25 MB, so a caller that sends one reserves
:func:`info_bytes` first.

    FlightInfo       1 schema   3 endpoint
    FlightEndpoint   1 ticket   2 location   3 expiration_time (Timestamp)
    Ticket           1 ticket
    Location         1 uri
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import flight

from flight_server.concurrency import in_slices
from flight_server.datasets import Dataset, PartitionState
from flight_server.protocol import PUT_PATH, REUSE_CONNECTION, Ticket, bulk_path, dump_json, ipc_framing, wire

EMPTY_SCHEMA = pa.schema([])
_ENDPOINTS_AT_ONCE = 500
_HEAD_BYTES = 4096
"""Descriptor, totals, ``app_metadata`` and, of a PollInfo, progress."""


@dataclass
class Locations:
    """The addresses of this server's lanes, as clients are told them; None until the lane's listener is open."""

    grpc: str | None = None
    http: str | None = None

    @property
    def known(self) -> list[str]:
        return [location for location in (self.grpc, self.http) if location is not None]

    @property
    def reads(self) -> list[str]:
        """Where any partition can be read by gRPC: on the client's connection, and by address."""
        return [REUSE_CONNECTION] if self.grpc is None else [REUSE_CONNECTION, self.grpc]

    @property
    def puts(self) -> list[str]:
        """Where the bulk lane takes puts, for any dataset; empty without that lane."""
        return [] if self.http is None else [self.http + PUT_PATH]

    def bulk_read(self, dataset: Dataset, index: int) -> str | None:
        """Where a partition can be read by HTTP; None without that lane."""
        return None if self.http is None else self.http + bulk_path(dataset.name, index, dataset.generation)


def expiration(dataset: Dataset) -> float | None:
    """When the lease ends, in seconds since the epoch; None without a lease."""
    left = dataset.lease_left_seconds
    return None if left is None else time.time() + left


def timestamp_scalar(seconds: float) -> Any:
    """A moment as pyarrow's Flight classes take it; ``pa.scalar`` would import pandas, which takes half a second."""
    kind = pa.timestamp("us", "UTC")
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(struct.pack("<q", int(seconds * 1e6)))])[0]


def info_bytes(locations: Locations, dataset: Dataset) -> int:
    """The most that the FlightInfo or PollInfo has, for the partitions that there are now."""
    last = dataset.partition_count - 1
    endpoint = _endpoint(locations, dataset, last, _common(locations, dataset))
    schema_bytes = 0 if dataset.schema is None else len(dataset.schema.header)
    return dataset.partition_count * (len(endpoint) + 8) + schema_bytes + _HEAD_BYTES


async def flight_info(locations: Locations, dataset: Dataset) -> bytes:
    """The FlightInfo message. Raises as :func:`_info`."""
    return b"".join(await _info(locations, dataset))


async def _info(locations: Locations, dataset: Dataset) -> list[bytes]:
    """The parts of the FlightInfo message: one endpoint for each partition; totals -1 until the dataset is sealed.
    A changelog has one endpoint, whose ticket reads the newest snapshot at the time of the read.

    Raises:
        FlightShuffleError: the dataset was dropped, or a partition has failed, except of a source, which is pulled
            again.
    """
    rows = total_bytes = 0
    count = dataset.partition_count  # of which the totals are: an append adds partitions
    async for partition in in_slices(dataset.partitions()):
        if dataset.puller is None or dataset.dropped:
            partition.check()
        totals = partition.totals
        rows += totals.rows
        total_bytes += totals.bytes
    versions = {}
    if dataset.changelog is not None:
        versions = {"since": dataset.changelog.since, "upper": dataset.changelog.upper}
    info = flight.FlightInfo(
        EMPTY_SCHEMA,
        flight.FlightDescriptor.for_path(dataset.name),
        [],
        rows if dataset.sealed else -1,
        total_bytes if dataset.sealed else -1,
        ordered=False,
        app_metadata=dump_json(
            {
                "generation": dataset.generation,
                "kind": dataset.kind.value,
                "sealed": dataset.sealed,
                **versions,
            }
        ),
    )
    parts = [info.serialize()]
    if dataset.schema is not None:
        # Of two such fields protobuf takes the last. Arrow's object of a wide schema would take long to make.
        parts.append(wire.field(1, ipc_framing.encapsulate(dataset.schema.header)))
    common = _common(locations, dataset)
    async for first in in_slices(range(0, count, _ENDPOINTS_AT_ONCE), 1):
        indices = range(first, min(count, first + _ENDPOINTS_AT_ONCE))
        parts.append(b"".join(_endpoint(locations, dataset, index, common) for index in indices))
    return parts


def _common(locations: Locations, dataset: Dataset) -> bytes:
    """What all endpoints say: when the lease ends, and where any partition can be read."""
    ends_at = expiration(dataset)
    lease = b"" if ends_at is None else wire.field(3, wire.timestamp(ends_at))
    return lease + b"".join(_location(uri) for uri in locations.reads)


def _endpoint(locations: Locations, dataset: Dataset, index: int, common: bytes) -> bytes:
    ticket = wire.field(1, Ticket(dataset.name, index, dataset.generation).encode())
    bulk = locations.bulk_read(dataset, index)
    return wire.field(3, wire.field(1, ticket) + common + (_location(bulk) if bulk else b""))


def _location(uri: str) -> bytes:
    return wire.field(2, wire.field(1, uri.encode()))


async def poll_info(locations: Locations, dataset: Dataset) -> bytes:
    """The PollInfo message; with a descriptor to ask again with while the dataset is filling."""
    info = await _info(locations, dataset)
    parts = [wire.field_head(1, sum(map(len, info))), *info]
    if dataset.filling:
        parts.append(wire.field(2, flight.FlightDescriptor.for_path(dataset.name).serialize()))
    parts.append(wire.double_field(3, await progress(dataset)))
    ends_at = expiration(dataset)
    if ends_at is not None:
        parts.append(wire.field(4, wire.timestamp(ends_at)))
    return b"".join(parts)


async def next_look(dataset: Dataset) -> None:
    """Return when a filling dataset has more to show: at its next change, of a changelog at its next version.
    Cancelling is safe.
    """
    changelog = dataset.changelog
    if changelog is None:
        await dataset.changes.next()
        return
    upper = changelog.upper
    while changelog.upper == upper and dataset.filling:
        await changelog.changes.next()


async def progress(dataset: Dataset) -> float:
    """The share of committed producers where their number is declared, else of sealed partitions."""
    if dataset.sealed:
        return 1.0
    if dataset.producers:
        return min(1.0, dataset.attempts.committed_producers / dataset.producers)
    done = 0
    async for partition in in_slices(dataset.partitions()):
        done += partition.state is PartitionState.SEALED
    return done / dataset.partition_count
