"""FlightInfo and PollInfo of a dataset, as Arrow Flight defines them.

A dataset that was sealed as spread over several servers (``datasets.spread``) has one endpoint for each of them, whose
ticket names all partitions, or the one that is asked for, and the server's start; its locations are that server's. Of
one partition the totals are not known: this server has those of its portion.

The messages are composed field by field: pyarrow's classes for them would load its Flight library, 8 MiB that an idle
server does not use otherwise, and make an object for each endpoint. The endpoints, up to 100,000, are made a slice at a
time, so that the loop serves other streams meanwhile. 100,000 are 25 MB, so a caller that sends one reserves
:func:`info_bytes` first.

    FlightInfo       1 schema   2 descriptor   3 endpoint   4 total_records   5 total_bytes   7 app_metadata
    FlightEndpoint   1 ticket   2 location   3 expiration_time (Timestamp)
    Ticket           1 ticket
    Location         1 uri
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from flight_server.concurrency import in_slices
from flight_server.datasets import Dataset, PartitionState, own_start
from flight_server.protocol import (
    ALL,
    PUT_PATH,
    REUSE_CONNECTION,
    PutCommand,
    ServerPortion,
    Ticket,
    bulk_path,
    dump_json,
    ipc_framing,
    object_of,
    wire,
)

_ENDPOINTS_AT_ONCE = 500
_HEAD_BYTES = 4096
"""Descriptor, totals, ``app_metadata`` and, of a PollInfo, progress."""


@dataclass
class Locations:
    """The addresses of this server's lanes, as clients are told them; None until the lane's listener is open."""

    grpc: str | None = None
    http: str | None = None
    servers: list[str] | None = None
    """All workers of this server's supervisor."""

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


def _expiration(dataset: Dataset) -> float | None:
    """When the lease ends, in seconds since the epoch; None without a lease."""
    left = dataset.lease_left_seconds
    return None if left is None else time.time() + left


def info_bytes(locations: Locations, dataset: Dataset, only: int | None = None) -> int:
    """The most that the FlightInfo or PollInfo has, for the partitions that there are now."""
    if _is_spread(dataset):
        texts_bytes = sum(len("".join(each.locations)) for each in dataset.servers)
        count = sum(len(each.locations) + 1 for each in dataset.servers)
        if dataset.stored is not None:
            texts_bytes += len(dataset.servers) * (len(dataset.stored.address) + 400)
        return (
            texts_bytes + (count + 4) * (3 * len(dataset.name) + 400) + _schema_bytes(dataset) + _HEAD_BYTES
        )
    count = 1 if only is not None else dataset.partition_count
    endpoint = _endpoint(locations, dataset, dataset.partition_count - 1, _common(locations, dataset))
    return count * (len(endpoint) + 8) + _schema_bytes(dataset) + _HEAD_BYTES


def _schema_bytes(dataset: Dataset) -> int:
    return 0 if dataset.schema is None else len(dataset.schema.header)


def _is_spread(dataset: Dataset) -> bool:
    return bool(dataset.servers) and dataset.sealed


async def flight_info(locations: Locations, dataset: Dataset, only: int | None = None) -> bytes:
    """The FlightInfo message. Arguments and errors as of :func:`_info`."""
    return b"".join(await _info(locations, dataset, only))


async def _info(locations: Locations, dataset: Dataset, only: int | None) -> list[bytes]:
    """The parts of the FlightInfo message: one endpoint for each partition; totals -1 until all of them are sealed. The
    ticket of a dataset with versions reads the newest snapshot at the time of the read.

    Args:
        only: the one partition that the descriptor names: endpoint, totals and descriptor are of that one.

    Raises:
        NotFound: the dataset has no such partition.
        FlightShuffleError: the dataset was dropped, or a partition has failed, except if it is pulled again.
    """
    rows = total_bytes = 0
    count = dataset.partition_count  # of which the totals are: an append adds partitions
    described = dataset.partitions() if only is None else [dataset.partition(only)]
    sealed = dataset.sealed if only is None else described[0].state is PartitionState.SEALED
    async for partition in in_slices(described):
        if not dataset.attached.pulled or dataset.dropped:
            partition.check()
        totals = partition.totals
        rows += totals.rows
        total_bytes += totals.bytes
    spread = _is_spread(dataset)
    if spread:
        sealed = only is None
        rows, total_bytes = (
            sum(each.rows for each in dataset.servers),
            sum(each.bytes for each in dataset.servers),
        )
    facts = {
        "generation": dataset.generation,
        "kind": dataset.kind.value,
        "sealed": dataset.sealed,
        **dataset.attached.facts(),
        **({"partitions": count} if spread else {}),
    }
    header = _empty_schema() if dataset.schema is None else dataset.schema.header
    parts = [
        wire.field(1, ipc_framing.encapsulate(header)),
        wire.field(2, _descriptor(dataset, only)),
        wire.varint_field(4, rows if sealed else -1),
        wire.varint_field(5, total_bytes if sealed else -1),
        wire.field(7, dump_json(facts)),
    ]
    if spread:
        parts += [
            _endpoint_of(locations, dataset, each, only) async for each in in_slices(dataset.servers, 100)
        ]
        return parts
    common = _common(locations, dataset)
    start, stop = (0, count) if only is None else (only, only + 1)
    async for first in in_slices(range(start, stop, _ENDPOINTS_AT_ONCE), 1):
        indices = range(first, min(stop, first + _ENDPOINTS_AT_ONCE))
        parts.append(b"".join(_endpoint(locations, dataset, index, common) for index in indices))
    return parts


