"""Headers of IPC messages, as Arrow writes them and as a client may have broken them."""

from __future__ import annotations

import struct
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flight_server.protocol import BadFrame, IpcHeader, MessageKind, ipc_framing

BATCH = pa.record_batch({"a": pa.array(range(1000)), "b": ["text"] * 1000})


def _written(batch: pa.RecordBatch, codec: str | None = None) -> tuple[bytes, bytes]:
    """Header and body of a batch's message."""
    options = pa.ipc.IpcWriteOptions(compression=codec)
    message = pa.ipc.read_message(batch.serialize()) if codec is None else _second(batch, options)
    return message.metadata.to_pybytes(), message.body.to_pybytes()


def _second(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> pa.Message:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return reader.read_next_message()


@pytest.mark.parametrize("codec", [None, "lz4"])
def test_a_batchs_header_says_its_kind_and_how_long_its_body_is(codec: str | None) -> None:
    header, body = _written(BATCH, codec)
    read = IpcHeader(header)
    assert (read.kind, read.body_bytes) == (MessageKind.RECORD_BATCH, len(body))
    assert not read.has_metadata
    number = partial(ipc_framing.number_at, memoryview(body))
    expected = sum(buffer.size for each in BATCH.columns for buffer in each.buffers() if buffer)
    assert read.decompressed_bytes(number) == (expected if codec else 0)


def test_a_schemas_metadata_is_told_whole_and_in_order() -> None:
    # pyarrow makes no such metadata, but pickles expressions with it.
    pickled = pc.and_kleene(pc.field("b"), pc.field("ä")).__reduce__()[1][0]
    header = ipc_framing.schema_header(pa.ipc.open_file(pickled).schema.serialize().to_pybytes())
    assert ipc_framing.schema_metadata(header) == [
        (b"call", b"and_kleene"),
        (b"field_ref", b"b"),
        (b"field_ref", "ä".encode()),
        (b"end", b"and_kleene"),
    ]
    plain = ipc_framing.schema_header(BATCH.schema.serialize().to_pybytes())
    assert ipc_framing.schema_metadata(plain) == []


def test_fields_that_the_layout_does_not_have_are_absent() -> None:
    header = bytearray(_written(BATCH)[0])
    place = struct.unpack_from("<I", header, 0)[0]
    layout = place - struct.unpack_from("<i", header, place)[0]
    for layout_bytes in (4, 5, 6, 7):  # up to the version, and half of the kind's place
        struct.pack_into("<H", header, layout, layout_bytes)
        read = IpcHeader(bytes(header))
        assert (read.kind, read.body_bytes, read.has_metadata) == (MessageKind.NONE, 0, False)
        assert read.decompressed_bytes(lambda _: 1) == 0


def test_a_layout_that_leads_out_of_the_header_is_refused() -> None:
    header = bytearray(_written(BATCH)[0])
    place = struct.unpack_from("<I", header, 0)[0]
    layout = place - struct.unpack_from("<i", header, place)[0]
    struct.pack_into("<H", header, layout, 60_000)
    with pytest.raises(BadFrame, match="not an Arrow IPC message"):
        IpcHeader(bytes(header))
    for cut in range(len(header)):
        shorter = _written(BATCH)[0][:cut]
        try:
            IpcHeader(shorter).decompressed_bytes(lambda _: 1)
        except BadFrame:
            continue


def test_encapsulated_messages_are_split_behind_the_first_header() -> None:
    header, body = _written(BATCH)
    schema = BATCH.schema.serialize().to_pybytes()
    first, rest = ipc_framing.split(schema + BATCH.serialize().to_pybytes())
    assert IpcHeader(first).kind is MessageKind.SCHEMA
    assert tuple(map(bytes, ipc_framing.split(rest))) == (header, body)
