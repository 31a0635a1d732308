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
    deadline.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any

import grpc
import structlog

from flight_server.access import authorize, check
from flight_server.concurrency import Running
from flight_server.datasets import Dataset, held
from flight_server.protocol import (
    ACTIONS,
    ERROR_TRAILER,
    FlightShuffleError,
    InternalError,
    InvalidRequest,
    OutOfBudget,
    PutCommand,
    ReaderTooSlow,
    Unauthenticated,
    Unsupported,
    ipc_framing,
    original,
    wire,
)
from flight_server.reporting import Locations, filling, flight_info, info_bytes, next_look, poll_info
from flight_server.tiering import Reader
from flight_server.transfer import (
    MAX_CONTROL_BYTES,
    PutReceiver,
    Reads,
    action_limit_bytes,
    check_size,
    counted,
    parse_descriptor,
)

from .actions import Actions
from .first_messages import FirstMessages
from .grpc_get import GrpcGet
from .grpc_put import take_put

SERVICE = "arrow.flight.protocol.FlightService"
POLL_SECONDS = 10.0
HANDSHAKE_SECONDS = 10.0
LAST_WORDS_SECONDS = 1.0

_DETAILS = "grpc-status-details-bin"
_ARROW_STATUS = ("x-arrow-status", "5")  # IOError, under which pyarrow keeps class and extra_info
_WITH_DETAILS = {"UNAVAILABLE", "UNAUTHENTICATED", "PERMISSION_DENIED", "INTERNAL"}

_log = structlog.get_logger("flight_server.lanes.grpc.service")

Context = Any  # grpc.aio.ServicerContext: grpcio publishes no types
Handler = Callable[..., Awaitable[Any]]


