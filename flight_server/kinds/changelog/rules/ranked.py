"""Groups: the rows of whole keys at one version, as the keep rules take them; and the k greatest of each key.

A row with count 5 is there five times and takes five of the k places. Counts below zero take none.

Why :func:`needed_of_greatest` is enough. Let c be a row's count, r its later retractions, m = max(c + r, 0). At every
later version that can be asked for the row is there at least m times, because only its diffs below zero make it less.
So at least A copies, the sum of m over the greater rows of its key, are above it at each of them. Assertions do not
make A smaller.

* A row without later retractions cannot be shown if A >= k. It takes no place from a smaller row either, because the A
  copies above it fill all k. So it is not needed.
* While A < k all its copies are needed: a row takes the same room with any count, and each of its retractions, also
  one that comes after compaction, finds its copy.
* A row with later retractions is needed as it is: the retractions must find their row.
* A count below zero is an amount by which later assertions will not be shown. It is needed until they come, also while
  A >= k: the rows above may be retracted later.

Removing rows changes no min(A, k), so doing it twice changes nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Number = TypeVar("Number", np.int64, np.bool_)


@dataclass(frozen=True)
class Groups:
    """Distinct rows; those of one key are neighbours, and ascend by ``order_by`` and then by all columns.

    Args:
        starts: the index of each key's first row, ascending from 0.
        counts: of each row the sum of its diffs. Below zero if its retractions came before its assertions; such a row
            is not in the collection yet. Zeros are allowed.
        ask: of keys that come in pieces (``folding.PieceTotals``): for each one here, of which these are its sums, the
            total, and the sum of the pieces before. None if all rows of the keys are here.
    """

    rows: pa.RecordBatch
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    ask: Callable[[Counts], tuple[Counts, Counts]] | None = None

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Behind each key's last row."""
        ends = np.full(len(self.starts), self.rows.num_rows)
        ends[:-1] = self.starts[1:]
        return ends


@dataclass(frozen=True)
class Kept:
    """A collection: rows and how often each is there; zero for a row that is not there."""

    rows: pa.RecordBatch
    counts: NDArray[np.int64]


def sums(groups: Groups, values: NDArray[np.int64] | NDArray[np.bool_]) -> Counts:
    """For each key the sum over its rows."""
    return _sums(groups, values)[0]


def sums_upto(groups: Groups, values: NDArray[np.int64] | NDArray[np.bool_]) -> Counts:
    """For each row the sum over its key's rows up to it, itself included."""
    return _sums(groups, values)[1]


def of_rows(groups: Groups, of_keys: NDArray[Number]) -> NDArray[Number]:
    """For each row its key's value."""
    return of_keys.repeat(groups.ends - groups.starts)


def greatest(groups: Groups, counts: Counts, k: int) -> Counts:
    """How many copies of each row are among the k greatest of its key; counts below zero are none."""
    # A copy behind the k-th changes nothing; without the limit the sum of many large counts could overflow.
    # Not ``np.clip``, which takes several times as long for few rows.
    present = np.maximum(np.minimum(counts, k), 0)
    return np.minimum(np.maximum(k - _above(groups, present), 0), present)


def needed_of_greatest(groups: Groups, counts: Counts, later_retractions: Counts, k: int) -> Counts:
    """How many copies of each row must stay, so that the k greatest are right from now on."""
    lasting = np.clip(counts + later_retractions, 0, k)
    return np.where((later_retractions < 0) | (counts < 0) | (_above(groups, lasting) < k), counts, 0)


def _above(groups: Groups, present: Counts) -> Counts:
    """For each row how many copies of greater rows its key has."""
    of_keys, upto = _sums(groups, present)
    return of_rows(groups, of_keys) - upto


def _sums(groups: Groups, values: NDArray[np.int64] | NDArray[np.bool_]) -> tuple[Counts, Counts]:
    so_far = np.zeros(len(values) + 1, np.int64)
    values.cumsum(out=so_far[1:])
    starts = so_far[groups.starts]
    of_keys = so_far[groups.ends] - starts
    if groups.ask is not None and len(of_keys):
        of_keys, before = groups.ask(of_keys)
        starts = starts - before
    return of_keys, so_far[1:] - of_rows(groups, starts)
