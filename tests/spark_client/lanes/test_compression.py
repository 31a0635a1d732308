"""Which buffers are compressed, and that the messages with them decode to the same rows."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.protocol import ipc_framing
from spark_client.lanes import messages as message_writing
from spark_client.lanes.messages import (
    LEAST_BYTES,
    MOST,
    MOST_ON_THIS_HOST,
    REST_BATCHES,
    BufferCompressor,
    MessageWriter,
    most_to,
    shrinks,
)
from tests.integration.round_trip.test_types import COLUMNS, celsius
from tests.spark_client.lanes.test_messages import unframed
from tests.support.raw_flight import fields_of

__all__ = ["celsius"]

ROWS = 20_000
NOISE = np.random.default_rng(0)
ALL = 1_000.0
"""The buffers of these sizes also compress to more than they had, and all of them are to be taken."""


def same_again(rows: int = ROWS) -> pa.Array:
    return pa.array(np.zeros(rows, np.int64))


def random(rows: int = ROWS) -> pa.Array:
    return pa.array(NOISE.random(rows, np.float32))


def sent(batches: list[pa.RecordBatch], most: float = MOST) -> list[dict[int, bytes]]:
    """The fields of the batches' messages, with the schema's first."""
    writer = MessageWriter(batches[0].schema)
    writer.compressor = BufferCompressor(most)
    parts = writer.opening(b"")
    for batch in batches:
        writer.add(batch)
        parts += writer.take()
    assert all(parts)
    return [fields_of(message) for message in unframed(parts)]


def decoded(messages: list[dict[int, bytes]]) -> list[pa.RecordBatch]:
    stream = b"".join(ipc_framing.encapsulate(each[2]) + each.get(1000, b"") for each in messages)
    return list(pa.ipc.open_stream(stream))


def compressed(message: dict[int, bytes]) -> list[bool]:
    """Of each buffer that is not empty, whether it was compressed."""
    header, body = ipc_framing.IpcHeader(message[2]), message.get(1000, b"")
    batch = header.message.table(2)
    assert batch
    vector = message_writing._vector(header, batch, 2)
    places = [place for place in struct.iter_unpack("<qq", vector) if place[1]]
    if not batch.slot(3):
        return [False] * len(places)
    return [struct.unpack_from("<q", body, offset)[0] >= 0 for offset, _ in places]


@pytest.mark.parametrize("case", COLUMNS)
def test_every_type_decodes_to_itself_with_all_its_buffers_compressed(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_writing, "LEAST_BYTES", 1)
    columns = COLUMNS[case]
    whole = pa.RecordBatch.from_arrays(columns, [f"c{number}" for number in range(len(columns))])
    batches = [whole, whole.slice(1), whole.slice(0, 0), whole]
    messages = sent(batches, most=ALL)
    rows = whole.to_pylist()  # pyarrow 22 gives those of a slice of a sparse union wrongly
    for one, expected in zip(decoded(messages), [rows, rows[1:], [], rows], strict=True):
        one.validate(full=True)
        assert one.to_pylist() == expected
    if case not in ("nulls of no type", "text and bytes"):  # no buffer; views
        assert all(compressed(messages[-1]))


@given(
    st.lists(st.tuples(st.integers(0, 3 * LEAST_BYTES), st.booleans(), st.booleans()), min_size=1, max_size=6)
)
def test_any_mixture_of_buffers_decodes_to_itself(sizes: list[tuple[int, bool, bool]]) -> None:
    batches = [
        pa.record_batch(
            {
                "n": same_again(rows) if one else pa.array(NOISE.integers(0, 1 << 62, rows)),
                "s": pa.array(
                    [str(row % 7 if other else NOISE.integers(1 << 62)) for row in range(rows)], pa.string()
                ),
                "f": pa.array([None if row % 3 else 1.5 for row in range(rows)], pa.float32()),
            }
        )
        for rows, one, other in sizes
    ]
    assert [batch.equals(other) for batch, other in zip(decoded(sent(batches)), batches, strict=True)]


def test_a_column_that_repeats_is_compressed_and_one_of_random_floats_is_not() -> None:
    text = pa.array([f"the same words again, row {row % 10}" for row in range(ROWS)])
    batch = pa.record_batch({"text": text, "floats": random(), "zeros": same_again()})
    _, message = sent([batch])
    assert compressed(message) == [False, True, False, True]  # offsets, text, floats, zeros
    assert len(message[1000]) < batch.nbytes / 3
    assert decoded(sent([batch])) == [batch]


def test_a_batch_of_which_nothing_shrinks_is_sent_as_it_is() -> None:
    batch = pa.record_batch({"floats": random(), "few": pa.array(np.zeros(ROWS, bool))})
    _, message = sent([batch])
    plain = MessageWriter(batch.schema)
    plain.opening(b"")
    plain.add(batch)
    (expected,) = unframed(plain.take())
    assert message == fields_of(expected)


def test_small_buffers_and_dictionaries_stay_as_they_are() -> None:
    small = pa.record_batch({"n": same_again(LEAST_BYTES // 8 - 1)})
    assert compressed(sent([small])[1]) == [False]
    words = pa.array(["a long word that comes again " * 50] * 1_000).dictionary_encode()
    _, dictionary, batch = sent([pa.record_batch({"w": words})])
    plain = pa.BufferOutputStream()
    with pa.ipc.new_stream(plain, pa.schema([("w", words.type)])) as writer:
        writer.write_batch(pa.record_batch({"w": words}))
    assert dictionary[1000] in plain.getvalue().to_pybytes()
    assert compressed(batch) == [False]


def test_a_column_that_stops_to_shrink_is_tried_again_later_and_one_that_goes_on_at_once() -> None:
    zeros, noise = (
        pa.record_batch({"n": same_again()}),
        pa.record_batch({"n": NOISE.integers(0, 1 << 62, ROWS)}),
    )
    batches = [zeros, zeros, noise, zeros, *[zeros] * REST_BATCHES]
    found = [compressed(message)[0] for message in sent(batches)[1:]]
    assert found[:4] == [True, True, False, False]
    assert found.index(True, 3) == 2 + REST_BATCHES


def test_what_shrinks_only_in_its_middle_is_sent_as_it_is() -> None:
    half = NOISE.integers(0, 1 << 62, 4 * ROWS)
    misleading = np.concatenate([half, np.zeros(ROWS, np.int64), half])
    (_, message) = sent([pa.record_batch({"n": misleading})])
    assert compressed(message) == [False]


@pytest.mark.parametrize(
    ("host", "own", "most"),
    [
        ("127.0.0.1", "127.0.0.1", MOST_ON_THIS_HOST),
        ("::1", None, MOST_ON_THIS_HOST),
        ("localhost", None, MOST_ON_THIS_HOST),
        ("10.1.2.3", "10.1.2.3", MOST_ON_THIS_HOST),
        ("10.1.2.3", "10.1.2.4", MOST),
        ("flight.example", None, MOST),
    ],
)
def test_more_must_be_saved_where_the_server_is_on_this_host(host: str, own: str | None, most: float) -> None:
    assert most_to(host, own) == most


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"n": same_again(), "f": random()}, True),
        ({"f": random()}, False),
        ({"n": same_again(10)}, False),
        ({}, False),
    ],
)
def test_a_whole_batch_is_judged_by_samples_of_its_buffers(columns: dict[str, Any], expected: bool) -> None:
    assert shrinks(pa.record_batch(columns), MOST) is expected
