"""Layers and images of a lookup in memory, and what they hold, as plain Python."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_client.joining import Keys
from spark_client.lookup.images import Image, changed, merged
from spark_client.lookup.layers import Layer, write_layer


def layer(
    rows: pa.Table, *, keys: int = 1, after: int | None = None, version: int = 1, live: int | None = None
) -> Layer:
    """A layer of these rows, written and read again."""
    out = io.BytesIO()
    write_layer(out, rows.to_batches(), rows.schema, keys=keys, after=after, version=version, live=live)
    return Layer.over(pa.py_buffer(out.getvalue()))


def above(image: Image, rows: pa.Table, diffs: Sequence[int]) -> Image:
    """The image with the delta's layer on top."""
    (batch,) = rows.combine_chunks().to_batches()
    kept, live = changed(image, batch, np.array(diffs, np.int64))
    keys, version = image.layers[0].key_count, image.version
    top = layer(pa.table(kept), keys=keys, after=version, version=version + 1, live=live)
    return Image([*image.layers, top])


def merge(layers: Sequence[Layer]) -> Layer:
    """The layer that stands for these."""
    out, content = io.BytesIO(), merged(layers)
    first, last = layers[0], layers[-1]
    write_layer(
        out,
        content.batches,
        first.schema,
        keys=first.key_count,
        after=first.after,
        version=last.version,
        live=content.live,
        index=content.index,
    )
    return Layer.over(pa.py_buffer(out.getvalue()))


def found(image: Image, *columns: pa.Array) -> list[Counter[str]]:
    """The rows of each of these keys, as texts with their counts."""
    keys = Keys.of(columns)
    matches = image.find(keys)
    rows = image.take(matches, slice(None)).to_pylist()
    answers: list[Counter[str]] = [Counter() for _ in range(len(keys))]
    for position, row in zip(matches.positions.tolist(), rows, strict=True):
        answers[position][repr(row)] += 1
    return answers
