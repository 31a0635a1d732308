"""RelaySource: a dataset of another Flight server, or of another host's relay of it.

Guarantee: partition k is the upstream's endpoint k, frames and dictionaries byte for byte as the upstream sent them. A
pull's end counts only with status OK and, from a server of this kind, with totals and checksum equal to what arrived.

    {"flight": "grpc://host:port" or "grpc+tls://host:port", "dataset": "…", "generation": "…", "token": "…",
     "tree": {"host": "…", "file": "…", "location": where this server is read}}

Snapshot
    The endpoints' tickets. Those of a server of this kind name its generation, so an upstream dataset that was replaced
    or lost is NOT_FOUND, never other data. With other servers ``pulls`` finds a second pull that differs. Where a
    stream does not fit the snapshot the upstream is asked again: if its FlightInfo is the same, the upstream
    contradicts itself, which a new generation would not mend.

Tree
    All hosts of a tree give their relays of one dataset one name. A pull asks the origin, which is the upstream, where
    to fetch (the action ``copies``), and reads from there, passing frames on as they come. If that fails at any frame,
    it says so to the origin and goes on at the next frame, at the place that the origin then names; this server's
    readers wait. Only a failure of the origin itself ends the pull. A host that has gone silently is noticed within
    twice ``PROBE_SECONDS``, one that does not begin within ``BEGIN_SECONDS``. Dictionaries are refused: a stream that
    goes on elsewhere would send them again.

Trust
    The upstream is asked only at its configured location, because the token must not go where an endpoint says; an
    endpoint that has only other locations is refused. In a tree the token goes to the hosts that the origin names, if
    ``--source-flight`` lists them. The origin names hosts that have given the same file's name, which the driver draws.
    Messages are checked as a producer's are. The token is in no log, statistics or error.

Waiting
    The upstream may be waiting for its producer, so a message has only the generous deadline of ``pulls``; HTTP/2 pings
    find out when it is gone. No account counts a message before it is admitted (twice if its buffers are compressed)
    and ``WINDOW_BYTES`` behind it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import grpc
import pyarrow as pa
from pyarrow import flight

from flight_server.access import ANY_HOST, FlightLocation
from flight_server.datasets import Totals
from flight_server.frames import (
    Checked,
    FrameDecoder,
    SchemaMessage,
    check_text,
    has_dictionaries,
    measure,
)
from flight_server.protocol import (
    AS_STORED,
    BATCHES_HEADER,
    COPIES,
    CRC_TRAILER,
    ERROR_TRAILER,
    FRAMES_TRAILER,
    GENERATION_HEADER,
    MAX_PARTITIONS,
    REUSE_CONNECTION,
    ROWS_TRAILER,
    BadFrame,
    Body,
    CopiesRequest,
    CopyVerb,
    Faults,
    Fields,
    FlightShuffleError,
    Forbidden,
    InJson,
    InvalidRequest,
    Name,
    NotFound,
    PartitionFailed,
    SourceUnavailable,
    Text,
    Ticket,
    from_json,
    ipc_framing,
    parse_json,
    wire,
)

from .pulls import Pulling, SourceChanged

SERVICE = "/arrow.flight.protocol.FlightService/"
ASK_SECONDS = 30.0
WINDOW_BYTES = 4 << 20
BEGIN_SECONDS = 5.0
PROBE_SECONDS = 5.0
_MAX_PARENTS = 8
"""After losing so many, the relay pulls from the origin, and asks it for no other."""


def _location(fields: Fields, key: str) -> FlightLocation:
    text = str(fields.required(key))
    try:
        return FlightLocation.parse(text)
    except ValueError as error:
        raise InvalidRequest(f"{fields.what}: {key!r}: {error}") from None


@dataclass(frozen=True)
class TreePlace(Body):
    """How a host of a tree calls itself and its file, and where this server is read; as in ``CopiesRequest``."""

    host: Text = None
    file: Text = None
    location: Text = None


@dataclass(frozen=True)
class FlightSpec(Body, what="source"):
    """The ``source`` of a ``create``."""

    location: Annotated[FlightLocation, InJson(_location, "flight")]
    dataset: Name
    generation: Text = None
    token: Text = None
    tree: Annotated[TreePlace | None, InJson(TreePlace.member)] = None

    def faults(self, what: str) -> Faults:
        where = self.location
        wrong = where.port is None or where.tls is None or where.host == ANY_HOST
        yield wrong, f"{what}: 'flight' is grpc://host:port or grpc+tls://host:port"
        yield self.tree is not None and self.generation is None, f"{what}: with 'tree' it needs 'generation'"

    def __str__(self) -> str:
        return f"{self.location} dataset {self.dataset!r}"


_NOT_FOUND = "the upstream lists this partition and does not find it (NOT_FOUND): let it do both or neither"
_SHOWN = 500
"""So many characters of a schema are in an error."""
TICKET_BYTES = 64
"""A ticket's object and its place in the list, beside its bytes."""


