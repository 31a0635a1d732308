"""Deletes: tombstones, which end all rows of a key, and their effect on sorted updates.

Guarantee: a tombstone deletes the updates of its key whose versions are below its own, also retractions that wait for
their rows. Later updates count anew. So an update counts from its version on, until the next tombstone of its key.

A tombstone is an update whose diff is ``DELETE``. Its row has the key; the other columns are null, also where the
schema declares them without nulls, so neither a rule nor a reader may get it: :func:`living` takes it out.

Compaction
    It sees whole keys, so at ``since`` deleted updates go with the tombstones up to ``since``.

Emitting
    Rows put together before a tombstone stay emitted. :func:`lifetimes` gives the updates so that no part has a
    tombstone between its first and its last update of a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .runs import DELETE, Layout, Updates

Numbers = NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


def tombstones(layout: Layout, batches: Sequence[pa.RecordBatch], dataset: str) -> Updates:
    """Sorted tombstones of the keys in these batches, with version 0, one for each key.

    Raises BadFrame: see :meth:`Layout.check_nulls`.
    """
    keys = pa.concat_batches([layout.key_rows(batch) for batch in batches])
    layout.check_nulls(keys, dataset)
    count, key = keys.num_rows, set(layout.key)
    columns = [
        keys.column(field.name) if number in key else pa.nulls(count, field.type)
        for number, field in enumerate(layout.schema)
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=layout.schema)
    found = Updates.of(layout, rows, np.zeros(count, np.int64), np.full(count, DELETE))
    return found if len(found.key_starts) == len(found) else found.take(found.key_starts)


def living(updates: Updates) -> tuple[Updates, Numbers | None]:
    """The updates without tombstones; and for each the version at which it is deleted, greater than every version if it
    is not. None if there is no tombstone.
    """
    if not updates.tombstones:
        return updates, None
    rows = np.flatnonzero(updates.diffs != DELETE)
    return updates.take(rows), _Tombstones.of(updates).ends(rows)


def settled(updates: Updates, since: int) -> tuple[Updates, Updates]:
    """The updates of whole keys, without tombstones, that are not deleted at ``since``; and the later tombstones."""
    rows, ends = living(updates)
    if ends is None:
        return updates, Updates.empty(updates.layout)
    later = (updates.diffs == DELETE) & (updates.versions > since)
    return rows.where(ends > since), updates.where(later)


def lifetimes(updates: Updates, after: int, upto: int) -> Iterator[Updates]:
    """The updates that count at a version from ``after`` to ``upto``, without tombstones, in parts: of each part and
    key no update is deleted in between that another one survives.
    """
    rows, ends = living(updates)
    if ends is None:
        yield updates
        return
    deletes = _Tombstones.of(updates).count(np.flatnonzero(updates.diffs != DELETE), upto)
    deletes[ends <= after] = -1
    for number in range(int(deletes.max(initial=-1)) + 1):
        yield rows.where(deletes == number)


@dataclass(frozen=True)
class _Tombstones:
    """The tombstones among updates, for look-ups by key and version.

    Args:
        keys: int64, for each update the number of its key.
        versions: int64, sorted and unique, of the tombstones.
        codes: int64, sorted and unique, of each tombstone: the key's number and the place in ``versions``, as one
            number in which the key counts more.
    """

    updates: Updates
    keys: Numbers
    versions: Numbers
    codes: Numbers

    @classmethod
    def of(cls, updates: Updates) -> _Tombstones:
        keys = np.zeros(len(updates), np.int64)
        keys[updates.key_starts[1:]] = 1
        keys = np.cumsum(keys)
        places = np.flatnonzero(updates.diffs == DELETE)
        versions, ranks = np.unique(updates.versions[places], return_inverse=True)
        return cls(updates, keys, versions, np.unique(keys[places] * (len(versions) + 1) + ranks))

    def ends(self, rows: Numbers) -> Numbers:
        """For each of these updates the version of the next tombstone of its key, ``_NEVER`` if there is none."""
        places = self._after(rows, self.updates.versions[rows])
        found = np.full(len(rows), _NEVER)
        there = np.flatnonzero(places < len(self.codes))
        keys, ranks = np.divmod(self.codes[places[there]], len(self.versions) + 1)
        same = keys == self.keys[rows[there]]
        found[there[same]] = self.versions[ranks[same]]
        return found

    def count(self, rows: Numbers, upto: int) -> Numbers:
        """For each of these updates how many tombstones of its key follow it, up to a version."""
        last = self._after(rows, np.full(len(rows), upto))
        found: Numbers = np.maximum(last - self._after(rows, self.updates.versions[rows]), 0)
        return found

    def _after(self, rows: Numbers, versions: Numbers) -> Numbers:
        """Where in ``codes`` the first tombstone of each update's key above its version is, or would be."""
        ranks = np.searchsorted(self.versions, versions, "right")
        codes = self.keys[rows] * (len(self.versions) + 1) + ranks
        found: Numbers = np.searchsorted(self.codes, codes, "left").astype(np.int64)
        return found
