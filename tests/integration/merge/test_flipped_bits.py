"""One bit flips on the way between the real server and the client: what is read is right, or it is an error."""

from __future__ import annotations

import base64
import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol import (
    CHECKSUMS,
    CHECKSUMS_HEADER,
    CreateRequest,
    Kind,
    PutCommand,
    SealRequest,
    Ticket,
    bulk_path,
)
from flight_server.protocol.errors import DamagedMessage, FlightShuffleError
from flight_server.protocol.put_framing import PUT_PATH
from spark_client.connection import RemoteServer, Writing
from spark_client.lanes.lane import BrokenStream
from spark_client.lanes.put_stream import PutStream
from tests.support.merging import QUICK, batches_from, partition_stream
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("hasty")

ROWS = 60
FRAMES = 4
STRIDE = 43
# Short deadlines only where the end of a line may be damaged: the reader then waits for its rest until them.
IMPATIENT = replace(QUICK, first_message_seconds=0.3, stall_seconds=0.3, tries=3)


def plain(frame: int) -> pa.RecordBatch:
    numbers = pa.array(range(frame * ROWS, (frame + 1) * ROWS), pa.int64())
    return pa.record_batch({"number": numbers, "text": pa.array([f"row {n}" for n in numbers.to_pylist()])})


def with_dictionary(frame: int) -> pa.RecordBatch:
    words = pa.array([f"word {frame} {n % 7}" for n in range(ROWS)]).dictionary_encode()
    return pa.record_batch({"number": plain(frame)["number"], "word": words})


for_each_kind_of_data = pytest.mark.parametrize(
    "make", [pytest.param(plain, marks=pytest.mark.long), with_dictionary]
)


@pytest.fixture
def shaky(process: ServerProcess) -> Iterator[Proxy]:
    """A proxy before the bulk lane."""
    assert process.http is not None
    with Proxy.to(process.http) as made:
        yield made


@pytest.fixture
def impatient(process: ServerProcess) -> Iterator[RemoteServer]:
    made = RemoteServer(process.location, timeouts=IMPATIENT)
    yield made
    made.close()


def stored(server: RemoteServer, name: str, make: Callable[[int], pa.RecordBatch]) -> list[pa.RecordBatch]:
    batches = [make(frame) for frame in range(FRAMES)]
    with PutStream(server, PutCommand(name, producer=0, attempt="a"), batches[0].schema) as put:
        for batch in batches:
            put.write(batch)
        put.commit()
    return batches


def read(server: RemoteServer, location: str, name: str, partition: int = 0) -> list[pa.RecordBatch]:
    stream = partition_stream(server, Ticket(name, partition), locations=[location], lane="bulk")
    try:
        return list(batches_from(stream))
    finally:
        stream.close()


def read_by_grpc(server: RemoteServer, name: str) -> list[pa.RecordBatch]:
    stream = partition_stream(server, Ticket(name, 0), lane="grpc")
    try:
        return list(batches_from(stream))
    finally:
        stream.close()


def answer_to(location: str, name: str) -> tuple[bytes, list[range]]:
    """What the server sends for the dataset's partition, byte for byte, and where the messages are in it."""
    host, _, port = location.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        lines = [
            f"GET {bulk_path(name, 0)} HTTP/1.1",
            f"Host: {host}:{port}",
            f"{CHECKSUMS_HEADER}: {CHECKSUMS}",
        ]
        sock.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        data = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    at = data.index(b"\r\n\r\n") + 4
    messages: list[range] = []
    while size_bytes := int(data[at:].split(b"\r\n", 1)[0].split(b";")[0], 16):
        at = data.index(b"\r\n", at) + 2
        messages.append(range(at, at + size_bytes))
        at += size_bytes + 2
    return data, messages


