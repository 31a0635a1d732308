"""Batches become the messages that pyarrow's own DoPut sends, and are not copied on the way."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from flight_server.protocol.errors import InvalidRequest
from spark_client.lanes import messages
from spark_client.lanes.messages import BLOCK_BYTES, MessageWriter, Part
from tests.integration.round_trip.test_types import COLUMNS, celsius
from tests.support.raw_flight import field, fields_of, path

__all__ = ["celsius"]

DESCRIPTOR = path("d")


class Recorder:
    """A Flight server that keeps the messages of each put as they came, and knows nothing else."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self._threads = ThreadPoolExecutor(2, "recorder")
        self._server = grpc.server(self._threads, options=[("grpc.max_receive_message_length", -1)])
        handlers = {"DoPut": grpc.stream_stream_rpc_method_handler(self._put)}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("arrow.flight.protocol.FlightService", handlers),)
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def _put(self, requests: Iterator[bytes], _: object) -> Iterator[bytes]:
        self.messages = list(requests)
        yield b""

    def put(self, batches: list[pa.RecordBatch], metadata: list[bytes]) -> list[bytes]:
        """The messages that pyarrow's client sends for these."""
        with flight.connect(f"grpc://127.0.0.1:{self.port}") as client:
            writer, reader = client.do_put(flight.FlightDescriptor.for_path("d"), batches[0].schema)
            for batch, each in zip(batches, metadata, strict=True):
                writer.write_with_metadata(batch, pa.py_buffer(each)) if each else writer.write_batch(batch)
            writer.write_metadata(pa.py_buffer(b"the end"))
            writer.done_writing()
            reader.read()
            writer.close()
        return self.messages

    def close(self) -> None:
        self._server.stop(None).wait()
        self._threads.shutdown()


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    yield made
    made.close()


def unframed(parts: list[Part]) -> list[bytes]:
    """The messages, which are whole."""
    data, found = b"".join(parts), []
    while data:
        (size,) = struct.unpack(">I", data[:4])  # and its checksum
        assert len(data) >= 8 + size
        found.append(data[8 : 8 + size])
        data = data[8 + size :]
    return found


def written(batches: list[pa.RecordBatch], metadata: list[bytes], *, together: bool) -> list[bytes]:
    writer = MessageWriter(batches[0].schema)
    parts = writer.opening(DESCRIPTOR)
    for batch, each in zip(batches, metadata, strict=True):
        writer.add(batch, each)
        if not together:
            parts += writer.take()
            assert writer.waiting_bytes == 0
    parts += [*writer.take(), writer.metadata_only(b"the end")]
    return unframed(parts)


def padded(message: bytes) -> bytes:
    """The first message, with its schema as it is in an IPC stream."""
    found = fields_of(message)
    return field(1, found[1]) + field(2, found[2] + bytes(-len(found[2]) % 8))


def check(recorder: Recorder, batches: list[pa.RecordBatch], metadata: list[bytes]) -> None:
    first, *rest = recorder.put(batches, metadata)
    for together in (True, False):
        mine = written(batches, metadata, together=together)
        assert mine[0] == padded(first)
        assert mine[1:] == rest


@pytest.mark.parametrize("case", COLUMNS)
def test_each_type_is_sent_as_pyarrow_sends_it(recorder: Recorder, case: str) -> None:
    columns = COLUMNS[case]
    whole = pa.RecordBatch.from_arrays(columns, [f"c{number}" for number in range(len(columns))])
    batches = [whole, whole.slice(1), whole.slice(0, 0), whole]
    check(recorder, batches, [b"7", b"", b"12", b"0"])


def test_dictionaries_are_repeated_and_replaced_as_pyarrow_does(recorder: Recorder) -> None:
    texts = ["ab", "ab", "abc", "z", "zz", "ab"]
    batches = [pa.record_batch({"w": pa.array(list(text)).dictionary_encode()}) for text in texts]
    check(recorder, batches, [b"%d" % number for number in range(len(texts))])


