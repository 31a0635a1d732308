"""An image: what lookups see of a changelog at one version, as layers one above the other.

Guarantee: :meth:`Image.find` gives the rows of each key from the topmost layer that has the key, and from no other:
these are the rows at the image's version (``layers``). :func:`merged` changes no answer.

A delta becomes a layer by :func:`changed`: the rows of its keys before the delta, plus what it asserts, minus what it
retracts. Rows are told apart by hashes, and compared; where a comparison shows a collision, or a retracted row is not
there, the function raises :class:`Unsure`, and the caller takes a snapshot instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import Picker
from spark_client.joining import Keys
from spark_client.placement import row_hashes

from .layers import Index, Layer
from .row_equality import same_rows

Positions = NDArray[np.int64]

_MAX_ROWS = 1 << 48
"""More than a layer has."""


class Unsure(Exception):
    """A delta cannot be applied with certainty."""


@dataclass(frozen=True)
class Matches:
    """The rows of looked-up keys: for each, the position of its key in the probe, ascending, its layer and its number
    there.
    """

    positions: Positions
    layers: Positions
    rows: Positions

    def __len__(self) -> int:
        return len(self.positions)

    def slice(self, window: slice) -> Matches:
        return Matches(self.positions[window], self.layers[window], self.rows[window])


class Image:
    """The layers, from the whole one to the newest. Immutable."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        assert layers[0].after is None
        assert all(above.after == below.version for below, above in itertools.pairwise(layers))
        self.layers = tuple(layers)

    @property
    def version(self) -> int:
        return self.layers[-1].version

    def find(self, keys: Keys) -> Matches:
        """All rows with these keys, in the keys' order."""
        found: list[tuple[Positions, Positions, Positions]] = []
        waiting: Positions | None = None
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            asked = keys if waiting is None else keys.take(waiting)
            positions, rows = layer.find(asked)
            if waiting is not None:
                positions = waiting[positions]
            live = rows < layer.live
            found.append((positions[live], np.full(int(live.sum()), number), rows[live]))
            if number:
                decided = np.ones(len(keys), np.bool_) if waiting is None else np.zeros(len(keys), np.bool_)
                if waiting is not None:
                    decided[waiting] = True
                decided[positions] = False
                waiting = np.flatnonzero(decided)
        positions, layers, rows = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.argsort(positions, kind="stable")
        return Matches(positions[order], layers[order], rows[order])

    def take(self, matches: Matches, columns: slice) -> pa.RecordBatch:
        """These columns of the rows, in order."""
        used = np.unique(matches.layers).tolist() or [0]
        if len(used) == 1:
            return self.layers[used[0]].take(matches.rows, columns)
        picked, order = [], []
        for number in used:
            here = np.flatnonzero(matches.layers == number)
            order.append(here)
            picked.append(self.layers[number].take(matches.rows[here], columns))
        return Picker(pa.concat_batches(picked)).take(np.argsort(np.concatenate(order)))


def changed(image: Image, rows: pa.RecordBatch, diffs: NDArray[np.int64]) -> tuple[pa.RecordBatch, int]:
    """The rows of a new layer over ``image``, and the number of the first row of a gone key.

    Args:
        rows: the delta's rows, keys in their normal form before the values; not empty.
        diffs: how often each was asserted, or, below zero, retracted.

    Raises:
        Unsure: see the module.
    """
    key_count = image.layers[0].key_count
    before = image.find(Keys.of(rows.columns[:key_count]))
    # Each once: by one number, which is sorted much faster than pairs.
    layers, rows_before = np.divmod(np.unique(before.layers * _MAX_ROWS + before.rows), _MAX_ROWS)
    old = image.take(Matches(np.zeros_like(layers), layers, rows_before), slice(None))
    every = pa.concat_batches([old.cast(rows.schema), rows])
    counts = np.concatenate([np.ones(old.num_rows, np.int64), diffs])
    groups, firsts = _groups(every, every.num_columns)
    totals = np.bincount(groups, counts, len(firsts)).astype(np.int64)
    if (totals < 0).any():
        raise Unsure("a row was retracted that is not there")
    keys, key_firsts = _groups(every, key_count)
    alive = np.zeros(len(key_firsts), np.bool_)
    alive[keys[firsts[totals > 0]]] = True
    kept = np.repeat(firsts, totals)
    gone = _keys_only(Picker(every).take(key_firsts[~alive]), key_count)
    return pa.concat_batches([Picker(every).take(kept), gone]), len(kept)


@dataclass(frozen=True)
class Merged:
    """The content of one layer, for ``write_layer``."""

    batches: Iterator[pa.RecordBatch]
    live: int
    index: Index


def merged(layers: Sequence[Layer]) -> Merged:
    """One layer that stands for these neighbours, the lowest first. Over a whole layer no key is gone."""
    kept = [np.ones(layer.rows, np.bool_) for layer in layers]
    for number, lower in enumerate(layers):
        for upper in layers[number + 1 :]:
            for keys in upper.each_keys():
                kept[number][lower.find(keys)[1]] = False
    chosen: list[tuple[Layer, NDArray[np.bool_]]] = []
    for alive in (True,) if layers[0].after is None else (True, False):
        for layer, rows in zip(layers, kept, strict=True):
            chosen.append((layer, rows & ((np.arange(layer.rows) < layer.live) == alive)))
    parts, first, live = list[Index](), 0, 0
    for number, (layer, rows) in enumerate(chosen):
        parts.append(layer.index.filtered(rows, first))
        first += int(rows.sum())
        live = first if number < len(layers) else live
    batches = itertools.chain.from_iterable(layer.filtered(rows) for layer, rows in chosen)
    return Merged(batches, live, Index.joined(parts))


def _groups(batch: pa.RecordBatch, columns: int) -> tuple[Positions, Positions]:
    """The group of each row by its first columns, and a row of each group. Raises Unsure."""
    batch = pa.RecordBatch.from_arrays(
        batch.columns[:columns], schema=pa.schema(list(batch.schema)[:columns])
    )
    hashes = _hashes(batch)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    within = np.flatnonzero(~begins)
    if not same_rows(batch, order[within - 1], order[within]).all():
        raise Unsure("unequal rows have one hash")
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(begins) - 1
    return groups, order[begins]


def _hashes(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    columns = []
    for column in batch.columns:
        plain = _hashed(column)
        if plain is not None:
            columns.append(plain)
        if column.null_count:
            # The hash of a null is that of nothing: without this, (null, 1) would have the hash of (1, null).
            columns.append(column.is_valid())
    return row_hashes(columns, batch.num_rows)


def _hashed(column: pa.Array) -> pa.Array | None:
    """The column as it is hashed; None for a type that is not."""
    if pa.types.is_map(column.type):
        items = pa.StructArray.from_arrays([column.keys, column.items], ["k", "v"])
        column = pa.ListArray.from_arrays(column.offsets, items)
    try:
        row_hashes([column.slice(0, 0)], 0)
    except TypeError:
        return None
    return column


def _keys_only(batch: pa.RecordBatch, keys: int) -> pa.RecordBatch:
    columns = [
        column if number < keys else pa.nulls(batch.num_rows, column.type)
        for number, column in enumerate(batch.columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
