"""Hits: where a run has the updates of some hashes. A read searches for them once, and asks then how large they are
and which of them it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .updates import Numbers, Updates


class BlockHits(NamedTuple):
    """Those in one block.

    Args:
        first: the place of its first hash among those that are looked for.
        starts, ends: of each hash, from that one on, the place of its first row in the block, and behind its last one.
        row_bytes: the mean of the block.
    """

    first: int
    updates: Updates
    starts: Numbers
    ends: Numbers
    row_bytes: float


class Hits:
    """Of ``count`` hashes, which are sorted and unique. ``sinces``: of each hash; updates up to this version are left
    out, but counted.
    """

    def __init__(self, count: int, blocks: list[BlockHits], sinces: Numbers | None = None) -> None:
        self._count = count
        self._blocks = blocks
        self._sinces = sinces

    def without_dead(self, sinces: Numbers) -> Hits:
        return Hits(self._count, self._blocks, sinces)

    def counts(self) -> Numbers:
        """How many updates each hash has."""
        counts = np.zeros(self._count, np.int64)
        for first, _, starts, ends, _ in self._blocks:
            counts[first : first + len(starts)] += ends - starts
        return counts

    def sizes_bytes(self) -> NDArray[np.float64]:
        """How many bytes the updates of each hash have, about."""
        sizes = np.zeros(self._count)
        for first, _, starts, ends, row_bytes in self._blocks:
            sizes[first : first + len(starts)] += (ends - starts) * row_bytes
        return sizes

    def parts(self, count: int | None = None, last: int | None = None) -> Iterator[Updates]:
        """The updates of the first ``count`` hashes, or of all, block by block; if ``last`` is given, at least so many
        of the greatest of each key.
        """
        end = self._count if count is None else count
        for first, updates, starts, ends, _ in self._blocks:
            few = max(0, end - first)
            sinces = None if self._sinces is None else self._sinces[first:end][: len(starts)]
            yield updates.at(starts[:few], ends[:few], last, sinces)
