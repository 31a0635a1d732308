"""Bodies as bursts of batches: which batches are one burst, and that the rows do not depend on the chunks."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.memory.pool import MemoryPool
from spark_client.lanes.batch_bursts import MAX_CHUNK_BYTES, BurstReader
from spark_client.lanes.http import Body
from spark_client.lanes.lane import BatchBurst
from spark_client.merge.merge_queue import Meter
from tests.support.http_source import END_OF_STREAM, chunk, messages

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
LAST_CHUNK = b"0\r\n\r\n"


def batch_of(rows: int, start: int = 0) -> pa.RecordBatch:
    # -1 is ff in every byte, and a value of 0xffffffff is Arrow's end marker, bit by bit.
    numbers = np.where(np.arange(rows) % 2, 0xFFFFFFFF, -1) if start < 0 else np.arange(start, start + rows)
    return pa.record_batch([pa.array(numbers), pa.array([str(n) for n in range(rows)])], schema=SCHEMA)


def reader_of(*chunks: bytes, last: bytes = LAST_CHUNK) -> BurstReader:
    file = io.BufferedReader(io.BytesIO(b"".join(map(chunk, chunks)) + last))
    return BurstReader(Body(file, {"transfer-encoding": "chunked"}))


def runs_of(reader: BurstReader) -> list[BatchBurst]:
    bursts = []
    while (burst := reader.read_burst()) is not None:
        bursts.append(burst)
    reader._body.finish()
    assert reader._body.ended
    return bursts


def batches_of(reader: BurstReader) -> list[pa.RecordBatch]:
    return [batch for burst in runs_of(reader) for batch in burst.batches]


def test_a_chunk_of_whole_messages_is_one_run_in_one_allocation() -> None:
    batches = [batch_of(100, i) for i in range(10)]
    schema, *frames = messages(batches, SCHEMA)
    reader = reader_of(schema, b"".join(frames[:7]), b"".join(frames[7:]), END_OF_STREAM)
    assert reader.schema == SCHEMA
    bursts = runs_of(reader)
    assert [len(burst.batches) for burst in bursts] == [7, 3]
    assert [batch for burst in bursts for batch in burst.batches] == batches
    for burst, sent in zip(bursts, (b"".join(frames[:7]), b"".join(frames[7:])), strict=True):
        assert burst.shared_bytes == len(schema) + len(sent)
        addresses = [b.address for batch in burst.batches for c in batch.columns for b in c.buffers() if b]
        assert max(addresses) - min(addresses) < burst.shared_bytes
        assert all(address % 8 == 0 for address in addresses)


def test_a_run_weighs_what_it_keeps_alive() -> None:
    schema, *frames = messages([batch_of(1)] * 50, SCHEMA)
    (burst,) = runs_of(reader_of(schema, b"".join(frames), END_OF_STREAM))
    size_bytes, shared = Meter(MemoryPool(None), SCHEMA).weigh(burst)
    assert size_bytes == burst.shared_bytes > 50 * 16
    assert shared == ()


def test_a_message_is_not_held_back_for_the_next_chunk() -> None:
    schema, frame, _ = messages([batch_of(1000)] * 2, SCHEMA)
    reader = reader_of(schema, frame, last=b"")
    burst = reader.read_burst()
    assert burst is not None
    assert burst.batches == [batch_of(1000)]
    with pytest.raises(ConnectionResetError):
        reader.read_burst()


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=12),
    st.lists(st.integers(1, 6000), min_size=1, max_size=8),
    st.booleans(),
)
def test_no_batch_depends_on_where_the_chunks_are_cut(rows: list[int], cuts: list[int], alone: bool) -> None:
    batches = [batch_of(count, i - 3) for i, count in enumerate(rows)]
    schema, *frames = messages(batches, SCHEMA)
    body = (b"" if alone else schema) + b"".join(frames) + END_OF_STREAM
    chunks, at, turn = [schema] if alone else [], 0, 0
    while at < len(body):
        chunks.append(body[at : at + cuts[turn % len(cuts)]])
        at += cuts[turn % len(cuts)]
        turn += 1
    assert batches_of(reader_of(*chunks)) == batches


@given(st.integers(0, 3000))
def test_a_body_that_is_cut_anywhere_gives_whole_batches_and_then_an_error(cut_at: int) -> None:
    batches = [batch_of(40, i) for i in range(4)]
    schema, *frames = messages(batches, SCHEMA)
    whole = chunk(b"".join(frames[:3])) + chunk(frames[3]) + chunk(END_OF_STREAM) + LAST_CHUNK
    assert len(whole) > 3000
    reader = reader_of(schema, last=whole[:cut_at])
    got: list[pa.RecordBatch] = []

    def read_on() -> None:
        while (burst := reader.read_burst()) is not None:
            got.extend(burst.batches)
        reader._body.finish()

    with pytest.raises(ConnectionResetError):
        read_on()
    assert got == batches[: len(got)]


def test_an_end_marker_among_the_messages_is_the_end() -> None:
    schema, one, two = messages([batch_of(200), batch_of(200, 7)], SCHEMA)
    reader = reader_of(schema, one + END_OF_STREAM + two)
    assert reader.read_burst() is not None
    assert reader.read_burst() is None
    with pytest.raises(ConnectionResetError, match="goes on after"):
        reader._body.finish()


def test_garbage_behind_a_message_is_an_error_behind_its_batch() -> None:
    schema, one = messages([batch_of(200)], SCHEMA)
    reader = reader_of(schema, one + b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"garbage!" * 2)
    burst = reader.read_burst()
    assert burst is not None
    assert burst.batches == [batch_of(200)]
    with pytest.raises((pa.ArrowException, OSError)):
        reader.read_burst()


def test_dictionaries_large_chunks_and_wide_schemas_come_message_by_message() -> None:
    words = pa.record_batch({"w": pa.array(["a", "b", "a"] * 100).dictionary_encode()})
    other = pa.record_batch({"w": pa.array(["c", "b", "c"] * 100).dictionary_encode()})
    wide = pa.record_batch({f"column {i}": pa.array([i]) for i in range(200)})
    large = pa.record_batch({"n": np.arange(MAX_CHUNK_BYTES // 8)})
    for batches in ([words, words, other], [wide, wide], [large, large]):
        schema, *frames = messages(batches, batches[0].schema)
        bursts = runs_of(reader_of(schema, *frames, END_OF_STREAM))
        assert [batch.to_pydict() for burst in bursts for batch in burst.batches] == [
            b.to_pydict() for b in batches
        ]
        assert all(burst.shared_bytes == 0 for burst in bursts)


def test_compressed_batches_without_rows_and_without_columns_come_through() -> None:
    bare = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    schema, *frames = messages([bare] * 40, bare.schema)
    got = batches_of(reader_of(schema, b"".join(frames), END_OF_STREAM))
    assert [batch.num_rows for batch in got] == [3] * 40
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for rows in (5000, 0, 5000):
            writer.write_batch(batch_of(rows))
    schema_bytes = SCHEMA.serialize().size
    body = sink.getvalue()[:-8]
    reader = reader_of(body[:schema_bytes], body[schema_bytes:], END_OF_STREAM)
    (burst,) = runs_of(reader)
    assert burst.batches == [batch_of(5000), batch_of(0), batch_of(5000)]
    assert Meter(MemoryPool(None), SCHEMA).weigh(burst)[0] > 2 * 5000 * 8


def test_what_decodes_to_more_than_a_chunk_is_several_runs() -> None:
    zeros = pa.record_batch({"n": np.zeros(MAX_CHUNK_BYTES // 16, np.int64)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, zeros.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for _ in range(5):
            writer.write_batch(zeros)
    schema_bytes = zeros.schema.serialize().size
    data = sink.getvalue()[:-8]
    assert len(data) < MAX_CHUNK_BYTES / 8
    chunks = b"".join(map(chunk, (data[:schema_bytes], data[schema_bytes:], END_OF_STREAM))) + LAST_CHUNK
    file = io.BufferedReader(io.BytesIO(chunks))
    body = Body(file, {"transfer-encoding": "chunked"})
    bursts = runs_of(BurstReader(body))
    assert [len(burst.batches) for burst in bursts] == [2, 2, 1]
    assert all(batch == zeros for burst in bursts for batch in burst.batches)
    sums = [checksum for burst in bursts for checksum in burst.checksums]
    assert len(sums) == 5
    assert len(set(sums)) == 1
