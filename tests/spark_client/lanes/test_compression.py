"""Which puts are compressed where their client has left it to the first large batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_client.lanes.messages import MOST, MOST_ON_THIS_HOST, MessageWriter, codec_for, most_to
from tests.spark_client.lanes.test_messages import unframed

ROWS = 20_000
NOISE = np.random.default_rng(0)
ZEROS = pa.record_batch({"n": np.zeros(ROWS, np.int64)})
FEW = pa.record_batch({"n": np.zeros(10, np.int64)})
RANDOM = pa.record_batch({"n": NOISE.integers(0, 1 << 62, ROWS)})


def sent(
    batches: list[pa.RecordBatch], codec: str | None = None, *, most: float | None = None
) -> list[bytes]:
    writer = MessageWriter(batches[0].schema, codec)
    writer.most = most
    parts = writer.opening(b"")
    for batch in batches:
        writer.add(batch)
        parts += writer.take()
    return unframed(parts)


@pytest.mark.parametrize(
    ("batches", "codec"),
    [([ZEROS, RANDOM, ZEROS], "lz4"), ([RANDOM, ZEROS, ZEROS], None), ([FEW, FEW], None)],
)
def test_the_first_batch_decides_for_all(batches: list[pa.RecordBatch], codec: str | None) -> None:
    assert sent(batches, most=MOST) == sent(batches, codec)


@pytest.mark.parametrize("first", [[FEW], [FEW.slice(0, 0)], [FEW, FEW.slice(0, 0)]])
def test_batches_too_small_to_tell_leave_it_to_the_first_large_one(first: list[pa.RecordBatch]) -> None:
    decided = sent([ZEROS, RANDOM], "lz4")[1:]
    assert sent([*first, ZEROS, RANDOM], most=MOST) == sent(first) + decided


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
        ({"n": ZEROS["n"], "f": NOISE.random(ROWS, np.float32)}, "lz4"),
        ({"f": NOISE.random(ROWS, np.float32)}, None),
        ({"n": FEW["n"]}, None),
        ({}, None),
    ],
)
def test_a_batch_is_judged_by_samples_of_its_buffers(columns: dict[str, Any], expected: str | None) -> None:
    assert codec_for(pa.record_batch(columns), MOST) == expected


LATER_RANDOM = pa.record_batch({"n": np.concatenate([ZEROS["n"].to_numpy(), RANDOM["n"].to_numpy()])})


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (LATER_RANDOM.slice(0, ROWS), "lz4"),
        (LATER_RANDOM.slice(ROWS), None),
        (LATER_RANDOM.slice(ROWS // 2, ROWS // 4), "lz4"),
    ],
)
def test_a_slice_is_judged_by_its_own_rows(batch: pa.RecordBatch, expected: str | None) -> None:
    assert codec_for(batch, MOST) == expected
    assert sent([batch, RANDOM], most=MOST) == sent([batch, RANDOM], expected)


def test_a_small_slice_of_a_large_batch_leaves_it_to_the_first_large_one() -> None:
    first = RANDOM.slice(7, 10)
    assert sent([first, ZEROS], most=MOST) == sent([first]) + sent([ZEROS], "lz4")[1:]
