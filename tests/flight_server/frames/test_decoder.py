"""FrameDecoder: what it accepts Arrow decodes after what came before; schemas that may share a dataset."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from flight_server.frames import FrameDecoder, SchemaMessage
from flight_server.frames.decoder import COSTLY_BYTES, COSTLY_HEADER_BYTES
from flight_server.frames.schemas import has_dictionaries
from flight_server.protocol import MessageKind
from flight_server.protocol.errors import BadFrame, InvalidRequest
from tests.flight_server.protocol.test_wire import header_without_content, schema_header
from tests.support.folded import with_folded_metadata
from tests.support.raw_flight import flight_data, ipc_messages, path, put_messages

BATCH = pa.record_batch({"n": [1, 2, 3]})
ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")


def decoder(limit_bytes: int = 64 << 20, *, full: bool = True) -> FrameDecoder:
    return FrameDecoder(max_message_bytes=limit_bytes, full_validation=full)


def fed(messages: list[bytes], limit_bytes: int = 64 << 20) -> FrameDecoder:
    """A decoder that has accepted these."""
    one = decoder(limit_bytes)
    for message in messages:
        one.feed(message)
    return one


def test_decoding_copies_nothing_of_a_plain_batch() -> None:
    batch = pa.record_batch({"n": np.zeros(8 << 20, dtype=np.int8)})
    schema, message = put_messages(path("d"), [batch])
    one = fed([schema])
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    one.feed(message)
    assert pa.total_allocated_bytes() < before + 4096
    assert pa.default_memory_pool().max_memory() <= max(peak, before + (1 << 20))


def test_a_header_without_its_batch_is_refused() -> None:
    schema, message = put_messages(path("d"), [BATCH])
    with pytest.raises(BadFrame, match="record batch 0 is not valid"):
        fed([schema]).feed(flight_data(header_without_content(MessageKind.RECORD_BATCH)))
    after_a_dictionary = fed([schema, flight_data(header_without_content(MessageKind.DICTIONARY))])
    with pytest.raises(BadFrame, match="record batch 0 is not valid"):
        after_a_dictionary.feed(message)


def test_without_full_validation_text_is_not_looked_at() -> None:
    batch = pa.record_batch({"s": ["abc"]})
    schema, message = put_messages(path("d"), [batch])
    damaged = message.replace(b"abc", b"a\xffc")
    with pytest.raises(BadFrame, match="UTF8"):
        fed([schema]).feed(damaged)
    lenient = decoder(full=False)
    lenient.feed(schema)
    assert lenient.feed(damaged).rows == 1


def test_the_limit_counts_the_whole_message() -> None:
    schema, message = put_messages(path("d"), [BATCH])
    size_bytes = max(len(schema), len(message))
    fed([schema, message], limit_bytes=size_bytes)
    with pytest.raises(
        BadFrame, match=f"{size_bytes} bytes, more than this server's limit of {size_bytes - 1}"
    ):
        fed([schema, message], limit_bytes=size_bytes - 1)


def test_what_would_decompress_beyond_the_limit_is_refused_before_it_is() -> None:
    batch = pa.record_batch({"n": np.zeros(1 << 20, dtype=np.int8)})
    schema, message = put_messages(path("d"), [batch], options=ZSTD)
    fed([schema, message], limit_bytes=1 << 20)
    one = fed([schema], limit_bytes=(1 << 20) - 1)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(BadFrame, match="decompresses to 1048576 bytes"):
        one.inspect(message)
    assert pa.default_memory_pool().max_memory() == before


@pytest.mark.parametrize(
    ("batch", "options", "costly"),
    [
        (BATCH, None, False),
        (pa.record_batch({"n": np.zeros(COSTLY_BYTES - 64, dtype=np.int8)}), None, False),
        (pa.record_batch({"n": np.zeros(COSTLY_BYTES + 64, dtype=np.int8)}), None, True),
        (pa.record_batch({"n": np.zeros(COSTLY_BYTES // 16, dtype=np.int8)}), ZSTD, False),
        (pa.record_batch({"n": np.zeros(COSTLY_BYTES // 8, dtype=np.int8)}), ZSTD, True),
    ],
)
def test_large_and_compressed_batches_are_costly(
    batch: pa.RecordBatch, options: object, *, costly: bool
) -> None:
    schema, message = put_messages(path("d"), [batch], options=options)
    inspected = fed([schema]).inspect(message)
    assert inspected.costly is costly
    assert batch.nbytes <= inspected.decoded_bytes <= batch.nbytes + 64


@pytest.mark.parametrize("kind", [MessageKind.DICTIONARY, MessageKind.RECORD_BATCH])
def test_a_long_header_is_looked_at_where_it_may_take_its_time(kind: MessageKind) -> None:
    words = pa.record_batch({"w": pa.array(["a"]).dictionary_encode()})
    schema, *others = ipc_messages(words.schema, [words])
    before = [flight_data(schema.header, descriptor=path("d"))]
    if kind is MessageKind.RECORD_BATCH:
        before.append(flight_data(others[0].header, others[0].body))
    message = others[len(before) - 1]
    for times, match in (1, None), (1000, "from so many places"):
        one = fed(before)
        header = with_folded_metadata(message.header, times, COSTLY_HEADER_BYTES)
        inspected = one.inspect(flight_data(header, message.body))
        assert (inspected.kind, inspected.costly) == (kind, True)
        if match is None:
            one.decode(inspected)
        else:
            with pytest.raises(BadFrame, match=match):
                one.decode(inspected)


def test_a_small_batch_after_a_large_dictionary_is_costly() -> None:
    words = pa.array(["x" * COSTLY_BYTES, "y"]).dictionary_encode()
    schema, dictionary, first, second = put_messages(path("d"), [pa.record_batch({"w": words})] * 2)
    one = fed([schema, dictionary])
    assert one.inspect(first).costly
    one = fed([schema, dictionary, first])
    assert not one.inspect(second).costly


def test_what_the_decoder_copies_of_dictionaries_is_told() -> None:
    kind = pa.dictionary(pa.int32(), pa.string())

    def grown(words: list[str]) -> pa.RecordBatch:
        return pa.record_batch(
            {"w": pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(words))}
        )

    batches = [grown(["a" * 1000]), grown(["a" * 1000, "b" * 500]), grown(["c"])]
    assert batches[0].schema.field("w").type == kind
    one = decoder()
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    accepted = [one.feed(message) for message in put_messages(path("d"), batches, options=options)]
    whole, delta, replacement = [each for each in accepted if each.kind is MessageKind.DICTIONARY]
    assert (whole.dictionary_delta, whole.copied_bytes) == (False, 0)
    assert delta.dictionary_delta
    assert delta.copied_bytes >= 1500  # both together are a new array
    assert (replacement.dictionary_delta, replacement.copied_bytes) == (False, 0)
    schema, compressed, _ = put_messages(path("d"), batches[:1], options=ZSTD)
    assert fed([schema]).feed(compressed).copied_bytes >= 1000


# Schemas of one dataset


def message_of(schema: pa.Schema) -> SchemaMessage:
    return SchemaMessage.of(schema)


WORDS = pa.schema([("n", pa.int64()), ("w", pa.dictionary(pa.int32(), pa.string()))])


def test_metadata_may_differ_between_the_producers_of_a_dataset() -> None:
    for schema in (pa.schema([("n", pa.int64())]), WORDS):
        message_of(schema).check_same(message_of(schema.with_metadata({"pandas": "{}"})), "d")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pa.schema([("n", pa.int64())]), "it has columns ['n'], the dataset has ['n', 'w']"),
        (pa.schema([("w", pa.string()), ("n", pa.int64())]), "it has columns ['w', 'n']"),
        (WORDS.set(0, pa.field("n", pa.int32())), "column 'n' is"),
        (WORDS.set(0, pa.field("n", pa.int64(), nullable=False)), "column 'n' is"),
        (WORDS.set(1, pa.field("w", pa.string())), "column 'w' is"),
    ],
)
def test_another_schema_is_refused_with_the_first_difference(given: pa.Schema, words: str) -> None:
    with pytest.raises(InvalidRequest, match="differs from dataset 'd'") as refused:
        message_of(WORDS).check_same(message_of(given), "d")
    assert words in refused.value.message
    assert "cast the batches" in refused.value.message
    assert len(refused.value.message) < 500


def test_of_many_columns_only_the_first_that_differs_is_named() -> None:
    wanted = pa.schema([(f"c{number}", pa.int8()) for number in range(1000)])
    renamed = wanted.set(700, pa.field("other", pa.int8()))
    with pytest.raises(InvalidRequest, match="column 700 is 'other', in the dataset 'c700'"):
        message_of(wanted).check_same(message_of(renamed), "d")
    with pytest.raises(InvalidRequest, match="it has 999 columns, the dataset has 1000"):
        message_of(wanted).check_same(message_of(wanted.remove(0)), "d")


def test_dictionary_ids_must_agree_because_readers_get_one_schema() -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("a", kind), ("b", kind)])
    canonical = message_of(schema)
    # The id of the second dictionary, 1, is a 64-bit number.
    one, seven = (number.to_bytes(8, "little") for number in (1, 7))
    renumbered = SchemaMessage(canonical.header.replace(one, seven, 1))
    assert renumbered.schema.equals(schema)
    assert not renumbered.canonical()
    with pytest.raises(InvalidRequest, match="dictionary ids"):
        canonical.check_same(renumbered, "d")
    renumbered.check_same(renumbered, "d")


def test_the_byte_order_must_agree() -> None:
    little = SchemaMessage(schema_header(0))
    big = SchemaMessage(schema_header(1))
    big.check_same(big, "d")
    with pytest.raises(InvalidRequest, match="byte order"):
        little.check_same(big, "d")


@pytest.mark.parametrize(
    "kind",
    [
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.struct([("x", pa.map_(pa.string(), pa.dictionary(pa.int8(), pa.string())))]),
        pa.dense_union([pa.field("x", pa.dictionary(pa.int8(), pa.string()))]),
        pa.run_end_encoded(pa.int16(), pa.dictionary(pa.int8(), pa.string())),
        pa.list_(pa.dictionary(pa.int8(), pa.string()), 2),
    ],
)
def test_a_dictionary_is_found_at_any_depth(kind: pa.DataType) -> None:
    assert has_dictionaries(pa.schema([("n", pa.int8()), ("x", kind)]))


def test_plain_columns_have_no_dictionaries() -> None:
    kinds = [pa.string(), pa.list_(pa.int8()), pa.struct([("x", pa.null())]), pa.uuid(), pa.bool8()]
    assert not has_dictionaries(pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)]))
