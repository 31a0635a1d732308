"""Which range each row belongs to, by its place among boundaries.

Guarantee: the range of a row is the number of boundaries that are not after it, in the order of the codes.

How
    Column by column, a value becomes its place among the boundaries' values: odd at one of them, even between two.
    Places of several columns are combined into one number, and numbered again against those of the boundaries, so
    that they stay below twice the number of boundaries. Each column is one binary search for all rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.keys import compute, values

from .sort_codes import SortCodes


def ranges_of(rows: SortCodes, boundaries: SortCodes) -> NDArray[np.int32]:
    """The range, 0 to the number of boundaries, of each row. The boundaries ascend."""
    found = np.zeros(rows.rows, np.int64)
    bounds = np.zeros(boundaries.rows, np.int64)
    for column, other, descending in zip(rows.columns, boundaries.columns, rows.descending, strict=True):
        inner, at_bounds = _places(column, other, descending=descending)
        base = 2 * boundaries.rows + 1
        found, bounds = found * base + inner, bounds * base + at_bounds
        found, bounds = _among(found, bounds), _among(bounds, bounds)
    return np.searchsorted(bounds, found, side="right").astype(np.int32)


def _places(column: Any, boundaries: Any, *, descending: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of the rows' and of the boundaries' own values among the boundaries' values."""
    if isinstance(column, np.ndarray):
        return _among(column, boundaries), _among(boundaries, boundaries)
    wide = pa.large_binary()
    known = pa.array(sorted(set(boundaries.to_pylist())), wide)
    found = []
    for data in (column.cast(wide), boundaries.cast(wide)):
        low, high = (_search(known, data, side) for side in ("left", "right"))
        found.append(2 * len(known) - low - high if descending else low + high)
    return found[0], found[1]


def _search(known: Any, data: Any, side: Any) -> NDArray[np.int64]:
    if hasattr(compute(), "search_sorted"):
        return values(compute().search_sorted(known, data, side=side), np.uint64).astype(np.int64)
    # pyarrow 22 has no such function. Bytes of Python have the same order.
    one, other = (np.array([*each.to_pylist(), None], object)[:-1] for each in (known, data))
    return np.searchsorted(one, other, side=side).astype(np.int64)


def _among(numbers: NDArray[Any], boundaries: NDArray[Any]) -> NDArray[np.int64]:
    """Twice the position among the boundaries' distinct values, and one more at one of them."""
    known = np.unique(boundaries)
    low = np.searchsorted(known, numbers, side="left")
    return low + np.searchsorted(known, numbers, side="right")