class RelaySource:
    """The tickets of one upstream dataset. ``name``: that of the relay's own dataset."""

    def __init__(
        self, spec: FlightSpec, name: str, header: bytes, tickets: list[bytes], pulling: Pulling
    ) -> None:
        self.schema = SchemaMessage(header)
        self.partition_count = len(tickets)
        self.held_bytes = sum(TICKET_BYTES + len(ticket) for ticket in tickets)
        self._spec = spec
        self._name = name
        self._tickets = tickets
        self._pulling = pulling
        if spec.tree is not None:
            if len(tickets) != 1 or has_dictionaries(self.schema.schema):
                raise InvalidRequest(
                    f"source: {spec} has several partitions, or dictionaries: leave 'tree' out"
                )
            CopiesRequest.parse(self._copies_request(CopyVerb.FETCH))

    @classmethod
    async def open(cls, source: dict[str, Any], name: str, pulling: Pulling) -> Self:
        """Ask the upstream for the dataset's schema and endpoints.

        Raises:
            Forbidden: the configuration does not allow to connect there.
            NotFound: the upstream has no such dataset.
            InvalidRequest: it has another generation, wants another token, or cannot be relayed from there.
            SourceUnavailable: it cannot be reached, or does not answer as Flight.
        """
        spec = FlightSpec.of(source)
        if not pulling.reaches(spec.location):
            raise Forbidden(
                f"source: this server does not pull from {spec.location}: it would have to be started with "
                f"--source-flight {spec.location}"
            )
        header, tickets = await cls._look(spec, pulling)
        return cls(spec, name, header, tickets, pulling)

    @staticmethod
    async def _look(spec: FlightSpec, pulling: Pulling) -> tuple[bytes, list[bytes]]:
        """The schema's header and the tickets. Raises as :meth:`open`."""
        descriptor = flight.FlightDescriptor.for_path(spec.dataset).serialize()
        async with _channel(spec, pulling) as channel:
            try:
                info = await _ask(channel, spec, "GetFlightInfo", descriptor)
                # Not the last one: there may be many endpoints behind it.
                schema_message = wire.first_field(info, 1, "FlightInfo") or b""
                header = ipc_framing.schema_header(bytes(schema_message))
                described = flight.FlightInfo.deserialize(info)
                if not described.schema.names:  # no producer has sent one yet: GetSchema waits for it
                    answer = await _ask(channel, spec, "GetSchema", descriptor)
                    header = ipc_framing.schema_header(wire.bytes_field(answer, 1, "SchemaResult"))
                measure(header)
                check_text(SchemaMessage(header).schema)
            except grpc.aio.AioRpcError as error:
                raise _opening_error(spec, error) from None
            except (BadFrame, pa.ArrowException, OSError, ValueError) as error:
                raise SourceUnavailable(f"source: {spec} answered what is not Flight: {error}") from None
        _check_generation(spec, described)
        tickets = [_ticket(spec, endpoint) for endpoint in described.endpoints]
        if not 1 <= len(tickets) <= MAX_PARTITIONS:
            raise InvalidRequest(
                f"source: {spec} has {len(tickets)} endpoints; 1 to {MAX_PARTITIONS} are relayed"
            )
        return header, tickets

    def describe(self, index: int) -> str:
        return f"{self._spec} partition {index}"

    def pull(self, index: int, so_far: Callable[[], Totals]) -> AsyncGenerator[Checked, None]:
        if self._spec.tree is not None:
            return self._pull_in_tree(so_far)
        return self._pull_from(self._spec, self._tickets[index], so_far)

    async def _pull_in_tree(self, so_far: Callable[[], Totals]) -> AsyncGenerator[Checked, None]:
        lost: str | None = None
        for _ in range(_MAX_PARENTS):
            lost = await self._parent(lost)
            if lost is None:
                break
            parent = FlightLocation.parse(lost)
            if not self._pulling.reaches(parent):
                continue
            spec = replace(self._spec, location=parent, dataset=self._name, generation=None, tree=None)
            ticket = Ticket(self._name, 0, from_=so_far().frames).encode()
            arriving = self._pull_from(spec, ticket, so_far, BEGIN_SECONDS, PROBE_SECONDS)
            try:
                async with aclosing(arriving):
                    async for each in arriving:
                        yield each
            except (FlightShuffleError, SourceChanged, TimeoutError):
                continue
            await self._say_fetched()
            return
        ticket = replace(Ticket.parse(self._tickets[0]), from_=so_far().frames).encode()
        async with aclosing(self._pull_from(self._spec, ticket, so_far)) as arriving:
            async for each in arriving:
                yield each
        await self._say_fetched()

    async def _parent(self, lost: str | None) -> str | None:
        """Where to fetch; None for the origin, also if it does not say: reading from it shows why."""
        with suppress(FlightShuffleError, ValueError):
            answer = await self._ask_for_copies(CopyVerb.FETCH, lost)
            if (place := answer.get("from")) is not None:
                FlightLocation.parse(place)
                return str(place)
        return None

    async def _say_fetched(self) -> None:
        with suppress(FlightShuffleError):
            await self._ask_for_copies(CopyVerb.FETCHED)

    def _copies_request(self, verb: CopyVerb, lost: str | None = None) -> bytes:
        spec = self._spec
        assert spec.tree is not None
        place = (spec.tree.location, lost) if verb is CopyVerb.FETCH else ()
        host, file = spec.tree.host, spec.tree.file
        return CopiesRequest(verb, spec.dataset, spec.generation or "", host, file, *place).encode()

    async def _ask_for_copies(self, verb: CopyVerb, lost: str | None = None) -> dict[str, Any]:
        """The origin's answer to the action ``copies``. Raises SourceUnavailable: it gives none."""
        request = wire.field(1, COPIES.encode()) + wire.field(2, self._copies_request(verb, lost))
        async with _channel(self._spec, self._pulling) as channel:
            call = channel.unary_stream(SERVICE + "DoAction")
            try:
                async for answer in call(request, metadata=_credentials(self._spec), timeout=ASK_SECONDS):
                    return parse_json(wire.bytes_field(answer, 1, "Result"), COPIES)
            except grpc.aio.AioRpcError as error:
                raise SourceUnavailable(f"{self._spec} does not answer: {error.details()}") from None
        return {}

    async def _pull_from(
        self,
        spec: FlightSpec,
        ticket: bytes,
        so_far: Callable[[], Totals],
        begin_seconds: float | None = None,
        keepalive_seconds: float = math.inf,
    ) -> AsyncGenerator[Checked, None]:
        """The messages of a ticket. Raises TimeoutError: the first did not come within ``begin_seconds``."""
        pulling = self._pulling
        decoder = FrameDecoder(
            max_message_bytes=pulling.max_message_bytes, full_validation=pulling.full_validation
        )
        async with _channel(spec, pulling, keepalive_seconds) as channel:
            call = channel.unary_stream(SERVICE + "DoGet")(
                wire.field(1, ticket), metadata=[*_credentials(spec), (BATCHES_HEADER, AS_STORED)]
            )
            try:
                while True:
                    async with asyncio.timeout(begin_seconds):
                        message = await call.read()
                    if message is grpc.aio.EOF:
                        break
                    begin_seconds = None
                    if decoder.has_large_header(message):
                        inspected = await pulling.background.in_thread(decoder.inspect, message)
                    else:
                        inspected = decoder.inspect(message)
                    if inspected.costly:
                        accepted = await pulling.background.in_thread(decoder.decode, inspected)
                    else:
                        accepted = decoder.decode(inspected)
                    if accepted.schema is not None:
                        await self._check_schema(spec, accepted.schema)
                    elif accepted.kind is not ipc_framing.MessageKind.NONE:
                        yield Checked(message, accepted)
                    del message, inspected, accepted
                await self._check_end(call, so_far())
            except grpc.aio.AioRpcError as error:
                raise await self._differing(spec, _pull_error(error), _NOT_FOUND) from None
            finally:
                call.cancel()
                decoder.end()

    async def _check_schema(self, spec: FlightSpec, schema: SchemaMessage) -> None:
        """Raise PartitionFailed or SourceChanged if it is not that of the snapshot."""
        try:
            self.schema.check_same(schema, spec.dataset)
        except InvalidRequest:
            both = f"its FlightInfo has {_columns(self.schema)}, and its stream has {_columns(schema)}"
            raise await self._differing(
                spec, SourceChanged(both), f"{both}: let the upstream say one schema"
            ) from None

    async def _differing(self, spec: FlightSpec, error: Exception, lasting: str) -> Exception:
        """What a pull that does not fit the snapshot raises: ``error`` if a new snapshot would differ, or none is to be
        had; else that the contradiction is a ``lasting`` one.
        """
        if isinstance(error, SourceChanged) and spec is self._spec:
            with suppress(FlightShuffleError):
                seen = await self._look(spec, self._pulling)
                if seen == (self.schema.header, self._tickets):
                    return PartitionFailed(lasting)
        return error

    async def _check_end(self, call: Any, arrived: Totals) -> None:
        """Raise SourceUnavailable unless the pull has ended as the guarantee says."""
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            raise SourceUnavailable(f"the upstream ended with {code.name}: {await call.details()}")
        trailers = _texts(await call.trailing_metadata())
        if ROWS_TRAILER not in trailers:
            if GENERATION_HEADER in _texts(await call.initial_metadata()):
                raise SourceUnavailable("the upstream's stream ended without its totals")
            return
        crc32c = f"{arrived.crc32c:08x}"
        # Of a ticket for several partitions there is no checksum.
        totals = trailers[ROWS_TRAILER], trailers.get(FRAMES_TRAILER), trailers.get(CRC_TRAILER, crc32c)
        if totals != (str(arrived.rows), str(arrived.frames), crc32c):
            raise SourceUnavailable(
                f"the upstream says rows, frames, checksum {totals}, but {arrived.rows} rows in {arrived.frames} "
                "frames arrived, or other ones"
            )


