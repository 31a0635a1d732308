"""The Flight RPCs over grpc.aio, and the only place where errors become gRPC status.

Requests and answers are bytes, so a frame goes out as it came in.

Errors
    Every failed call carries ``x-flight-shuffle-error``: JSON with the error's code, message and detail. UNAVAILABLE,
    UNAUTHENTICATED, PERMISSION_DENIED and INTERNAL also carry it in ``grpc-status-details-bin``, with the trailer
    ``x-arrow-status: 5``, without which pyarrow drops it; with the other statuses it would change the error's class.
    A bug answers INTERNAL with only an id, which the log has beside the traceback.

Cancelling
    grpc.aio cancels a handler at any await when the client cancels or its connection breaks. Handlers leave by
    ``finally`` and context managers. None raises a CancelledError of its own: its client would get no status until its
    deadline. Neither would one whose headers were cut off (``answer_headers``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import grpc

from flight_server.access import (
    ANONYMOUS,
    AUTHORIZATION,
    OPERATIONS,
    SECOND_AUTHORIZATION,
    Authenticator,
    Principal,
    open_stream,
    token_in,
)
from flight_server.datasets import Caller, Dataset
from flight_server.protocol import (
    ACTIONS,
    ERROR_TRAILER,
    FlightShuffleError,
    InvalidRequest,
    OutOfBudget,
    PutCommand,
    ReaderTooSlow,
    Unsupported,
    ipc_framing,
    wire,
)
from flight_server.reporting import (
    Calls,
    Locations,
    ServedCall,
    filling,
    flight_info,
    info_bytes,
    next_look,
    poll_info,
)
from flight_server.tiering import Reader
from flight_server.transfer import (
    MAX_CONTROL_BYTES,
    MadeAnswer,
    PutReceiver,
    Reads,
    action_limit_bytes,
    check_size,
    counted,
    parse_descriptor,
)

from .actions import Actions
from .answer_headers import SHORT_BYTES, send_answer, send_headers
from .grpc_get import GrpcGet
from .grpc_put import take_put
from .pending_reads import PendingReads

SERVICE = "arrow.flight.protocol.FlightService"
POLL_SECONDS = 10.0
LAST_WORDS_SECONDS = 1.0

_DETAILS = "grpc-status-details-bin"
_ARROW_STATUS = ("x-arrow-status", "5")  # IOError, under which pyarrow keeps class and extra_info
_WITH_DETAILS = {"UNAVAILABLE", "UNAUTHENTICATED", "PERMISSION_DENIED", "INTERNAL"}

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types
Handler = Callable[..., Awaitable[Any]]


@dataclass(eq=False)
class FlightService:
    """The RPCs of one server. ``joins``: small frames may be joined, because each one that comes is fully checked."""

    reads: Reads
    puts: PutReceiver
    actions: Actions
    locations: Locations
    calls: Calls
    authenticator: Authenticator
    pending: PendingReads
    joins: bool

    def __post_init__(self) -> None:
        self._catalogue = self.puts.catalogue
        self._get = GrpcGet(self.puts, self.reads, joins=self.joins)

    def handlers(self) -> Any:
        # On the wire a call with one request is one that streams its requests. gRPC would receive the one request
        # before it calls the handler, so before the token was checked.
        one = grpc.stream_unary_rpc_method_handler
        many = grpc.stream_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Handshake": many(self._guard("Handshake", self.handshake)),
                "ListFlights": many(self._single("ListFlights", self.list_flights)),
                # One answer each, written by the handler: it holds room until the client has taken it.
                "GetFlightInfo": many(self._single("GetFlightInfo", self.get_flight_info)),
                "PollFlightInfo": many(self._single("PollFlightInfo", self.poll_flight_info)),
                "GetSchema": one(self._single("GetSchema", self.get_schema)),
                "DoGet": many(self._single("DoGet", self.do_get)),
                "DoPut": many(self._guard("DoPut", self.do_put)),
                "DoExchange": many(self._guard("DoExchange", self.do_exchange)),
                "DoAction": many(self._single("DoAction", self.do_action, limit_bytes=sys.maxsize)),
                "ListActions": many(self._single("ListActions", self.list_actions)),
            },
        )

    def _single(self, rpc: str, handler: Handler, *, limit_bytes: int = MAX_CONTROL_BYTES) -> Handler:
        """The guarded handler of calls that have one request."""

        @wraps(handler)
        async def single(_: AsyncIterator[bytes], context: Context, caller: Caller, call: ServedCall) -> Any:
            # No variable here holds the request while it is handled.
            return await handler(await self._request(context, limit_bytes), context, caller, call)

        return self._guard(rpc, single)

    async def _request(self, context: Context, limit_bytes: int) -> bytes:
        request = await self.pending.request(context)
        if request is None:
            raise InvalidRequest("the call ended before its request")
        check_size(len(request), "the request", limit_bytes)
        return request

    def _guard(self, rpc: str, handler: Handler) -> Handler:
        """The handler with a row of the table of access before it, and the mapping of errors around it."""
        operation = OPERATIONS[rpc]

        async def guarded(requests: AsyncIterator[bytes], context: Context) -> Any:
            call = ServedCall("grpc", rpc, context.peer())
            self.calls.begin(call, lambda name: _metadata(context).get(name))
            try:
                principal = ANONYMOUS if operation.is_open else self._principal(context)
                call.principal = principal.name
                async with self.calls.running.call(principal):
                    with self._catalogue.usages.calls_of(principal):
                        # No variable: gRPC keeps the exception that ends a call, and so this frame.
                        return await handler(
                            requests,
                            context,
                            Caller(self._catalogue, principal, operation, call.peer),
                            call,
                        )
            except (grpc.aio.BaseError, grpc.RpcError, asyncio.CancelledError):
                self.calls.left(call)
                raise  # aborted already, or the client is gone: no answer is possible
            except Exception as error:  # noqa: BLE001  # the text of an unknown exception must not go on the wire
                answer = self.calls.failed(call, error)
            finally:
                self.calls.ended(call)
                del call
            # Outside the except clauses, so that the exception has no context.
            try:
                await _abort(context, answer)
            finally:
                if isinstance(answer, ReaderTooSlow):
                    answer.held = None  # gRPC keeps the exception that ends the call, and so this frame
            return None

        return guarded

    def _principal(self, context: Context) -> Principal:
        """Raises as :meth:`Authenticator.principal`."""
        metadata = _metadata(context)
        return self.authenticator.principal(metadata.get(AUTHORIZATION), metadata.get(SECOND_AUTHORIZATION))

    async def handshake(
        self, _: AsyncIterator[bytes], context: Context, caller: Caller, call: ServedCall
    ) -> None:
        """Exchange the credentials in the request's headers for their token, in the answer's header ``authorization``.
        Raises Unauthenticated: there are none, or they are wrong.
        """
        headers: tuple[tuple[str, str], ...] = ()
        if self.authenticator.wants_token:
            metadata = _metadata(context)
            header = metadata.get(SECOND_AUTHORIZATION) or metadata.get(AUTHORIZATION)
            self.authenticator.principal(header)
            headers = ((AUTHORIZATION, f"Bearer {token_in(header or '')}"),)
        await send_headers(context, headers)

    async def list_flights(self, request: bytes, context: Context, caller: Caller, call: ServedCall) -> None:
        """The FlightInfo of each dataset whose name starts with the criteria, except failed and dropped ones."""
        try:
            prefix = wire.bytes_field(request, 1, "Criteria").decode()
        except UnicodeDecodeError:
            raise InvalidRequest(
                "the criteria is a prefix of dataset names, so it must be UTF-8 text"
            ) from None
        await send_headers(context)
        for dataset in caller.listed(prefix):
            try:
                if caller.find(dataset.name, dataset.generation) is dataset:
                    await self._send_info(flight_info, dataset, None, context)
            except (OutOfBudget, ReaderTooSlow):
                raise
            except FlightShuffleError:
                continue

    async def get_flight_info(
        self, request: bytes, context: Context, caller: Caller, call: ServedCall
    ) -> None:
        dataset, partition = _find(parse_descriptor(request), caller, call)
        await send_headers(context)
        await self._send_info(flight_info, dataset, partition, context)

    async def poll_flight_info(
        self, request: bytes, context: Context, caller: Caller, call: ServedCall
    ) -> None:
        """The PollInfo of the dataset or partition that the descriptor names: at once, or, with the descriptor of an
        earlier answer, when it has changed since (with versions: has another one), or is full, or after
        ``POLL_SECONDS`` or half of the call's time left, whichever is first.
        """
        named = parse_descriptor(request)
        dataset, partition = _find(named, caller, call)
        remaining = context.time_remaining()
        patience = POLL_SECONDS if remaining is None else min(POLL_SECONDS, remaining / 2)
        if named.seen is not None and filling(dataset, partition) and dataset.failure is None:
            with (
                self.puts.admission.waits.enter(
                    "producer", dataset=dataset.name, peer=context.peer(), deadline_seconds=patience
                ),
                suppress(TimeoutError),
            ):
                async with asyncio.timeout(patience):
                    await next_look(dataset, named.seen)
        await send_headers(context)
        await self._send_info(poll_info, dataset, partition, context)

    async def _send_info(self, make: Any, dataset: Dataset, only: int | None, context: Context) -> None:
        """Write the ``flight_info`` or ``poll_info`` of the dataset, or of ``only`` one partition, with room for it.

        Raises:
            OutOfBudget, ReaderTooSlow: see :meth:`AnswerRoom.send`.
            FlightShuffleError: see :func:`flight_info`; nothing was written.
        """
        parts = self.locations, dataset, only
        answer = MadeAnswer(info_bytes(*parts), partial(make, *parts))
        await self.puts.answer_room.send(answer, context.write, Reader(dataset.name, 0, context.peer()))

    async def get_schema(self, request: bytes, context: Context, caller: Caller, call: ServedCall) -> bytes:
        dataset, _ = _find(parse_descriptor(request), caller, call)
        schema = await self.reads.schema_of(dataset, Reader(dataset.name, 0, context.peer()))
        return wire.field(1, ipc_framing.encapsulate(schema.header))

    async def do_get(self, request: bytes, context: Context, caller: Caller, call: ServedCall) -> None:
        messages = [wire.bytes_field(request, 1, "Ticket")]
        del request
        with open_stream():
            await self._get.serve(messages.pop(), context, caller, call)

    async def do_put(
        self, requests: AsyncIterator[bytes], context: Context, caller: Caller, call: ServedCall
    ) -> None:
        self._catalogue.check_open()
        await take_put(self.puts, self.pending, context, caller, call)

    async def do_exchange(
        self, requests: AsyncIterator[bytes], context: Context, caller: Caller, call: ServedCall
    ) -> None:
        """Refused: no computation here needs both directions at once."""
        raise Unsupported("this server has no DoExchange: write with DoPut and read with DoGet")

    async def do_action(self, request: bytes, context: Context, caller: Caller, call: ServedCall) -> None:
        try:
            action = wire.bytes_field(request, 1, "Action").decode()
        except UnicodeDecodeError:
            raise InvalidRequest("the action's name is not UTF-8 text") from None
        check_size(
            len(request), f"the action {action!r}", action_limit_bytes(action, self.puts.max_schema_bytes)
        )
        if action in ACTIONS:
            call.operation = f"DoAction {action}"
        body = wire.bytes_field(request, 2, "Action")
        del request
        answers, reader = self.puts.answer_room, Reader("", 0, context.peer())
        async with counted(self.puts.admission, action, body, context.peer()):
            data, room = await answers.made(await self.actions.run(action, body, caller), reader)
        del body
        data = wire.field(1, data)
        if len(data) <= SHORT_BYTES:
            await send_answer(context, data)
        else:
            await send_headers(context)
            await answers.delivery.deliver(context.write, data, reader, room=room)

    async def list_actions(self, request: bytes, context: Context, caller: Caller, call: ServedCall) -> None:
        await send_headers(context)
        for name, description in ACTIONS.items():
            await context.write(wire.field(1, name.encode()) + wire.field(2, description.encode()))


def _find(named: PutCommand, caller: Caller, call: ServedCall) -> tuple[Dataset, int | None]:
    """The dataset that a descriptor names, of the named generation, if any, and the named partition, if any. Raises
    NotFound, Forbidden, StaleTicket, OutOfBudget: see :meth:`Caller.find` and :meth:`Dataset.partition`.
    """
    call.dataset, call.partition = named.dataset, named.partition
    dataset = caller.find(named.dataset, named.generation)
    if named.partition is not None:
        dataset.partition(named.partition)
    return dataset, named.partition


def _metadata(context: Context) -> dict[str, str]:
    """The first value of each key."""
    return {
        key: value if isinstance(value, str) else value.decode("latin-1")
        for key, value in reversed(tuple(context.invocation_metadata()))
    }


async def _abort(context: Context, error: FlightShuffleError) -> None:
    text = error.to_json()
    trailers: list[tuple[str, str | bytes]] = [(ERROR_TRAILER, text)]
    if error.status in _WITH_DETAILS:
        trailers += [_ARROW_STATUS, (_DETAILS, text.encode())]
    # The status follows what was written before, so a peer that takes nothing does not get it: gRPC then cancels its
    # call, and releases its messages.
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_SECONDS):
            await context.abort(getattr(grpc.StatusCode, error.status), error.message, tuple(trailers))
