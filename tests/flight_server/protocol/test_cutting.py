"""Which batches are cut: those whose slices are together about as large as the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.frames.encoder import TARGET_BYTES, Encoder
from flight_server.protocol import cut
from spark_client.lanes.put_stream import MAX_FRAME_BYTES, frames

MIB = 1 << 20
ROWS = 100_000


def sent_bytes(batch: Any) -> int:
    return int(pa.ipc.get_record_batch_size(batch))


def list_views(rows: int, values: int = 10) -> Any:
    offsets = np.arange(0, rows * values, values)
    return pa.ListViewArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(np.full(rows, values), pa.int32()),
        pa.array(np.arange(rows * values)),
    )


def large_list_views(rows: int) -> Any:
    offsets = pa.array(np.arange(0, rows * 10, 10))
    return pa.LargeListViewArray.from_arrays(
        offsets, pa.array(np.full(rows, 10)), pa.array(np.arange(rows * 10))
    )


def dense_union(rows: int) -> Any:
    kinds, places = pa.array(np.arange(rows) % 2, pa.int8()), pa.array(np.arange(rows) // 2, pa.int32())
    numbers, texts = pa.array(np.arange(rows // 2)), pa.array([f"{row:040}" for row in range(rows // 2)])
    return pa.UnionArray.from_dense(kinds, places, [numbers, texts])


def texts(rows: int) -> Any:
    return pa.array([f"{row:0100}" for row in range(rows)])


SHARED: dict[str, Callable[[], Any]] = {
    "list_view": lambda: pa.record_batch({"a": list_views(ROWS)}),
    "large_list_view": lambda: pa.record_batch({"a": large_list_views(ROWS)}),
    "dense union": lambda: pa.record_batch({"a": dense_union(2 * ROWS)}),
    "string_view": lambda: pa.record_batch({"a": texts(ROWS).cast(pa.string_view())}),
    "list_view in a struct": lambda: pa.record_batch(
        {"a": pa.StructArray.from_arrays([list_views(ROWS)], ["l"])}
    ),
    "a tenth is a list_view": lambda: pa.record_batch({"a": list_views(ROWS, 2), "b": texts(ROWS)}),
}
OWN: dict[str, Callable[[], Any]] = {
    "numbers": lambda: pa.record_batch({"a": np.arange(10 * ROWS)}),
    "run-end encoded": lambda: pa.record_batch(
        {
            "a": pa.RunEndEncodedArray.from_arrays(
                pa.array(np.arange(1, 10 * ROWS), pa.int32()), np.arange(10 * ROWS - 1)
            )
        }
    ),
    "dictionary": lambda: pa.record_batch({"a": texts(ROWS).dictionary_encode(), "b": texts(ROWS)}),
    "sparse union": lambda: pa.record_batch(
        {
            "a": pa.UnionArray.from_sparse(
                pa.array(np.arange(4 * ROWS) % 2, pa.int8()),
                [pa.array(np.arange(4 * ROWS)), pa.array(np.arange(4 * ROWS) / 2)],
            )
        }
    ),
    "lists": lambda: pa.record_batch(
        {
            "a": pa.ListArray.from_arrays(
                pa.array(np.arange(ROWS + 1) * 10, pa.int32()), pa.array(np.arange(ROWS * 10))
            )
        }
    ),
}


def by_the_client(batch: Any) -> Iterator[int]:
    found = list(frames(batch))
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([batch]))
    return map(sent_bytes, found)


def by_a_source(batch: Any) -> Iterator[int]:
    checked = Encoder(batch.schema, max_message_bytes=64 * MIB).encode([batch])
    return (len(each.message) for each in checked if each.accepted.rows)


@pytest.mark.parametrize("sizes", [by_the_client, by_a_source])
@pytest.mark.parametrize("kind", [*SHARED, *OWN])
def test_what_is_sent_of_a_batch_is_about_as_large_as_the_batch(kind: str, sizes: Any) -> None:
    batch = {**SHARED, **OWN}[kind]()
    sent = list(sizes(batch))
    assert sent_bytes(batch) > TARGET_BYTES
    assert sum(sent) <= 1.25 * sent_bytes(batch)
    if kind in OWN:
        assert max(sent) <= MAX_FRAME_BYTES


def test_a_batch_above_the_limit_is_cut_where_that_helps() -> None:
    rows = 2 * ROWS
    union = pa.record_batch({"a": dense_union(rows)})
    assert cut(union, rows // 10, sent_bytes, limit_bytes=64 * MIB) == [union]
    assert len(cut(union, rows // 10, sent_bytes, limit_bytes=MIB)) in (1, 2)
    views = pa.record_batch({"a": list_views(ROWS)})
    assert cut(views, ROWS // 10, sent_bytes, limit_bytes=MIB) == [views]