@for_each_kind_of_data
def test_a_flipped_bit_on_the_way_to_a_reader_is_healed_or_an_error_and_never_other_data(
    server: RemoteServer,
    impatient: RemoteServer,
    shaky: Proxy,
    name: str,
    make: Callable[[int], pa.RecordBatch],
) -> None:
    batches = stored(server, name, make)
    answer, messages = answer_to(shaky.http, name)
    healed = 0
    for at in range(0, len(answer), STRIDE):
        flips = shaky.flips
        in_a_message = any(at in message for message in messages)
        shaky.flip_back(at, at // STRIDE % 8)
        try:
            found = read(server if in_a_message else impatient, shaky.http, name)
        except FlightShuffleError:
            # In a line of HTTP: the client may wait for its end, or find another status or other totals.
            assert not in_a_message, f"byte {at} of {len(answer)}"
        else:
            assert found == batches, f"byte {at} of {len(answer)}"
            healed += shaky.flips - flips
    assert healed > len(answer) // STRIDE // 2


@for_each_kind_of_data
def test_a_flipped_bit_on_the_way_to_a_reader_over_grpc_is_healed_or_an_error_and_never_other_data(
    process: ServerProcess, server: RemoteServer, name: str, make: Callable[[int], pa.RecordBatch]
) -> None:
    batches = stored(server, name, make)
    with Proxy.to(process.location) as between:
        # The end of an HTTP/2 frame may be damaged: the reader then waits for its rest until the call's deadline.
        reader = RemoteServer(
            between.location, timeouts=replace(IMPATIENT, stream_seconds=0.5, call_seconds=0.5)
        )
        assert read_by_grpc(reader, name) == batches
        before = between.bytes_back
        assert read_by_grpc(reader, name) == batches
        size = between.bytes_back - before
        healed = refused = 0
        for at in range(0, size, STRIDE):
            flips = between.flips
            between.flip_back(at, at // STRIDE % 8)
            try:
                found = read_by_grpc(reader, name)
            except FlightShuffleError:
                refused += between.flips - flips
            else:
                assert found == batches, f"byte {at} of {size}"
                healed += between.flips - flips
        reader.close()
    assert healed > size // STRIDE // 2, f"{healed} were healed, {refused} were errors"


def test_a_frame_that_comes_damaged_over_grpc_again_and_again_is_an_error(
    process: ServerProcess, server: RemoteServer, name: str
) -> None:
    batches = stored(server, name, plain)
    with Proxy.to(process.location) as between:
        between.flip_in(b"row 130", bit=0, back=True)  # in the third frame
        reader = RemoteServer(between.location, timeouts=QUICK)
        stream = partition_stream(reader, Ticket(name, 0), lane="grpc")
        arriving = batches_from(stream)
        assert [next(arriving), next(arriving)] == batches[:2]
        with pytest.raises(BrokenStream, match=f"partition 0 of dataset '{name}'.* frame 2.*checksum"):
            next(arriving)
        stream.close()
        reader.close()


def test_a_damaged_ticket_is_noticed_over_grpc(
    process: ServerProcess, server: RemoteServer, name: str
) -> None:
    neighbour, wanted = f"{name}/neighbour/p", f"{name}/neighbour/q"  # one bit lies between them
    stored(server, neighbour, with_dictionary)
    batches = stored(server, wanted, plain)
    with Proxy.to(process.location) as between:
        reader = RemoteServer(between.location, timeouts=QUICK)
        assert read_by_grpc(reader, wanted) == batches
        between.flip_in(b'q","partition', bit=0, back=False)
        with pytest.raises(BrokenStream, match="running checksum"):
            read_by_grpc(reader, wanted)
        reader.close()


def test_a_flipped_bit_in_a_request_never_brings_what_was_not_asked_for(
    server: RemoteServer, impatient: RemoteServer, shaky: Proxy, name: str
) -> None:
    neighbour, name = f"{name}/neighbour/p", f"{name}/neighbour/q"  # one bit lies between them
    stored(server, neighbour, with_dictionary)
    batches = stored(server, name, plain)
    for at in range(len(f"GET {bulk_path(name, 0)} HTTP/1.1\r\n")):
        shaky.flip_forth(at, at % 2)
        with contextlib.suppress(FlightShuffleError):
            assert read(impatient, shaky.http, name) == batches, f"byte {at}"


def test_a_frame_that_comes_damaged_again_and_again_is_an_error_that_names_it(
    server: RemoteServer, shaky: Proxy, name: str
) -> None:
    batches = stored(server, name, plain)
    shaky.flip_in(b"row 130", bit=0, back=True)  # in the third frame
    stream = partition_stream(server, Ticket(name, 0), locations=[shaky.http], lane="bulk")
    arriving = batches_from(stream)
    assert [next(arriving), next(arriving)] == batches[:2]
    with pytest.raises(BrokenStream, match=f"partition 0 of dataset '{name}'.* frame 2.*checksum") as caught:
        next(arriving)
    assert shaky.http in caught.value.message
    stream.close()


def put_shuffle(server: RemoteServer, name: str, batches: list[pa.RecordBatch], places: list[str]) -> None:
    """The batches to partitions 0, 1, 2 and so on; sealed if the attempt was committed, else sealed empty."""
    schema = base64.b64encode(batches[0].schema.serialize()).decode()
    request = CreateRequest(name, Kind.SHUFFLE, schema, partitions=len(batches))
    server.action("create", request.encode())
    attempts = {}
    try:
        with PutStream(server, PutCommand(name, producer=0, attempt="a"), batches[0].schema, places) as put:
            for partition, batch in enumerate(batches):
                put.write(batch, partition)
            put.commit()
        attempts = {0: "a"}
    finally:
        server.action("seal", SealRequest(name, attempts=attempts).encode())


@for_each_kind_of_data
def test_a_flipped_bit_on_the_way_from_a_producer_is_an_error_and_nothing_of_it_is_kept(
    server: RemoteServer,
    process: ServerProcess,
    shaky: Proxy,
    name: str,
    make: Callable[[int], pa.RecordBatch],
) -> None:
    assert process.http is not None
    batches = [make(frame) for frame in range(FRAMES)]
    patient = RemoteServer(process.location, timeouts=QUICK, writing=Writing(lane="bulk"))
    writer = RemoteServer(process.location, timeouts=IMPATIENT, writing=Writing(lane="bulk"))
    before = shaky.bytes_forth
    put_shuffle(patient, name, batches, [shaky.http + PUT_PATH])
    size_bytes = shaky.bytes_forth - before
    known, refused = {name}, 0
    for at in range(0, size_bytes, STRIDE):
        shaky.flip_forth(at, at // STRIDE % 8)
        known.add(here := f"{name}/n{at}")
        kept = batches
        try:
            put_shuffle(writer, here, batches, [shaky.http + PUT_PATH])
        except FlightShuffleError as error:
            refused += isinstance(error, DamagedMessage)
            kept = []
        found = [batch for i in range(FRAMES) for batch in read(server, process.http, here, i)]
        assert found == kept, f"byte {at} of {size_bytes}"
    assert refused > size_bytes // STRIDE // 2
    assert {flight_name(info) for info in server.list_flights(name)} == known
    writer.close()
    patient.close()


@pytest.mark.parametrize("lane", ["grpc", "bulk"])
@for_each_kind_of_data
def test_a_value_that_flips_on_its_way_to_the_server_is_a_typed_error_that_names_the_producer(
    process: ServerProcess, name: str, lane: Literal["grpc", "bulk"], make: Callable[[int], pa.RecordBatch]
) -> None:
    location = process.location if lane == "grpc" else process.http
    assert location is not None
    with Proxy.to(location) as between:
        target = between.location if lane == "grpc" else process.location
        writer = RemoteServer(target, timeouts=QUICK, writing=Writing(lane=lane))
        between.flip_in(b"row 13" if make is plain else b"word 2", bit=0, back=False)
        with pytest.raises(DamagedMessage, match=f"dataset '{name}' producer 0 attempt a"):
            put_shuffle(writer, name, [make(frame) for frame in range(FRAMES)], [between.http + PUT_PATH])
        writer.close()


def flight_name(info: flight.FlightInfo) -> str:
    return str(info.descriptor.path[0].decode())