def _columns(schema: SchemaMessage) -> str:
    text = ", ".join(f"{field.name}: {field.type}" for field in schema.schema)
    return f"({text})" if len(text) <= _SHOWN else f"({text[:_SHOWN]}…)"


def _is_at(place: str, location: FlightLocation) -> bool:
    try:
        return FlightLocation.parse(place) == location
    except ValueError:
        return False


@asynccontextmanager
async def _channel(
    spec: FlightSpec, pulling: Pulling, keepalive_seconds: float = math.inf
) -> AsyncIterator[Any]:
    keepalive_ms = int(min(pulling.keepalive_seconds, keepalive_seconds) * 1000)
    options = [
        # Above the decoder's limit, so that the decoder refuses larger messages and says why.
        ("grpc.max_receive_message_length", pulling.max_message_bytes + (1 << 20)),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        ("grpc.http2.ping_timeout_ms", keepalive_ms),  # the default is a minute
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_http_proxy", 0),
        # Probing the bandwidth would let the window grow to several times ``WINDOW_BYTES``.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ]
    target = spec.location.target
    if spec.location.tls:
        channel = grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options)
    else:
        channel = grpc.aio.insecure_channel(target, options)
    async with channel:
        yield channel


def _credentials(spec: FlightSpec) -> tuple[tuple[str, str], ...]:
    return () if spec.token is None else (("authorization", f"Bearer {spec.token}"),)


