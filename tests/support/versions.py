"""Answers of the bulk lane to reads of changelogs, for ``tests.support.http_source``.

Limits: the test gives the batches, their marks and the totals; nothing is computed from the request.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa

from tests.support.http_source import END_OF_STREAM, HEAD, chunk, last_chunk

SCHEMA = pa.schema([("n", pa.int64())])
Marked = tuple[list[int], dict[str, str] | None]
"""The numbers of a batch, and its message's metadata."""


def marked(numbers: list[int], version: int, *, last: bool = False) -> Marked:
    return numbers, {"version": str(version), **({"last": "true"} if last else {})}


def encoded(batches: Sequence[Marked]) -> list[bytes]:
    """The schema's bytes and then each batch's."""
    sink = pa.BufferOutputStream()
    ends = [0, len(SCHEMA.serialize())]
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for numbers, metadata in batches:
            batch = pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)
            writer.write_batch(batch, custom_metadata=metadata)
            ends.append(sink.tell())
    data = sink.getvalue().to_pybytes()
    return [data[a:b] for a, b in itertools.pairwise(ends)]


def opening(batches: Sequence[Marked], generation: str = "g1", *, together: bool = False) -> list[bytes]:
    """An answer without its end; all batches in one chunk if ``together``."""
    schema, *rest = encoded(batches)
    pieces = [b"".join(rest)] if together and rest else rest
    return [HEAD.replace(b"g1", generation.encode()), chunk(schema), *map(chunk, pieces)]


def whole(
    batches: Sequence[Marked], rows: int | None = None, frames: int | None = None, *, together: bool = False
) -> list[bytes]:
    """A good answer, or one with other totals."""
    count = sum(len(numbers) for numbers, _ in batches) if rows is None else rows
    end = [chunk(END_OF_STREAM), last_chunk(count, len(batches) if frames is None else frames)]
    return opening(batches, together=together) + end
