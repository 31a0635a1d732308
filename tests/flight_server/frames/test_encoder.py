"""Messages of a source: the rows that went in, in sizes that suit readers, and the same bytes each time."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.frames import FrameDecoder, SchemaMessage
from flight_server.frames.builder import Checked
from flight_server.frames.encoder import TARGET_BYTES, Encoder
from flight_server.protocol import ipc_framing, wire
from flight_server.protocol.checksums import message_crc32c
from flight_server.protocol.errors import InvalidRequest

MAX_BYTES = 8 << 20


def encoded(batches: list[pa.RecordBatch], **options: int) -> list[Checked]:
    encoder = Encoder(batches[0].schema, **{"max_message_bytes": MAX_BYTES, **options})
    return list(encoder.encode(batches))


def decoded(schema: pa.Schema, messages: list[Checked]) -> list[dict[str, object]]:
    """The rows, as Arrow's reader sees them; each message is accepted as a producer's would be."""
    decoder = FrameDecoder(max_message_bytes=MAX_BYTES)
    header = SchemaMessage.of(schema).header
    decoder.feed(wire.flight_data(header))
    parts: list[bytes | memoryview] = [ipc_framing.encapsulate(header)]
    for pulled in messages:
        accepted = decoder.feed(pulled.message)
        assert (accepted.kind, accepted.rows) == (pulled.accepted.kind, pulled.accepted.rows)
        located = wire.locate(pulled.message)
        assert pulled.accepted.crc32c == accepted.crc32c == message_crc32c(located.header, located.body)
        parts += (ipc_framing.encapsulate(located.header), located.body)
    decoder.end()
    rows: list[dict[str, object]] = (
        pa.ipc.open_stream(b"".join([*parts, ipc_framing.END_OF_STREAM])).read_all().to_pylist()
    )
    return rows


@settings(deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 3000), max_size=30), min_size=1, max_size=6),
    limit=st.integers(8192, 40_000),
)
def test_any_batches_come_out_in_order_within_the_limit(sizes: list[list[int]], limit: int) -> None:
    schema = pa.schema([("text", pa.string()), ("word", pa.dictionary(pa.int32(), pa.string()))])
    batches = [
        pa.record_batch(
            [
                pa.array(["x" * size for size in each], pa.string()),
                pa.array([f"{number}-{size % 3}" for size in each], pa.string()).dictionary_encode(),
            ],
            schema,
        )
        for number, each in enumerate(sizes)
    ]
    encoder = Encoder(schema, max_message_bytes=limit)
    messages = list(encoder.encode(batches))
    assert decoded(schema, messages) == pa.Table.from_batches(batches).to_pylist()
    frames = [each for each in messages if each.accepted.kind is ipc_framing.MessageKind.RECORD_BATCH]
    assert all(len(each.message) <= limit for each in frames)
    assert all(each.accepted.rows > 0 for each in frames)


def test_many_small_batches_are_gathered_and_a_large_one_is_cut() -> None:
    small = [pa.record_batch({"n": pa.array(range(1000))}) for _ in range(1000)]
    large = [pa.record_batch({"n": pa.array(range(1_000_000))})]
    for batches in (small, large):
        messages = encoded(batches)
        assert len(messages) in (4, 5)
        assert max(len(each.message) for each in messages) <= 1.01 * TARGET_BYTES


def test_a_batch_is_cut_in_equal_slices_and_no_few_rows_are_left_over() -> None:
    rows = [each.accepted.rows for each in encoded([pa.record_batch({"n": pa.array(range(1_000_001))})])]
    assert max(rows) - min(rows) < len(rows)


def test_a_dictionary_is_sent_once_as_long_as_it_is_the_same() -> None:
    words = pa.array(["a", "b"])
    same = [pa.record_batch({"d": pa.DictionaryArray.from_arrays(pa.array([0, 1]), words)}) for _ in range(3)]
    other = pa.record_batch({"d": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["c"]))})
    encoder = Encoder(other.schema, max_message_bytes=MAX_BYTES)
    messages = [message for each in (*same, other, same[0]) for message in encoder.encode([each])]
    kinds = [each.accepted.kind.name for each in messages]
    assert kinds.count("DICTIONARY") == 3
    assert decoded(other.schema, messages)[5:] == [{"d": "b"}, {"d": "c"}, {"d": "a"}, {"d": "b"}]


def test_a_dictionary_that_is_larger_than_a_message_may_be_is_an_error() -> None:
    word = pa.array(["x" * MAX_BYTES]).dictionary_encode()
    with pytest.raises(InvalidRequest, match=r"a dictionary has \d+ bytes"):
        encoded([pa.record_batch({"d": word})])