class FlightService:
    """The RPCs of one server."""

    def __init__(
        self,
        reads: Reads,
        puts: PutReceiver,
        actions: Actions,
        locations: Locations,
        running: Running,
        *,
        token: str | None,
        max_schema_bytes: int,
        stall_seconds: float,
    ) -> None:
        self._reads = reads
        self._puts = puts
        self._actions = actions
        self._locations = locations
        self._running = running
        self._catalogue = puts.catalogue
        self._waits = puts.admission.waits
        self._get = GrpcGet(self._catalogue, reads, puts.kinds)
        self._first = FirstMessages(stall_seconds)
        self._token = token
        self._max_schema_bytes = max_schema_bytes

    def handlers(self) -> Any:
        # On the wire a call with one request is one that streams its requests. gRPC would receive the one request
        # before it calls the handler, so before the token was checked.
        one = grpc.stream_unary_rpc_method_handler
        many = grpc.stream_stream_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Handshake": many(self._guard(self.handshake, authorized=False)),
                "ListFlights": many(self._single(self.list_flights)),
                # One answer each, written by the handler: it holds room until the client has taken it.
                "GetFlightInfo": many(self._single(self.get_flight_info)),
                "PollFlightInfo": many(self._single(self.poll_flight_info)),
                "GetSchema": one(self._single(self.get_schema)),
                "DoGet": many(self._single(self.do_get)),
                "DoPut": many(self._guard(self.do_put)),
                "DoExchange": many(self._guard(self.do_exchange)),
                "DoAction": many(self._single(self.do_action, limit_bytes=sys.maxsize)),
                "ListActions": many(self._single(self.list_actions)),
            },
        )

    def _single(self, handler: Handler, *, limit_bytes: int = MAX_CONTROL_BYTES) -> Handler:
        """The guarded handler of calls that have one request."""

        @wraps(handler)
        async def single(_: AsyncIterator[bytes], context: Context) -> Any:
            # No variable here holds the request while it is handled.
            return await handler(await self._request(context, limit_bytes), context)

        return self._guard(single)

    async def _request(self, context: Context, limit_bytes: int) -> bytes:
        request = await self._first.read(context)
        if request is None:
            raise InvalidRequest("the call ended before its request")
        check_size(len(request), "the request", limit_bytes)
        return request

    def _guard(self, handler: Handler, *, authorized: bool = True) -> Handler:
        """The handler with authorization before it, and the mapping of errors around it."""

        async def guarded(requests: AsyncIterator[bytes], context: Context) -> Any:
            try:
                async with self._running.call():
                    if authorized:
                        self._authorize(context)
                    return await handler(requests, context)
            except FlightShuffleError as error:
                # A fresh one: gRPC keeps the exception that ends a call, and its traceback would keep the variables of
                # the call's Python frames.
                answer: FlightShuffleError = error.fresh()
            except (grpc.aio.BaseError, grpc.RpcError):
                raise  # aborted already, or the client is gone: no answer is possible
            except Exception as bug:  # noqa: BLE001  # the text of an unknown exception must not go on the wire
                error_id = secrets.token_hex(6)
                _log.error("internal_error", error_id=error_id, rpc=handler.__name__, exc_info=bug)
                answer = InternalError(
                    f"internal error {error_id}: the server's log has the cause under this id",
                    error_id=error_id,
                )
            # Outside the except clauses, so that the exception has no context.
            try:
                await _abort(context, answer)
            finally:
                if isinstance(answer, ReaderTooSlow):
                    answer.held = None  # gRPC keeps the exception that ends the call, and so this frame
            return None

        return guarded

    def _authorize(self, context: Context) -> None:
        header, legacy = _metadata(context, "authorization"), _metadata(context, "auth-token-bin")
        authorize(self._token, header, None if legacy is None else legacy.encode("latin-1"))

    async def handshake(self, _: AsyncIterator[bytes], context: Context) -> None:
        """Exchange credentials for the token, in the answer's header ``authorization``. A client without that header
        sends a first message, the token or a ``BasicAuth`` with it as the password, and gets the token as a message,
        too.

        Raises:
            Unauthenticated: the credentials are wrong, or the client has not ended within ``HANDSHAKE_SECONDS``.
        """
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._shake_hands(context)
        except TimeoutError:
            raise Unauthenticated(f"the handshake has not ended within {HANDSHAKE_SECONDS:g} s") from None

    async def _shake_hands(self, context: Context) -> None:
        token = self._token
        if token is not None:
            by_message = _metadata(context, "authorization") is None
            if by_message:
                _check_handshake(token, await self._first.read(context) or b"")
            else:
                self._authorize(context)
            await context.send_initial_metadata((("authorization", f"Bearer {token}"),))
            if by_message:
                await context.write(wire.field(2, token.encode()))
        while (request := await self._first.read(context)) is not None:
            payload = wire.bytes_field(request, 2, "HandshakeRequest")
            await context.write(wire.field(2, payload) if payload else b"")

    async def list_flights(self, request: bytes, context: Context) -> None:
        """The FlightInfo of each dataset whose name starts with the criteria, except failed and dropped ones."""
        try:
            prefix = wire.bytes_field(request, 1, "Criteria").decode()
        except UnicodeDecodeError:
            raise InvalidRequest(
                "the criteria is a prefix of dataset names, so it must be UTF-8 text"
            ) from None
        for dataset in self._catalogue.listed(prefix):
            try:
                # One FlightInfo is for all that this server has of a dataset.
                if held(self._catalogue, original(dataset.name)[0], dataset.generation)[0] is dataset:
                    await self._send_info(flight_info, dataset, None, context)
            except (OutOfBudget, ReaderTooSlow):
                raise
            except FlightShuffleError:
                continue

    async def get_flight_info(self, request: bytes, context: Context) -> None:
        await self._send_info(flight_info, *self._parse_info_request(request), context)

    async def poll_flight_info(self, request: bytes, context: Context) -> None:
        """The PollInfo of the dataset or partition that the descriptor names: at once, or, with the descriptor of an
        earlier answer, when it has changed since (with versions: has another one), or is full, or after
        ``POLL_SECONDS`` or half of the call's time left, whichever is first.
        """
        named = parse_descriptor(request)
        dataset, partition = self._find(named)
        remaining = context.time_remaining()
        patience = POLL_SECONDS if remaining is None else min(POLL_SECONDS, remaining / 2)
        if named.seen is not None and filling(dataset, partition) and dataset.failure is None:
            with (
                self._waits.enter(
                    "producer", dataset=dataset.name, peer=context.peer(), deadline_seconds=patience
                ),
                suppress(TimeoutError),
            ):
                async with asyncio.timeout(patience):
                    await next_look(dataset, named.seen)
        await self._send_info(poll_info, dataset, partition, context)

    async def _send_info(self, make: Any, dataset: Dataset, only: int | None, context: Context) -> None:
        """Write the ``flight_info`` or ``poll_info`` of the dataset, or of ``only`` one partition, with room for it.

        Raises:
            OutOfBudget, ReaderTooSlow: see :meth:`AnswerRoom.send`.
            FlightShuffleError: see :func:`flight_info`; nothing was written.
        """
        await self._puts.answer_room.send(
            info_bytes(self._locations, dataset, only),
            partial(make, self._locations, dataset, only),
            context.write,
            Reader(dataset.name, 0, context.peer()),
        )

    async def get_schema(self, request: bytes, context: Context) -> bytes:
        dataset, _ = self._parse_info_request(request)
        schema = await self._reads.schema_of(dataset, Reader(dataset.name, 0, context.peer()))
        return wire.field(1, ipc_framing.encapsulate(schema.header))

    def _parse_info_request(self, request: bytes) -> tuple[Dataset, int | None]:
        return self._find(parse_descriptor(request))

    def _find(self, named: PutCommand) -> tuple[Dataset, int | None]:
        """The dataset that a descriptor names, of the named generation, if any, and the named partition, if any. Raises
        NotFound, StaleTicket, OutOfBudget: see :meth:`Catalogue.find` and :meth:`Dataset.partition`.
        """
        dataset = held(self._catalogue, named.dataset, named.generation)[0]
        if named.partition is not None:
            dataset.partition(named.partition)
        return dataset, named.partition

    async def do_get(self, request: bytes, context: Context) -> None:
        await self._get.serve(request, context)

    async def do_put(self, requests: AsyncIterator[bytes], context: Context) -> None:
        self._catalogue.check_open()
        await take_put(self._puts, self._first, context)

    async def do_exchange(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Refused: no computation here needs both directions at once."""
        raise Unsupported("this server has no DoExchange: write with DoPut and read with DoGet")

    async def do_action(self, request: bytes, context: Context) -> None:
        try:
            action = wire.bytes_field(request, 1, "Action").decode()
        except UnicodeDecodeError:
            raise InvalidRequest("the action's name is not UTF-8 text") from None
        check_size(len(request), f"the action {action!r}", action_limit_bytes(action, self._max_schema_bytes))
        body = wire.bytes_field(request, 2, "Action")
        del request
        async with counted(self._puts.admission, action, body, context.peer()):
            answer = await self._actions.run(action, body)
        await context.write(wire.field(1, answer))

    async def list_actions(self, request: bytes, context: Context) -> None:
        for name, description in ACTIONS.items():
            await context.write(wire.field(1, name.encode()) + wire.field(2, description.encode()))


def _metadata(context: Context, key: str) -> str | None:
    for name, value in context.invocation_metadata():
        if name == key:
            return value if isinstance(value, str) else value.decode("latin-1")
    return None


def _check_handshake(token: str, request: bytes) -> None:
    payload = wire.bytes_field(request, 2, "HandshakeRequest")
    if not payload:
        authorize(token, None)
    given = [payload]
    with suppress(InvalidRequest):  # not a BasicAuth: 2 user name, 3 password
        given.append(wire.bytes_field(payload, 3, "BasicAuth"))
    check(token, given, "in the handshake, as the password or as the whole payload,")


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
