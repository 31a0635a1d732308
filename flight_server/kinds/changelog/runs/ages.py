"""Ages: how many rows of a run file have which version, roughly, so that planning knows how many are old."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

STEPS = 64
"""Versions are told apart in so many steps of about equal rows; the rows of a step count as its newest version."""

Numbers = NDArray[np.int64]


class Ages:
    """Rows by version; never says that a row is older than it is. ``steps``: pairs of a version and the rows that have
    it, or an older one than that but newer than the pair before.
    """

    def __init__(self, steps: Sequence[Sequence[int]] = ()) -> None:
        pairs = np.array([(int(version), int(rows)) for version, rows in steps], np.int64).reshape(-1, 2)
        self._versions: Numbers = pairs[:, 0]
        self._rows: Numbers = pairs[:, 1]

    def add(self, versions: Numbers) -> None:
        found, rows = np.unique(versions, return_counts=True)
        known, places = np.unique(np.concatenate([self._versions, found]), return_inverse=True)
        total = np.zeros(len(known), np.int64)
        np.add.at(total, places, np.concatenate([self._rows, rows]))
        if len(known) > STEPS:
            until = np.cumsum(total)
            step = (until - 1) * STEPS // until[-1]
            last = np.flatnonzero(np.append(step[1:] != step[:-1], True))
            known, total = known[last], np.diff(until[last], prepend=0)
        self._versions, self._rows = known, total

    def upto(self, version: int) -> int:
        """How many rows have at most this version: no more than there are, and fewer by at most about a step."""
        return int(self._rows[: np.searchsorted(self._versions, version, "right")].sum())

    def to_json(self) -> list[list[int]]:
        """The constructor's argument."""
        return [[int(version), int(rows)] for version, rows in zip(self._versions, self._rows, strict=True)]
