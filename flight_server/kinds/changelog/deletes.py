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
    updates = Updates.of(layout, rows, np.zeros(count, np.int64), np.full(count, DELETE))
    return updates if len(updates.key_starts) == count else updates.take(updates.key_starts)


def living(updates: Updates) -> tuple[Updates, Numbers | None]:
    """The updates without tombstones; and for each the version at which it is deleted, greater than every version if it
    is not. None if there is no tombstone.
    """
    if not updates.tombstones:
        return updates, None
    keys, order = _by_time(updates)
    deletes, versions = updates.diffs[order] == DELETE, updates.versions[order]
    places = np.where(deletes, np.arange(len(order)), len(order) - 1)
    following = np.minimum.accumulate(places[::-1])[::-1]
    deleted = deletes[following] & (keys[following] == keys)
    ends = np.empty(len(order), np.int64)
    ends[order] = np.where(deleted, versions[following], _NEVER)
    rows = np.flatnonzero(updates.diffs != DELETE)
    return updates.take(rows), ends[rows]


def undeleted(updates: Updates, since: int) -> tuple[Updates, Updates]:
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
    keys, order = _by_time(updates)
    passed = np.cumsum((updates.diffs[order] == DELETE) & (updates.versions[order] <= upto))
    total = passed[np.append(updates.key_starts[1:], len(updates)) - 1][keys]
    later = np.empty(len(order), np.int64)
    later[order] = total - passed
    later = later[updates.diffs != DELETE]
    later[ends <= after] = -1
    for number in range(int(later.max(initial=-1)) + 1):
        yield rows.where(later == number)


def _by_time(updates: Updates) -> tuple[Numbers, Numbers]:
    """For each update the number of its key; and the places of the updates by key and version, a tombstone before the
    others of its version.
    """
    keys = np.zeros(len(updates), np.int64)
    keys[updates.key_starts[1:]] = 1
    keys = np.cumsum(keys)
    return keys, np.lexsort((updates.diffs != DELETE, updates.versions, keys))