async def _ask(channel: Any, spec: FlightSpec, method: str, request: bytes) -> bytes:
    call = channel.unary_unary(SERVICE + method)
    return bytes(await call(request, metadata=_credentials(spec), timeout=ASK_SECONDS))


def _check_generation(spec: FlightSpec, described: Any) -> None:
    if spec.generation is None:
        return
    has = parse_json(described.app_metadata, "FlightInfo.app_metadata").get("generation")
    if has != spec.generation:
        raise InvalidRequest(f"source: {spec} has generation {has!r}, not {spec.generation!r}")


def _ticket(spec: FlightSpec, endpoint: Any) -> bytes:
    places = [_text(location.uri) for location in endpoint.locations]
    if places and REUSE_CONNECTION not in places and not any(_is_at(each, spec.location) for each in places):
        raise InvalidRequest(
            f"source: {spec} can be read only at {', '.join(places)}: give that address as 'flight'; a dataset over "
            "several servers is not relayed"
        )
    return bytes(endpoint.ticket.ticket)


def _opening_error(spec: FlightSpec, error: Any) -> FlightShuffleError:
    code, details = error.code(), error.details()
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(f"source: {spec}: {details}")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return InvalidRequest(f"source: {spec} wants another 'token': {details}")
    return SourceUnavailable(f"source: {spec} does not answer: {code.name}: {details}")


def _pull_error(error: Any) -> Exception:
    """The error for the snapshot that a failed DoGet means."""
    code = error.code()
    reason = _texts(error.trailing_metadata() or ()).get(ERROR_TRAILER)
    try:
        message = from_json(reason).message if reason is not None else error.details()
    except ValueError:
        message = error.details()
    text = f"the upstream says {code.name}: {message}"
    if code is grpc.StatusCode.NOT_FOUND:
        return SourceChanged(text)
    if code is grpc.StatusCode.INTERNAL and reason is not None:
        return PartitionFailed(text)
    return SourceUnavailable(text)


def _texts(metadata: Any) -> dict[str, str]:
    return {key: _text(value) for key, value in metadata}


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
