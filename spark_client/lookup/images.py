"""An image: the rows of a changelog at one version, for lookups, as layers one above the other.

Guarantee: :meth:`Image.find` gives the rows of each key from the topmost layer that has the key, and from no other:
these are the rows at the image's version (``layers``). :func:`merged` changes no answer.

A delta becomes a layer by :func:`changed`: the rows of its keys before the delta, plus its assertions, minus its
retractions. Rows are told apart by hashes, and compared; where a comparison shows a collision, or a retracted row is
not there, the function raises :class:`Unsure`, and the caller takes a snapshot instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import is_comparable, row_hashes, same
from spark_client.arrow import Picker, array_over, picked
from spark_client.joining import Keys

from .layers import Index, Layer

Positions = NDArray[np.int64]


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
        matches: list[tuple[Positions, Positions, Positions]] = []
        waiting: Positions | None = None
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            searched = keys if waiting is None else keys.take(waiting)
            positions, rows = layer.find(searched)
            if waiting is not None:
                positions = waiting[positions]
            live = rows < layer.live
            matches.append((positions[live], np.full(int(live.sum()), number), rows[live]))
            if number:
                decided = np.ones(len(keys), np.bool_) if waiting is None else np.zeros(len(keys), np.bool_)
                if waiting is not None:
                    decided[waiting] = True
                decided[positions] = False
                waiting = np.flatnonzero(decided)
        positions, layers, rows = (np.concatenate(each) for each in zip(*matches, strict=True))
        order = np.argsort(positions, kind="stable")
        return Matches(positions[order], layers[order], rows[order])

    def take(self, matches: Matches, columns: slice) -> pa.RecordBatch:
        return picked(
            matches.layers, matches.rows, lambda number, rows: self.layers[number].take(rows, columns)
        )


def changed(image: Image, rows: pa.RecordBatch, diffs: NDArray[np.int64]) -> tuple[pa.RecordBatch, int]:
    """The rows of a new layer over ``image``, and the number of the first row of a gone key.

    Args:
        rows: the delta's rows, keys in their normal form before the values; not empty.
        diffs: how often each was asserted, or, below zero, retracted.

    Raises:
        Unsure: see the module.
    """
    key_count = image.layers[0].key_count
    hashes = Keys.of(rows.columns[:key_count]).hashes
    keys, key_firsts = _groups(_columns(rows, key_count), hashes)
    changed_keys = _columns(Picker(rows).take(key_firsts), key_count)
    before = image.find(Keys(tuple(changed_keys.columns), hashes[key_firsts]))
    # A cast would do the same, but makes invalid lists of nulls without a type.
    old = pa.RecordBatch.from_arrays(image.take(before, slice(None)).columns, schema=rows.schema)
    every = pa.concat_batches([old, rows])
    asserted = _where_all_before_went(every, old.num_rows, before.positions, keys, diffs)
    if asserted is None:
        comparable = [column for column in every.columns if is_comparable(column.type)]
        groups, firsts = _groups(every, row_hashes(comparable, every.num_rows))
        counts = np.concatenate([np.ones(old.num_rows, np.int64), diffs])
        totals = np.bincount(groups, counts, len(firsts)).astype(np.int64)
        if (totals < 0).any():
            raise Unsure("a row was retracted that is not there")
        kept = np.repeat(firsts, totals)
    else:
        kept = old.num_rows + asserted
    alive = np.zeros(len(key_firsts), np.bool_)
    alive[np.concatenate([before.positions, keys])[kept]] = True
    gone = _keys_only(Picker(changed_keys).take(np.flatnonzero(~alive)), rows.schema)
    return pa.concat_batches([Picker(every).take(kept), gone]), len(kept)


def _where_all_before_went(
    every: pa.RecordBatch, old: int, old_keys: Positions, keys: Positions, diffs: NDArray[np.int64]
) -> Positions | None:
    """Which rows of the delta are asserted, if it retracts each row that its keys had before, and nothing else, as
    where each key has one row; None if it is not so, and rows must be told apart by their hashes.

    Args:
        every: the rows before, ``old`` of them, in the order of their keys' numbers, ``old_keys``; then the delta's.
        keys: the number of each delta row's key.
    """
    retracted = np.flatnonzero(diffs < 0)
    retracted = retracted[np.argsort(keys[retracted], kind="stable")]
    if (
        (np.abs(diffs) != 1).any()
        or not np.array_equal(keys[retracted], old_keys)
        or (old_keys[1:] == old_keys[:-1]).any()
        or not _same_rows(every, np.arange(old), old + retracted).all()
    ):
        return None
    return np.flatnonzero(diffs > 0)


@dataclass(frozen=True)
class LayerRows:
    """The rows for ``write_layer``, as its arguments of these names."""

    batches: Iterator[pa.RecordBatch]
    live: int | None = None
    index: Index | None = None


def merged(layers: Sequence[Layer]) -> LayerRows:
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
    return LayerRows(batches, live, Index.joined(parts))


def _columns(batch: pa.RecordBatch, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns[:count], schema=pa.schema(list(batch.schema)[:count]))


def _groups(batch: pa.RecordBatch, hashes: NDArray[np.uint64]) -> tuple[Positions, Positions]:
    """The group of each row, of equal ones, and a row of each group. Raises Unsure."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    within = np.flatnonzero(~begins)
    if not _same_rows(batch, order[within - 1], order[within]).all():
        raise Unsure("unequal rows have one hash")
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(begins) - 1
    return groups, order[begins]


def _same_rows(batch: pa.RecordBatch, first: Positions, second: Positions) -> NDArray[np.bool_]:
    """For each pair of row numbers of the batch, whether the two rows have the same bits: the count of one float is
    never changed for another one.
    """
    equal = np.ones(len(first), np.bool_)
    one, two = array_over(first), array_over(second)
    for column in batch.columns:
        equal &= same(column.take(one), column.take(two), bits=True)
    return equal


def _keys_only(keys: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows with these keys, and nulls."""
    values = [pa.nulls(keys.num_rows, field.type) for field in list(schema)[keys.num_columns :]]
    return pa.RecordBatch.from_arrays([*keys.columns, *values], schema=schema)
