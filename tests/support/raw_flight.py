"""Arrow Flight spoken byte by byte: for what pyarrow's own client cannot, or will not, send or show.

``RawFlight`` calls any RPC with bytes and returns bytes, over grpcio. The functions put messages together from
a field writer of their own, so that the server's code is not checked against itself.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import pyarrow as pa
from pyarrow import flight

from spark_client.connection import Closable

DESCRIPTOR, HEADER, METADATA, BODY = 1, 2, 3, 1000
DEADLINE_SECONDS = 30.0
_PREFIX = "/arrow.flight.protocol.FlightService/"
_SHAPES = {
    "Handshake": "stream_stream",
    "ListFlights": "unary_stream",
    "GetFlightInfo": "unary_unary",
    "PollFlightInfo": "unary_unary",
    "GetSchema": "unary_unary",
    "DoGet": "unary_stream",
    "DoPut": "stream_stream",
    "DoExchange": "stream_stream",
    "DoAction": "unary_stream",
    "ListActions": "unary_stream",
}


class Refused(Exception):
    """A call that ended with another status than OK."""

    def __init__(self, status: str, message: str, trailers: Mapping[str, str | bytes]) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.trailers = trailers

    @property
    def detail(self) -> dict[str, Any]:
        """The error as the server describes it to programs."""
        parsed: dict[str, Any] = json.loads(self.trailers["x-flight-shuffle-error"])
        return parsed


class RawFlight(Closable):
    """A connection; also a context manager that closes it. Its reads get each frame as it is stored.

    ``ahead_bytes``: how much of a stream is taken ahead of its reader; gRPC finds its own measure otherwise.
    """

    def __init__(self, location: str, *, token: str | None = None, ahead_bytes: int | None = None) -> None:
        window = [] if ahead_bytes is None else [("grpc.http2.lookahead_bytes", ahead_bytes)]
        self._channel = grpc.insecure_channel(
            location.removeprefix("grpc://"),
            # A pool of its own: otherwise all channels of the process share one connection.
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.http2.bdp_probe", 0 if window else 1),
                *window,
            ],
        )
        self._metadata = [("x-flight-shuffle-batches", "stored")]
        if token is not None:
            self._metadata.append(("authorization", f"Bearer {token}"))

    def call(self, rpc: str, request: Any, *, deadline_seconds: float = DEADLINE_SECONDS) -> Any:
        """Begin a call: grpcio's call object, or the answer of a unary one."""
        make = getattr(self._channel, _SHAPES[rpc])
        method = make(_PREFIX + rpc, request_serializer=None, response_deserializer=None)
        return method(request, timeout=deadline_seconds, metadata=self._metadata)

    def ask(self, rpc: str, request: Any, *, deadline_seconds: float = DEADLINE_SECONDS) -> list[bytes]:
        """All answers of a call; raises Refused."""
        try:
            answer = self.call(rpc, request, deadline_seconds=deadline_seconds)
            return [answer] if isinstance(answer, bytes) else list(answer)
        except grpc.RpcError as error:
            raise refusal(error) from None

    def put(self, messages: Iterable[bytes], **options: Any) -> list[bytes]:
        """The PutResults' app_metadata."""
        return [fields_of(each).get(1, b"") for each in self.ask("DoPut", iter(messages), **options)]

    def get(self, ticket: bytes, **options: Any) -> list[bytes]:
        """The FlightData messages of a partition."""
        return self.ask("DoGet", field(1, ticket), **options)

    def action(self, name: str, body: Mapping[str, Any] | bytes = b"") -> Any:
        """The JSON that an action answers; bytes where it is not JSON."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        (answer,) = self.ask("DoAction", field(1, name.encode()) + field(2, payload))
        result = fields_of(answer).get(1, b"")
        try:
            return json.loads(result)
        except ValueError:
            return result

    def close(self) -> None:
        self._channel.close()


class OpenPut:
    """A put whose messages are sent one by one. Leaving the block ends it; by an exception, cancels it."""

    def __init__(self, raw: RawFlight) -> None:
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = raw.call("DoPut", iter(self._messages.get, None))

    def send(self, message: bytes) -> None:
        self._messages.put(message)

    def finish(self) -> list[bytes]:
        """End the requests; the answers, or raise Refused."""
        self._messages.put(None)
        return self.wait()

    def wait(self) -> list[bytes]:
        """The answers, or raise Refused; without ending the requests."""
        try:
            return list(self._call)
        except grpc.RpcError as error:
            raise refusal(error) from None
        finally:
            self._messages.put(None)  # ends the thread that sends

    def cancel(self) -> None:
        self._call.cancel()
        self._messages.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.cancel()


def refusal(error: Any) -> Refused:
    """What grpcio's error says."""
    trailers = dict(error.trailing_metadata() or ())
    return Refused(error.code().name, error.details() or "", trailers)


# Protobuf


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields_of(message: bytes) -> dict[int, bytes]:
    """The length-delimited fields of a well-formed message; numbers are left out."""
    found: dict[int, bytes] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            number()
        elif key & 7 == 1:
            at += 8
        else:
            size = number()
            found[key >> 3] = message[at : at + size]
            at += size
    return found


# Flight messages


def path(*parts: str) -> bytes:
    """A PATH descriptor."""
    return bytes(flight.FlightDescriptor.for_path(*parts).serialize())


def command(body: Mapping[str, Any] | bytes) -> bytes:
    """A CMD descriptor; JSON unless bytes are given."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return bytes(flight.FlightDescriptor.for_command(payload).serialize())


@dataclass(frozen=True)
class IpcMessage:
    """One message of an IPC stream: "schema", "dictionary batch" or "record batch"."""

    kind: str
    header: bytes
    body: bytes


def ipc_messages(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], options: pa.ipc.IpcWriteOptions | None = None
) -> list[IpcMessage]:
    """An IPC stream's messages: schema, dictionaries and batches as Arrow writes them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages: list[IpcMessage] = []
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return messages
        kind = "dictionary batch" if message.type == "dictionary" else message.type
        body = b"" if message.body is None else message.body.to_pybytes()
        messages.append(IpcMessage(kind, message.metadata.to_pybytes(), body))


def flight_data(header: bytes, body: bytes = b"", *, metadata: bytes = b"", descriptor: bytes = b"") -> bytes:
    """A FlightData message; empty fields are left out."""
    parts = ((DESCRIPTOR, descriptor), (HEADER, header), (METADATA, metadata), (BODY, body))
    return b"".join(field(number, value) for number, value in parts if value)


def put_messages(
    descriptor: bytes,
    batches: list[pa.RecordBatch],
    *,
    schema: pa.Schema | None = None,
    metadata: Iterator[bytes] | None = None,
    options: pa.ipc.IpcWriteOptions | None = None,
) -> list[bytes]:
    """A whole DoPut: the schema with the descriptor, then dictionaries and batches.

    ``metadata`` gives the app_metadata of each batch, in order.
    """
    schema = batches[0].schema if schema is None else schema
    first, *rest = ipc_messages(schema, batches, options)
    messages = [flight_data(first.header, descriptor=descriptor)]
    for message in rest:
        given = next(metadata) if metadata is not None and message.kind == "record batch" else b""
        messages.append(flight_data(message.header, message.body, metadata=given))
    return messages


def commit(rows: int, frames: int) -> bytes:
    """The last message of a producer that commits."""
    return field(METADATA, json.dumps({"commit": {"rows": rows, "frames": frames}}).encode())