@pytest.mark.parametrize("rows", [1, BLOCK_BYTES // 8 - 1, BLOCK_BYTES // 8, BLOCK_BYTES // 8 + 1, 300_000])
def test_buffers_around_the_size_of_a_run_are_sent_as_pyarrow_sends_them(
    recorder: Recorder, rows: int
) -> None:
    numbers = np.arange(rows)
    batch = pa.record_batch(
        {"n": numbers, "s": pa.array([str(number) for number in numbers]), "flag": numbers % 2 == 0}
    )
    check(recorder, [batch, batch.slice(1), batch.slice(0, rows // 2)], [b"1", b"2", b"3"])


def test_a_thousand_columns_are_sent_as_pyarrow_sends_them(recorder: Recorder) -> None:
    batch = pa.record_batch({f"c{i}": pa.array([i, None]) for i in range(1_000)})
    check(recorder, [batch, batch], [b"1", b"2"])


def test_rows_without_columns_are_sent_as_pyarrow_sends_them(recorder: Recorder) -> None:
    nothing = pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), 3, [None]))
    check(recorder, [nothing, nothing], [b"1", b""])


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 5)), min_size=1, max_size=6), st.booleans())
def test_any_row_of_batches_decodes_to_itself(sizes: list[tuple[int, int]], together: bool) -> None:
    batches = [
        pa.record_batch(
            {"n": np.arange(rows), "w": pa.array(["x" * words] * rows, pa.string()).dictionary_encode()}
        )
        for rows, words in sizes
    ]
    messages_ = [fields_of(each) for each in written(batches, [b""] * len(batches), together=together)]
    stream = b"".join(
        b"\xff\xff\xff\xff" + struct.pack("<i", len(each[2])) + each[2] + each.get(1000, b"")
        for each in messages_[:-1]
    )
    assert pa.ipc.open_stream(stream).read_all().equals(pa.Table.from_batches(batches))


def test_a_large_buffer_is_not_copied() -> None:
    numbers = np.arange(BLOCK_BYTES)
    writer = MessageWriter(pa.schema([("n", pa.int64())]))
    writer.add(pa.record_batch({"n": numbers}))
    (head, body) = writer.take()
    assert np.frombuffer(body, np.int64).__array_interface__["data"] == numbers.__array_interface__["data"]
    assert len(head) < 300


def test_what_is_kept_refers_to_no_batch() -> None:
    numbers = np.arange(BLOCK_BYTES)
    writer = MessageWriter(pa.schema([("n", pa.int64())]))
    writer.add(pa.record_batch({"n": numbers}))
    writer.keep()
    numbers[:] = 0
    (_, body) = writer.take()
    assert np.frombuffer(body, np.int64).tolist() == list(range(BLOCK_BYTES))


def test_small_batches_are_few_parts_and_what_waits_is_known() -> None:
    writer = MessageWriter(pa.schema([("n", pa.int64())]))
    batch = pa.record_batch({"n": np.arange(100)})
    for _ in range(10):
        writer.add(batch, b"1")
    assert 8_000 < writer.waiting_bytes < 12_000
    parts = writer.take()
    assert writer.waiting_bytes == 0
    # A head and a body for each, and a cut wherever a run was full.
    assert 20 <= len(parts) <= 20 + 12_000 // BLOCK_BYTES + 1
    assert writer.take() == []


def test_a_batch_of_another_schema_is_refused() -> None:
    writer = MessageWriter(pa.schema([("n", pa.int64())]))
    with pytest.raises(pa.ArrowInvalid, match="different schema"):
        writer.add(pa.record_batch({"n": ["text"]}))


def test_a_message_beyond_what_flight_carries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 10_000)
    writer = MessageWriter(pa.schema([("n", pa.int64())]))
    writer.add(pa.record_batch({"n": np.arange(2_000)}))
    with pytest.raises(InvalidRequest, match=r"takes 16\d\d\d bytes.* at most 10000: write smaller batches"):
        writer.take()
