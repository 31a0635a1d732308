"""Encoding: batches of a changelog as IPC messages that say which version they belong to.

Each message's ``custom_metadata`` has ``version``, and ``last`` in the last message of a version, so that readers of
both lanes know them; the gRPC lane says the same in app_metadata. A message has about ``MESSAGE_BYTES``, unless one row
has more, or slices would share buffers (``protocol.cutting``).
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa

from flight_server.kinds import VersionedMessage
from flight_server.protocol import InvalidRequest, cut, dump_json, ipc_framing, wire
from flight_server.protocol.checksums import message_crc32c

MESSAGE_BYTES = 1 << 20


def encode(
    batch: pa.RecordBatch, version: int, *, last: bool, max_message_bytes: int
) -> Iterator[VersionedMessage]:
    """The messages of a batch; one for a batch without rows.

    Args:
        last: no further batch of this version follows.

    Raises:
        InvalidRequest: a row, or a batch that is not cut, is larger than ``max_message_bytes``.
    """
    most_bytes = min(MESSAGE_BYTES, max_message_bytes)
    rows = batch.num_rows * most_bytes // max(most_bytes, _sent_bytes(batch))
    slices = cut(batch, rows, _sent_bytes, limit_bytes=max_message_bytes)
    for number, part in enumerate(slices, 1):
        size_bytes = _sent_bytes(part)
        ends = last and number == len(slices)
        if size_bytes <= max_message_bytes:
            yield _message(part, version, last=ends)
        elif len(slices) > 1:  # again, because rows differ in size
            yield from encode(part, version, last=ends, max_message_bytes=max_message_bytes)
        else:
            what = (
                "a row" if part.num_rows == 1 else f"a batch of {part.num_rows} rows that share their buffers"
            )
            raise InvalidRequest(
                f"{what} has {size_bytes} bytes, more than a message may have ({max_message_bytes}): raise "
                "--max-message"
            )


def _sent_bytes(batch: pa.RecordBatch) -> int:
    return int(pa.ipc.get_record_batch_size(batch))


def _message(batch: pa.RecordBatch, version: int, *, last: bool) -> VersionedMessage:
    said = {"version": str(version), **({"last": "true"} if last else {})}
    written = io.BytesIO()
    with pa.ipc.new_stream(written, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata=said)
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(written.getvalue()))
    reader.read_next_message()  # the schema
    message = reader.read_next_message()
    header, body = memoryview(message.metadata), memoryview(message.body)
    parts = wire.FlightData(header=header, body=body)
    metadata = dump_json({"version": version, **({"last": True} if last else {})})
    return VersionedMessage(parts, message_crc32c(header, body), batch.num_rows, metadata)


def schema_header(schema: pa.Schema) -> bytes:
    """The header of a schema message."""
    return ipc_framing.schema_header(schema.serialize().to_pybytes())
