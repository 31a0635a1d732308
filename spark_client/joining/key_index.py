"""An index of keys in memory: for each wanted key, the rows that have it.

Guarantee: :meth:`KeyIndex.find` gives for each key the one *entry* with exactly this key, or -1; an entry's rows are
all rows that have its key, and no others.

How
    The hashes are sorted, each distinct key is an entry, and a directory over the range of the hashes says where a
    probe begins: a probe reads one place of the directory and 1.5 entries on average. The directory follows the
    smallest and the largest hash, because a window (``spill.windows``) has hashes of a part of the range only.
    Where hashes are crowded a binary search takes over.

Numbers that are spread evenly
    They need no hashes: their distances from the least one do as well, as long as a part of the range has about as many
    of them as another one. Rows that come in the order of their keys then find neighbouring entries.

Numbers that lie close together
    The numbers of rows of a table, as most keys are, need no hashes: where the keys are numbers, and their range has at
    most ``RANGE_TIMES`` as many places as there are keys, or ``RANGE_PLACES``, each place has its entry. A probe reads
    it, which takes a sixth of the time.

Memory
    16 bytes for each row, 24 for each distinct key, and the distinct keys themselves unless they are exact; of numbers
    that lie close together 16 and 8, and 4 for each place of the range. While it is built, 24 more for each row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_client.arrow import array_over, group_codes, values

from .join_keys import Keys, Positions

INDEX_ROW_BYTES = 40
RANGE_TIMES = 4
RANGE_PLACES = 1 << 18
_STEPS = 4


class KeyIndex:
    """The index of ``keys``; ``rows`` are their numbers, None for their positions."""

    def __init__(self, keys: Keys, rows: Positions | None = None) -> None:
        numbers = _close_numbers(keys)
        self._range = None if numbers is None else _Range(numbers)
        if self._range is not None and self._range.is_unique:
            order = starts = np.arange(len(keys))
        else:
            self._least = _least_of_even(keys) if numbers is None else None
            sorts = self._sorts(keys) if numbers is None else numbers
            order = np.argsort(sorts)
            sorts = sorts[order]
            begins = np.ones(len(sorts), np.bool_)
            begins[1:] = sorts[1:] != sorts[:-1]
            if not keys.exact:
                order = _distinguished(keys, order, begins)
            starts = np.flatnonzero(begins)
            if self._range is not None:
                self._range = _Range(sorts[starts].view(np.int64))
        self.entries = len(starts)
        self._keys = None if keys.exact else keys.take(order[starts])
        self._rows: Positions = order if rows is None else rows[order]
        self._bounds: Positions = np.append(starts, len(order))
        if self._range is None:
            # One more, so that the place after the last entry can be read.
            self._hashes = np.append(sorts[starts].view(np.uint64), np.uint64(0xFFFFFFFFFFFFFFFF))
            self._directory()

    def _sorts(self, keys: Keys) -> NDArray[np.uint64]:
        """By which entries are sorted."""
        numbers = keys.numbers
        if self._least is None or numbers is None:
            return keys.hashes
        return (numbers - self._least).view(np.uint64)

    def _directory(self) -> None:
        hashes = self._hashes[: self.entries]
        self._low = hashes[0] if self.entries else np.uint64(0)
        spread = int(hashes[-1] - self._low) if self.entries else 0
        bits = max(1, (2 * self.entries).bit_length())
        self._shift = np.uint64(max(0, spread.bit_length() - bits))
        self._last = np.uint64((spread >> int(self._shift)) + 1)
        counts = np.bincount(
            ((hashes - self._low) >> self._shift).view(np.int64), minlength=int(self._last) + 1
        )
        places = np.cumsum(counts) - counts
        self._places = places.astype(np.int32 if self.entries < 1 << 31 else np.int64)

    @property
    def is_unique(self) -> bool:
        return self.entries == len(self._rows)

    def find(self, keys: Keys) -> Positions:
        """The entry of each key, or -1."""
        if self._range is not None and (numbers := keys.numbers) is not None:
            return self._range.find(numbers)
        hashes = self._sorts(keys)
        # A hash below the lowest wraps around, and is then above the highest.
        buckets = np.minimum((hashes - self._low) >> self._shift, self._last).view(np.int64)
        places: Positions = self._places[buckets].astype(np.int64)
        nearest = self._hashes[places]
        behind = np.flatnonzero(nearest < hashes)
        for _ in range(_STEPS):
            if not len(behind):
                break
            places[behind] += 1
            nearest[behind] = self._hashes[places[behind]]
            behind = behind[nearest[behind] < hashes[behind]]
        if len(behind):
            places[behind] = np.searchsorted(self._hashes[: self.entries], hashes[behind])
            nearest[behind] = self._hashes[places[behind]]
        places[(nearest != hashes) | (places == self.entries)] = -1
        if self._keys is not None:
            self._compare(keys, places)
        return places

    def counts(self, entries: Positions) -> Positions:
        """How many rows each entry has; 0 for -1."""
        # The place before the first is the last: its bound minus the one before it is not used.
        counts = self._bounds[entries + 1] - self._bounds[entries]
        return np.where(entries >= 0, counts, 0)

    def rows(self, entries: Positions, within: Positions | None = None) -> Positions:
        """The rows of entries, counted from 0 for each; the first if ``within`` is None. Any row for -1."""
        if not self.entries:
            return np.zeros(len(entries), np.int64)
        if self.is_unique:
            return self._rows[entries]
        places = self._bounds[np.maximum(entries, 0)]
        return self._rows[places if within is None else places + within]

    def rows_of(self, chosen: NDArray[np.bool_]) -> Positions:
        """All rows of the entries whose flags are set, ascending."""
        return np.sort(self._rows[np.repeat(chosen, np.diff(self._bounds))])

    def _compare(self, keys: Keys, places: Positions) -> None:
        """Go on to the next entry of the same hash where the keys differ."""
        assert self._keys is not None
        pending = np.flatnonzero(places >= 0)
        while len(pending):
            ours = keys.take(pending) if len(pending) < len(keys) else keys
            pending = pending[~ours.same(self._keys.take(places[pending]).columns)]
            places[pending] += 1
            others = self._hashes[places[pending]] != keys.hashes[pending]
            others |= places[pending] == self.entries
            places[pending[others]] = -1
            pending = pending[~others]


class _Range:
    """The places of numbers that lie close together; of equal ones that of any. Before the first number and behind the
    last one is a place without an entry.
    """

    def __init__(self, numbers: NDArray[np.int64]) -> None:
        # Of one element, because numpy warns of numbers alone that wrap around, as the least of all does.
        self._before = numbers.min(keepdims=True) - 1
        at = numbers - self._before
        self._entries = np.full(int(at.max()) + 2, -1, np.int32)
        places = np.arange(len(numbers), dtype=np.int32)
        self._entries[at] = places
        self.is_unique = bool((self._entries[at] == places).all())

    def find(self, numbers: NDArray[np.int64]) -> Positions:
        # A difference beyond 64 bits wraps around to one before the first number, or behind the last one.
        entries: Positions = self._entries.take(numbers - self._before, mode="clip").astype(np.int64)
        return entries


def _least_of_even(keys: Keys) -> NDArray[np.int64] | None:
    """The least of the keys, alone in an array, if they are numbers that are spread evenly."""
    numbers = keys.numbers
    if numbers is None or not len(numbers):
        return None
    least: NDArray[np.int64] = numbers.min(keepdims=True)
    distances = (numbers - least).view(np.uint64)
    shift = max(0, int(distances.max()).bit_length() - (2 * len(numbers)).bit_length())
    counts = np.bincount((distances >> np.uint64(shift)).view(np.int64))
    return least if counts @ counts <= _STEPS * len(numbers) else None


def _close_numbers(keys: Keys) -> NDArray[np.int64] | None:
    """The keys, if they are numbers that lie close together."""
    numbers = keys.numbers
    if numbers is None or not len(numbers):
        return None
    places = int(numbers.max()) - int(numbers.min())
    most = min(max(RANGE_TIMES * len(numbers), RANGE_PLACES), (1 << 31) - 1)
    return numbers if places < most else None


def _distinguished(keys: Keys, order: Positions, begins: NDArray[np.bool_]) -> Positions:
    """The order in which rows of one key are neighbours; marks where each key begins."""
    again = np.flatnonzero(~begins)
    if not len(again) or keys.take(order[again - 1]).same(keys.take(order[again]).columns).all():
        return order
    # Unequal keys have one hash: rare, so all rows of repeated hashes are sorted by their keys, too.
    codes = np.zeros(len(order), np.int64)
    involved = np.union1d(again - 1, again)
    at = array_over(order[involved])
    codes[involved] = values(
        group_codes([pa.chunked_array([column.take(at)]) for column in keys.columns]), np.int32
    )
    hashes = keys.hashes[order]
    inner = np.lexsort((codes, hashes))
    order, codes = order[inner], codes[inner]
    begins[1:] |= codes[1:] != codes[:-1]
    return order