@cache
def _empty_schema() -> bytes:
    return ipc_framing.schema_header(pa.schema([]).serialize().to_pybytes())


def _common(locations: Locations, dataset: Dataset) -> bytes:
    """The fields that all endpoints share: the end of the lease, and where any partition can be read."""
    return lease_field(dataset) + b"".join(_location(uri) for uri in locations.reads)


def lease_field(dataset: Dataset) -> bytes:
    """The field ``expiration_time`` of a FlightEndpoint, empty without a lease."""
    ends_at = _expiration(dataset)
    return b"" if ends_at is None else wire.field(3, wire.timestamp(ends_at))


def _endpoint_of(locations: Locations, dataset: Dataset, server: ServerPortion, only: int | None) -> bytes:
    """The endpoint of what a server has of the dataset, or of ``only`` one partition."""
    listed, name = None if only is None else (only,), dataset.name
    ticket = Ticket(name, generation=dataset.generation, partitions=listed or ALL, start=server.start)
    path = bulk_path(name, None, dataset.generation, partitions=listed, start=server.start)
    # Its own addresses it knows better than the list.
    mine = [*locations.reads, *filter(None, [locations.http])] if server.start == own_start() else []
    uris = [*mine, *(each for each in server.locations if each not in mine)]
    addresses = [uri + path if uri.startswith("http") else uri for uri in uris]
    if dataset.stored is not None and only is None:
        addresses.append(object_of(dataset.stored.prefix, dataset.name, dataset.generation, server.start))
    return wire.field(
        3,
        wire.field(1, wire.field(1, ticket.encode()))
        + lease_field(dataset)
        + b"".join(map(_location, addresses)),
    )


def _endpoint(locations: Locations, dataset: Dataset, index: int, common: bytes) -> bytes:
    ticket = wire.field(1, Ticket(dataset.name, index, dataset.generation).encode())
    bulk = locations.bulk_read(dataset, index)
    return wire.field(3, wire.field(1, ticket) + common + (_location(bulk) if bulk else b""))


def _descriptor(dataset: Dataset, only: int | None) -> bytes:
    return wire.path_descriptor(dataset.name, *([] if only is None else [str(only)]))


def _location(uri: str) -> bytes:
    return wire.field(2, wire.field(1, uri.encode()))


async def poll_info(locations: Locations, dataset: Dataset, only: int | None = None) -> bytes:
    """The PollInfo message, as :func:`flight_info`; with a descriptor to ask again with while the dataset, or the one
    partition, is filling; that descriptor names the state that this answer shows.
    """
    seen, _ = dataset.attached.look(dataset)
    info = await _info(locations, dataset, only)
    parts = [wire.field_head(1, sum(map(len, info))), *info]
    if filling(dataset, only):
        again = PutCommand(dataset.name, only, generation=dataset.generation, seen=seen).encode()
        parts.append(wire.field(2, wire.command_descriptor(again)))
    parts.append(wire.double_field(3, await progress(dataset, only)))
    ends_at = _expiration(dataset)
    if ends_at is not None:
        parts.append(wire.field(4, wire.timestamp(ends_at)))
    return b"".join(parts)


def filling(dataset: Dataset, only: int | None) -> bool:
    """Whether more is to come of the dataset, or of its one partition."""
    return dataset.filling and (only is None or dataset.partition(only).state is PartitionState.OPEN)


async def next_look(dataset: Dataset, seen: int) -> None:
    """Return when a filling dataset's :meth:`Attachment.look` no longer gives ``seen``. Cancelling is safe."""
    while True:
        now, changes = dataset.attached.look(dataset)
        if now != seen or not dataset.filling:
            return
        await changes.next()


async def progress(dataset: Dataset, only: int | None = None) -> float:
    """The share of committed producers if their number is declared, else of sealed partitions."""
    if dataset.sealed or (only is not None and dataset.partition(only).state is PartitionState.SEALED):
        return 1.0
    if dataset.producers:
        return min(1.0, dataset.attempts.committed_producers / dataset.producers)
    done = 0
    async for partition in in_slices(dataset.partitions()):
        done += partition.state is PartitionState.SEALED
    return done / dataset.partition_count
