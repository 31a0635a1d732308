"""As-of matches: for each row of the left side the right side's row of the same key that is nearest in time.

Guarantee: :meth:`TimedRows.match` finds what ``pandas.merge_asof(by=…)`` finds. *backward*: the last right row whose
time is not after the left's; *forward*: the first one whose time is not before it; *nearest*: of the two the nearer
one, the one before if both are as near. Right rows of one key and time are in the order in which they were given. A
null, and a NaN as a time, matches nothing.

How
    The entries of a hash index (``key_index``) number the right's keys, and the distinct times in order are numbered,
    too. So each right row has one number that is ordered by key and time, and a match is one binary search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from flight_server.keys import flags
from spark_client.arrow import decimal_halves, values, widened

from .held_rows import HeldRows, joined
from .join_keys import MatchKeys, Positions

Direction = Literal["backward", "forward", "nearest"]

TIMED_ROW_BYTES = 48
"""Of each right row, beside the index of its key."""


@dataclass(frozen=True)
class AsOf:
    """The times and which of them match.

    Args:
        left, right: the sides' columns.
        compared: the type to which both are cast: a type of times, an integer, ``float64`` or a decimal of at most 18
            digits.
        tolerance: the largest distance, in the type's units; None for any.
        exact: whether an equal time matches.
    """

    left: str
    right: str
    compared: pa.DataType
    direction: Direction = "backward"
    tolerance: int | float | None = None
    exact: bool = True

    def times(self, column: pa.Array) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """The times as ``int64`` or ``float64``, and which of them are there; None for all."""
        valid = flags(column.is_valid()) if column.null_count else None
        if types.is_floating(self.compared):
            numbers = values(widened(column, pa.float64()), np.float64)
            number = ~np.isnan(numbers)
            if not number.all():
                valid = number if valid is None else valid & number
            return numbers, valid
        column = column.cast(self.compared)
        if types.is_decimal(self.compared):
            return decimal_halves(column)[:, 0], valid
        width = self.compared.bit_width
        return values(column, np.dtype(f"i{width // 8}")).astype(np.int64, copy=False), valid


class TimedRows:
    """The right side's rows, or a part of them, in memory. ``schema``: of the columns that results have."""

    def __init__(
        self, batches: Sequence[pa.RecordBatch], keys: MatchKeys, schema: pa.Schema, as_of: AsOf
    ) -> None:
        self._as_of = as_of
        self.held = HeldRows(joined(batches), keys, schema)
        parts = [as_of.times(batch.column(as_of.right)) for batch in batches if batch.num_rows]
        self._times = np.concatenate([times for times, _ in parts]) if parts else np.zeros(0, np.int64)
        entries = self._entries(parts)
        rows = np.flatnonzero(entries >= 0)
        self._known, ranks = np.unique(self._times[rows], return_inverse=True)
        self._base = len(self._known) + 1
        places = entries[rows] * self._base + ranks
        order = np.argsort(places, kind="stable")
        self._places, self._rows = places[order], rows[order]

    def _entries(self, parts: Sequence[tuple[Any, NDArray[np.bool_] | None]]) -> Positions:
        """Each row's key by its number in the index; -1 if the row matches nothing."""
        index = self.held.index
        entries = np.full(len(self.held), -1, np.int64)
        counts = index.counts(np.arange(index.entries))
        each = np.repeat(np.arange(index.entries), counts)
        within = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
        entries[index.rows(each, within)] = each
        start = 0
        for times, valid in parts:
            if valid is not None:
                entries[start : start + len(times)][~valid] = -1
            start += len(times)
        return entries

    def match(self, batch: pa.RecordBatch, keys: MatchKeys) -> Positions:
        """For each row of a left batch the number of its match in ``held``, or -1."""
        matches = np.full(batch.num_rows, -1, np.int64)
        if not len(self._places):
            return matches
        matching, rows = keys.of(batch)
        times, valid = self._as_of.times(batch.column(self._as_of.left))
        entries = matches.copy()
        entries[slice(None) if rows is None else rows] = self.held.index.find(matching)
        if valid is not None:
            entries[~valid] = -1
        candidates = np.flatnonzero(entries >= 0)
        matches[candidates] = self._nearest(entries[candidates], times[candidates])
        return matches

    def _nearest(self, entries: Positions, times: NDArray[Any]) -> Positions:
        as_of = self._as_of
        if as_of.direction == "nearest":
            before, after = (
                self._search(entries, times, forward=False),
                self._search(entries, times, forward=True),
            )
            earlier = (before >= 0) & (
                (after < 0) | (self._distance(before, times) <= self._distance(after, times))
            )
            places = np.where(earlier, before, after)
        else:
            places = self._search(entries, times, forward=as_of.direction == "forward")
        if as_of.tolerance is not None:
            places[self._distance(places, times) > as_of.tolerance] = -1
        return np.where(places >= 0, self._rows[places], -1)

    def _search(self, entries: Positions, times: NDArray[Any], *, forward: bool) -> Positions:
        """The places of the nearest rows on one side; -1 for none."""
        # An equal time is on the side of the rows that match exactly if it counts.
        side: Literal["left", "right"] = "left" if forward == self._as_of.exact else "right"
        first = entries * self._base
        places = _find(self._places, first + _find(self._known, times, side), "left")
        if forward:
            within = self._places[np.minimum(places, len(self._places) - 1)] < first + self._base
            return np.where((places < len(self._places)) & within, places, -1)
        places -= 1
        return np.where(self._places[places] >= first, places, -1)

    def _distance(self, places: Positions, times: NDArray[Any]) -> NDArray[Any]:
        theirs = self._times[self._rows[places]]
        if times.dtype == np.float64:
            with np.errstate(invalid="ignore"):
                # Two equal infinities have no difference.
                return np.where(theirs == times, 0.0, np.abs(theirs - times))
        # The distance of two int64 fits uint64.
        later, earlier = np.maximum(theirs, times), np.minimum(theirs, times)
        distance: NDArray[np.uint64] = later.view(np.uint64) - earlier.view(np.uint64)
        return distance


def _find(ordered: NDArray[Any], needles: NDArray[Any], side: Literal["left", "right"]) -> Positions:
    """As ``searchsorted``, with the wanted values in order: their places are then neighbours in a core's cache."""
    order = np.argsort(needles)
    places = np.empty(len(needles), np.int64)
    places[order] = np.searchsorted(ordered, needles[order], side=side)
    return places
