"""The Flight actions: what each one does with its body. ``protocol.ACTIONS`` lists them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Awaitable, Callable

import pyarrow as pa
from pyarrow import flight

from . import flight_sql, reports, wire
from .acknowledgements import ACKNOWLEDGE, AcknowledgeRequest
from .core import Core
from .dataset import Dataset
from .decoder import COSTLY_HEADER_BYTES, SchemaMessage
from .errors import BadFrame, InvalidRequest, Unsupported
from .infos import expiration, put_locations, timestamp_scalar
from .protocol import ACTIONS, CreateRequest, DatasetRequest, Kind, SealRequest, Ticket
from .schema_size import measure
from .schema_text import check_text
from .sinks import seal
from .strict_json import dump_json, parse_json


async def run(core: Core, action: str, body: bytes) -> bytes:
    """The body of the action's one result.

    Raises:
        Unsupported: there is no such action.
        FlightShuffleError: what the action says.
    """
    handler = _HANDLERS.get(action)
    if handler is None:
        what = "this is not a Flight SQL server: " if action in flight_sql.ACTIONS else ""
        shown = action if len(action) <= 80 else action[:80] + "…"
        raise Unsupported(f"{what}there is no action {shown!r}; there are {', '.join(ACTIONS)}")
    return await handler(core, body)


def decode_schema(text: str) -> SchemaMessage:
    """The schema of a ``create``: an IPC schema message in base64.

    Raises:
        InvalidRequest: it is not.
    """
    try:
        message = base64.b64decode(text, validate=True)
        measure(wire.schema_header(message))
        schema = pa.ipc.read_schema(pa.py_buffer(message))
        check_text(schema)
    except (binascii.Error, BadFrame, pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRequest(
            f"create: 'schema' is not an Arrow IPC schema message in base64: {error}"
        ) from None
    return SchemaMessage.of(schema)


def _no_arguments(body: bytes, action: str) -> None:
    if parse_json(body, action):
        raise InvalidRequest(f"{action} takes no arguments")


def _source_creation() -> Callable[..., Awaitable[tuple[Dataset, bool]]]:
    from . import sources  # noqa: PLC0415  # Parquet's libraries only where a source is asked for

    return sources.create


async def _create(core: Core, body: bytes) -> bytes:
    request = CreateRequest.parse(body)
    if request.kind is Kind.CHANGELOG:
        raise InvalidRequest(
            f"create: this server does not have kind {request.kind.value!r} yet; use stream, shuffle or source"
        )
    schema = None
    if request.schema is not None:
        # In a thread where it is large: its texts are looked at one by one.
        large = len(request.schema) > COSTLY_HEADER_BYTES
        schema = (
            await asyncio.to_thread(decode_schema, request.schema) if large else decode_schema(request.schema)
        )
    if request.kind is Kind.SOURCE:
        # Imported when first needed, and in a thread: Parquet costs 9 MiB and a tenth of a second.
        create = await asyncio.to_thread(_source_creation)
        dataset, created = await create(core, request, schema)
    else:
        dataset, created = core.catalogue.create(request, schema)
    return dump_json(
        {
            "dataset": dataset.name,
            "generation": dataset.generation,
            "created": created,
            "put_locations": put_locations(core),
        }
    )


async def _seal(core: Core, body: bytes) -> bytes:
    request = SealRequest.parse(body)
    dataset = core.catalogue.find(request.dataset, request.generation)
    await seal(core, dataset, request.attempts)
    return dump_json(
        {
            "dataset": dataset.name,
            "generation": dataset.generation,
            "rows": dataset.rows,
            "frames": sum(partition.totals.frames for partition in dataset.partitions()),
            "bytes": dataset.total_bytes,
        }
    )


async def _drop(core: Core, body: bytes) -> bytes:
    request = DatasetRequest.parse(body, "drop", needed=True)
    assert request.dataset is not None
    dataset = await core.catalogue.remove(request.dataset, request.generation)
    return dump_json({"dropped": dataset.name, "generation": dataset.generation})


async def _renew(core: Core, body: bytes) -> bytes:
    request = DatasetRequest.parse(body, "renew", needed=True)
    assert request.dataset is not None
    dataset = core.catalogue.find(request.dataset, request.generation)
    dataset.touch()
    return dump_json({"dataset": dataset.name, "lease_left_seconds": dataset.lease_left_seconds})


async def _acknowledge(core: Core, body: bytes) -> bytes:
    request = AcknowledgeRequest.parse(body)
    dataset = core.catalogue.find(request.dataset, request.generation)
    dataset.partition(request.partition).acknowledge(request.reader, request.frames, time.monotonic())
    dataset.touch()
    return dump_json({"frames": request.frames})


async def _statistics(core: Core, body: bytes) -> bytes:
    return dump_json(await reports.statistics(core, reports.Page.parse(body, "statistics")))


async def _why(core: Core, body: bytes) -> bytes:
    return dump_json(reports.why(core, reports.Page.parse(body, "why")))


async def _locations(core: Core, body: bytes) -> bytes:
    _no_arguments(body, "locations")
    known = [location for location in (core.location, core.http_location) if location is not None]
    return dump_json({"locations": known, "put_locations": put_locations(core)})


async def _drain(core: Core, body: bytes) -> bytes:
    _no_arguments(body, "drain")
    core.catalogue.draining = True
    core.drain_requested.set()
    return dump_json({"draining": True, "grace_seconds": core.settings.drain_grace_seconds})


async def _cancel_flight_info(core: Core, body: bytes) -> bytes:
    # Not as pyarrow's objects: of a FlightInfo of 64 MiB they can take several GiB.
    info = wire.first_field(body, 1, "CancelFlightInfoRequest") or b""
    endpoint = wire.first_field(info, 3, "FlightInfo")
    if endpoint is None:
        raise InvalidRequest("CancelFlightInfo: the FlightInfo has no endpoint, so it names no dataset")
    ticket = Ticket.parse(
        wire.bytes_field(wire.first_field(endpoint, 1, "FlightEndpoint") or b"", 1, "Ticket")
    )
    await core.catalogue.remove(ticket.dataset, ticket.generation)
    return wire.varint_field(1, wire.CANCEL_STATUS_CANCELLED)


async def _renew_flight_endpoint(core: Core, body: bytes) -> bytes:
    serialized = wire.bytes_field(body, 1, "RenewFlightEndpointRequest")
    wire.check_few_fields(serialized, "FlightEndpoint")
    try:
        endpoint = flight.FlightEndpoint.deserialize(serialized)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRequest(f"RenewFlightEndpoint: not a FlightEndpoint: {error}") from None
    dataset, _ = core.catalogue.resolve(Ticket.parse(endpoint.ticket.ticket))
    dataset.touch()
    ends_at = expiration(dataset)
    expires = None if ends_at is None else timestamp_scalar(ends_at)
    renewed = flight.FlightEndpoint(endpoint.ticket, endpoint.locations, expires)
    return bytes(renewed.serialize())


_HANDLERS: dict[str, Callable[[Core, bytes], Awaitable[bytes]]] = {
    "create": _create,
    "seal": _seal,
    "drop": _drop,
    "renew": _renew,
    ACKNOWLEDGE: _acknowledge,
    "statistics": _statistics,
    "why": _why,
    "locations": _locations,
    "drain": _drain,
    "CancelFlightInfo": _cancel_flight_info,
    "RenewFlightEndpoint": _renew_flight_endpoint,
}
