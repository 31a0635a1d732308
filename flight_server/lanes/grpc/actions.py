"""The Flight actions, which ``protocol.ACTIONS`` lists. A kind of dataset has some of its own."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from flight_server.access import OPERATIONS, Permission
from flight_server.concurrency import dumped, in_thread
from flight_server.datasets import Caller, Dataset, dropped_by, own_start, server_count
from flight_server.frames import COSTLY_HEADER_BYTES, SchemaMessage, check_text, measure
from flight_server.protocol import (
    ACKNOWLEDGE,
    ACTIONS,
    COPIES,
    PLAN,
    AcknowledgeRequest,
    BadFrame,
    CopiesRequest,
    CopyVerb,
    CreateRequest,
    DatasetRequest,
    InvalidRequest,
    PlanRequest,
    Request,
    SealRequest,
    Ticket,
    Unsupported,
    flight_sql,
    ipc_framing,
    parse_json,
    wire,
)
from flight_server.reporting import (
    ListedPage,
    Locations,
    Observed,
    Page,
    lease_field,
    statistics_answer,
    why_answer,
)
from flight_server.tiering import Loading
from flight_server.transfer import MadeAnswer, Offloads, plan_bytes, plan_json

LARGE_BODY_BYTES = 64 << 10
R = TypeVar("R", bound=Request)
_Answer = bytes | dict[str, Any] | MadeAnswer
_Handler = Callable[[bytes, Caller], Awaitable[_Answer]]


@dataclass(eq=False)
class Actions:
    """The actions of one server."""

    observed: Observed
    locations: Locations
    offloads: Offloads
    loading: Loading
    drain_requested: asyncio.Event
    drain_grace_seconds: float

    def __post_init__(self) -> None:
        self._catalogue, self._kinds = self.observed.catalogue, self.observed.kinds
        self._rows = {name: OPERATIONS[f"action {name}"] for name in (*_HANDLERS, *self._kinds.actions)}

    async def run(self, action: str, body: bytes, caller: Caller) -> MadeAnswer:
        """The body of the action's one result; a large one is yet to be made. Raises Unsupported: there is no such
        action; Forbidden, NotFound: see :class:`Caller`.
        """
        operation = self._rows.get(action)
        if operation is None:
            what = "this is not a Flight SQL server: " if action in flight_sql.ACTIONS else ""
            shown = action if len(action) <= 80 else action[:80] + "…"
            raise Unsupported(f"{what}there is no action {shown!r}; there are {', '.join(ACTIONS)}")
        caller = caller.doing(operation)
        handler: _Handler = self._kinds.actions.get(action) or partial(_HANDLERS[action], self)
        answer = await handler(body, caller)
        return answer if isinstance(answer, MadeAnswer) else MadeAnswer.of(answer)

    async def _create(self, body: bytes, caller: Caller) -> dict[str, Any]:
        request = await _parsed(CreateRequest, body)
        caller.check(request.dataset)
        if request.keep is not None and request.keep.emit is not None:
            caller.check_permission(Permission.WRITE, request.keep.emit, ", to which the rule emits")
        schema = None
        if request.schema is not None:
            # A large one in a thread: its texts are checked one by one.
            large, text = len(request.schema) > COSTLY_HEADER_BYTES, request.schema
            schema = await asyncio.to_thread(decode_schema, text) if large else decode_schema(text)
        dataset, created = await self._kinds[request.kind].create(request, schema)
        repeated = request.mode is not None and self._catalogue.staged.mode_of(dataset) is None
        return {
            "dataset": dataset.name,
            "generation": dataset.generation,
            "created": created,
            "lease_seconds": dataset.lease_seconds,
            "put_locations": self.locations.puts,
            **({"repeated": True} if repeated else {}),
        }

    async def _seal(self, body: bytes, caller: Caller) -> bytes:
        request = await _parsed(SealRequest, body)
        caller.check(request.dataset, request.generation)
        stored: list[str] = []
        sealed = self._catalogue.staged.appended(request.dataset, request.generation)
        if sealed is None:
            dataset = caller.find(request.dataset, request.generation)
            if request.offload is not None:
                self.offloads.check(dataset, request.offload)  # before anything is sealed
            sealed = await self._kinds[dataset.kind].seal(dataset, request)
            if request.offload is not None:
                stored.append(await self.offloads.write(dataset, request.offload))
        if request.largest is None:
            answer = sealed.to_json()
        else:  # of up to a million partitions
            answer = await asyncio.to_thread(sealed.to_json, request.largest)
        return await dumped(
            {
                "dataset": request.dataset,
                **answer,
                "read_locations": [*self.locations.reads, *filter(None, [self.locations.http]), *stored],
                **({} if request.servers is None else {"start": own_start()}),
            }
        )

    async def _drop(self, body: bytes, caller: Caller) -> dict[str, Any]:
        request = DatasetRequest.parse(body, "drop", needed=True)
        assert request.dataset is not None
        caller.check(request.dataset, request.generation)
        if request.staged:
            dataset = await self._catalogue.remove(
                request.dataset, request.generation, staged=True, why=dropped_by(caller.peer)
            )
        else:
            if (aside := await self._catalogue.drop_quarantined(request.dataset)) is not None:
                return {"dropped": request.dataset, "generation": aside, "server_count": 0}
            dataset = await self._remove(request.dataset, request.generation, caller)
        return {
            "dropped": request.dataset,
            "generation": dataset.generation,
            "server_count": server_count(dataset),
        }

    async def _remove(self, name: str, generation: str | None, caller: Caller) -> Dataset:
        """Raises as :meth:`Caller.check` and :meth:`Catalogue.remove`."""
        caller.check(name, generation)
        if generation is not None:
            self._catalogue.dropped_runs.add(name, generation)
        dataset = await self._catalogue.remove(name, generation, why=dropped_by(caller.peer))
        await self.offloads.forget(dataset)
        return dataset

    async def _renew(self, body: bytes, caller: Caller) -> dict[str, Any]:
        request = DatasetRequest.parse(body, "renew", needed=True)
        assert request.dataset is not None
        dataset = caller.find(request.dataset, request.generation)
        dataset.renew()
        return {
            "dataset": request.dataset,
            "lease_left_seconds": dataset.lease_left_seconds,
            "server_count": server_count(dataset),
        }

    async def _acknowledge(self, body: bytes, caller: Caller) -> dict[str, Any]:
        request = AcknowledgeRequest.parse(body)
        dataset = caller.portion_of(request.dataset, request.generation, request.start)
        dataset.partition(request.partition).acknowledge(request.reader, request.frames, time.monotonic())
        dataset.touch()
        return {"frames": request.frames}

    async def _plan(self, body: bytes, caller: Caller) -> MadeAnswer:
        request = PlanRequest.parse(body)
        dataset = caller.portion_of(request.dataset, request.generation, request.start)
        return MadeAnswer(
            await plan_bytes(dataset, request), partial(plan_json, dataset, request, self.loading)
        )

    async def _copies(self, body: bytes, caller: Caller) -> dict[str, Any]:
        request = CopiesRequest.parse(body)
        copies, content = self._catalogue.copies, (request.dataset, request.generation)
        host, file = request.host or "", request.file or ""
        caller.check(*content)
        match request.verb:
            case CopyVerb.KEEP:
                caller.find(*content)
                return {"withdrawn": copies.keep(content, host, file, caller.sees)}
            case CopyVerb.FETCH:
                caller.find(*content)
                where = (request.location, request.lost)
                return {"from": copies.fetch(content, host, file, *where)}
            case CopyVerb.FETCHED:
                copies.fetched(content, host)
                return {}
            case CopyVerb.REMOVED:
                copies.removed(host, file, caller.sees)
                return {}
            case CopyVerb.WITHDRAW:
                caller.check_permission(Permission.WRITE, request.dataset)
                copies.withdraw(content)
                return {}
            case CopyVerb.WHICH:
                kept, withdrawn = copies.which(content)
                gone = not self._catalogue.leads_to(*content)
                return {"kept": kept, "withdrawn": withdrawn, "gone": gone}

    async def _statistics(self, body: bytes, caller: Caller) -> MadeAnswer:
        return statistics_answer(self.observed, ListedPage.parse(body, "statistics"), caller)

    async def _why(self, body: bytes, caller: Caller) -> MadeAnswer:
        return why_answer(self.observed, Page.parse(body, "why"), caller)

    async def _locations(self, body: bytes, _: Caller) -> dict[str, Any]:
        _no_arguments(body, "locations")
        lanes = self.locations
        servers = lanes.servers or list(filter(None, [lanes.grpc]))
        known = {"locations": lanes.known, "put_locations": lanes.puts, "servers": servers}
        return {**known, "start": own_start(), "offload_to": self.offloads.prefixes}

    async def _drain(self, body: bytes, _: Caller) -> dict[str, Any]:
        _no_arguments(body, "drain")
        self._catalogue.draining = True
        self.drain_requested.set()
        return {"draining": True, "grace_seconds": self.drain_grace_seconds}

    async def _cancel_flight_info(self, body: bytes, caller: Caller) -> bytes:
        # Without pyarrow's objects: those of a FlightInfo of 64 MiB can take several GiB.
        info = wire.first_field(body, 1, "CancelFlightInfoRequest") or b""
        endpoint = wire.first_field(info, 3, "FlightInfo")
        if endpoint is None:
            raise InvalidRequest("CancelFlightInfo: the FlightInfo has no endpoint, so it names no dataset")
        ticket = Ticket.parse(
            wire.bytes_field(wire.first_field(endpoint, 1, "FlightEndpoint") or b"", 1, "Ticket")
        )
        dataset = await self._remove(ticket.dataset, ticket.generation, caller)
        # Of several servers each other one keeps its part until it is asked, or the lease ends.
        last = server_count(dataset) == 1
        return wire.varint_field(1, wire.CANCEL_STATUS_CANCELLED if last else wire.CANCEL_STATUS_CANCELLING)

    async def _renew_flight_endpoint(self, body: bytes, caller: Caller) -> bytes:
        serialized = wire.bytes_field(body, 1, "RenewFlightEndpointRequest")
        wire.check_few_fields(serialized, "FlightEndpoint")
        ticket = wire.bytes_field(serialized, 1, "FlightEndpoint")
        dataset, _ = caller.resolve(Ticket.parse(wire.bytes_field(ticket, 1, "Ticket")))
        dataset.renew()
        locations = (
            wire.field(number, value)
            for number, value in wire.fields(serialized)
            if number == 2 and not isinstance(value, int)
        )
        return wire.field(1, ticket) + b"".join(locations) + lease_field(dataset)


async def _parsed(kind: type[R], body: bytes) -> R:
    """The request, parsed in a thread if it is large; a cancellation comes after that. Raises InvalidRequest."""
    if len(body) <= LARGE_BODY_BYTES:
        return kind.parse(body)
    return await in_thread(None, partial(kind.parse, body, in_thread=True))


def decode_schema(text: str) -> SchemaMessage:
    """The schema of a ``create``: an IPC schema message in base64. Raises InvalidRequest: it is not one."""
    try:
        message = base64.b64decode(text, validate=True)
        measure(ipc_framing.schema_header(message))
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


_HANDLERS: dict[str, Callable[[Actions, bytes, Caller], Awaitable[_Answer]]] = {
    "create": Actions._create,
    "seal": Actions._seal,
    "drop": Actions._drop,
    "renew": Actions._renew,
    ACKNOWLEDGE: Actions._acknowledge,
    COPIES: Actions._copies,
    PLAN: Actions._plan,
    "statistics": Actions._statistics,
    "why": Actions._why,
    "locations": Actions._locations,
    "drain": Actions._drain,
    "CancelFlightInfo": Actions._cancel_flight_info,
    "RenewFlightEndpoint": Actions._renew_flight_endpoint,
}
