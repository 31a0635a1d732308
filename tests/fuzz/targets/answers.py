"""Targets: what a client reads of a server's answers, which a proxy or another program may have written."""

from __future__ import annotations

import io
from contextlib import suppress
from functools import cache
from typing import cast

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import (
    ACCEPTED,
    CHECKSUMS,
    END_OF_STREAM,
    ERROR_TRAILER,
    REFUSED,
    RESULT,
    FlightShuffleError,
    InvalidRequest,
    Ticket,
    answer,
    dump_json,
    encapsulate,
    from_json,
    wire,
)
from flight_server.protocol.checksums import crc32c, message_crc32c
from flight_server.protocol.enveloped import Envelopes
from spark_client.connection import RemoteServer
from spark_client.connection.calls import Call, translate
from spark_client.lanes.batch_bursts import BurstReader
from spark_client.lanes.bulk_put import AnswerReader
from spark_client.lanes.grpc_get import EnvelopedBatches
from spark_client.lanes.http import Body, _headers, _line
from spark_client.lanes.lane import ReadTotals
from spark_client.lanes.version_cursor import Mark
from spark_client.merge import DatasetRef

from .messages import puts
from .target import Target, plain

GENERATION = "0123456789abcdef"


def read_error(data: bytes) -> None:
    """The error in a trailer or a body; without one that can be read, one of the call itself."""
    translate(OSError("broken"), Call("grpc://h:1", {ERROR_TRAILER: data.decode("latin-1")}))
    error = from_json(data)
    assert from_json(error.to_json()).to_json() == error.to_json()


def read_http(data: bytes) -> None:
    """A whole answer of the bulk lane: head, body, batches and totals. The first byte is left out."""
    if not data:
        return
    file = cast("io.BufferedReader", io.BufferedReader(cast("io.RawIOBase", io.BytesIO(data[1:]))))
    status = _line(file)
    headers = _headers(file)
    body = Body(file, headers)
    if "200" not in status:
        with suppress(ValueError):  # it is a proxy's
            from_json(body.read())
        return
    bursts = BurstReader(body)
    rows = 0
    while (burst := bursts.read_burst()) is not None:
        rows += sum(batch.num_rows for batch in burst.batches)
        for metadata in burst.metadata:
            try:
                Mark.parse(metadata)
            except ValueError:
                continue
    body.finish()
    ReadTotals.parse(body.trailers)


def read_put_answers(data: bytes) -> None:
    """The answers to a put, as they come: the first byte says in which pieces."""
    reader = AnswerReader()
    step = 1 + (data[0] if data else 0)
    for at in range(1, len(data), step):
        reader.feed(data[at : at + step])
    for result in list(reader.results):
        assert reader.take() == result


def read_envelopes(data: bytes) -> None:
    """Messages in envelopes. Their checksums are right where the first byte is even."""
    if not data:
        return
    sealing, opening = Envelopes(b"t"), None
    for part in data[1:].split(b"\xfe\xfe\xfe\xfe"):
        envelope = part
        if data[0] % 2 == 0:
            parts = wire.locate(part)
            sums = message_crc32c(parts.header, parts.body), crc32c(parts.metadata)
            envelope = bytes(wire.locate(sealing.seal((part, *sums))).metadata)
        if opening is None:
            opening = EnvelopedBatches(pa.py_buffer(envelope), b"t")
        else:
            opening.take(pa.py_buffer(envelope))


def read_info(data: bytes) -> None:
    """A FlightInfo: which dataset, and where it is."""
    try:
        info = flight.FlightInfo.deserialize(data)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRequest(f"pyarrow: {type(error).__name__}") from None
    ref = DatasetRef.of(RemoteServer("grpc://127.0.0.1:1"), "d", info)
    DatasetRef.spread_partitions(info)
    assert ref.portions


@cache
def _bodies() -> list[bytes]:
    found = []
    for put in puts()[:4]:
        parts = [wire.locate(each) for each in put]
        whole = [(encapsulate(each.header) + each.body) for each in parts if each.header]
        sums = [
            "" if at == 0 else f";{CHECKSUMS}={len(each):x}-{crc32c(each[8:]):08x}"
            for at, each in enumerate(whole)
        ]
        schema, frames = whole[0], whole[1:]
        chunks = [b"%x\r\n%b\r\n" % (len(each), each) for each in (schema, b"".join(frames), END_OF_STREAM)]
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.apache.arrow.stream\r\n"
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks)
        found.append(b"\0" + chunked + b"0\r\nx-flight-shuffle-rows: 5\r\nx-flight-shuffle-frames: 1\r\n\r\n")
        checked = b"".join(
            b"%x%b\r\n%b\r\n" % (len(each), extension.encode(), each)
            for each, extension in zip(whole, sums, strict=True)
        )
        found.append(
            b"\1" + head + b"Transfer-Encoding: chunked\r\n\r\n" + checked + chunks[2] + b"0\r\n\r\n"
        )
        stream = b"".join(whole) + END_OF_STREAM
        found.append(b"\0" + head + b"Content-Length: %d\r\n\r\n" % len(stream) + stream)
    refused = InvalidRequest("no").to_json().encode()
    return [*found, b"\0HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n" % len(refused) + refused]


def _errors() -> list[bytes]:
    return [
        InvalidRequest("wrong: grpc://u:p@h:1/x?y", dataset="d", limit_bytes=3).to_json().encode(),
        dump_json({"error": "forbidden", "message": "no", "retryable": False, "more": [1, None, {"a": 2.5}]}),
    ]


def _put_answers() -> list[bytes]:
    results = answer(RESULT, b'{"committed":true,"rows":5}')
    return [b"\x03" + results + answer(ACCEPTED), b"\xff" + results + answer(REFUSED, _errors()[0])]


def _envelopes() -> list[bytes]:
    return [b"\0" + b"\xfe\xfe\xfe\xfe".join(put[:4]) for put in puts()[:5]]


def _infos() -> list[bytes]:
    schema = pa.schema([("a", pa.int64())])
    one = Ticket("d", generation=GENERATION, partition=0).encode()
    spread = Ticket("d", generation=GENERATION, partitions="all", start="s").encode()
    places = [flight.Location("grpc://h:1"), flight.Location("http://h:2/v1/datasets/d/partitions/0")]
    return [
        bytes(
            flight.FlightInfo(
                schema,
                flight.FlightDescriptor.for_path("d"),
                [flight.FlightEndpoint(ticket, places)],
                5,
                100,
                app_metadata=b'{"partitions":3}',
            ).serialize()
        )
        for ticket in (one, spread)
    ]


TARGETS = [
    Target("errors", plain(read_error), _errors, (ValueError,)),
    Target(
        "http_answers",
        plain(read_http),
        _bodies,
        (FlightShuffleError, OSError, pa.ArrowException),
        most_bytes=8192,
    ),
    Target("put_answers", plain(read_put_answers), _put_answers, (ConnectionError,)),
    Target("envelopes", plain(read_envelopes), _envelopes, most_bytes=8192),
    Target("infos", plain(read_info), _infos),
]
