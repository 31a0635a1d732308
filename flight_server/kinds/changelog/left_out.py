"""LeftOut: the keys of which a merge's rule left something out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

LEADING_BITS = 20


class LeftOut:
    """A set of hashes in 1 MiB for any number of keys. ``every``: begins with all hashes noted.

    It notes the leading bits of a hash, and tells keys apart while fewer than a million are noted.
    """

    def __init__(self, *, every: bool = False) -> None:
        self._noted = np.zeros(1 << LEADING_BITS, np.bool_)
        if every:
            self._noted[:] = True

    def note(self, hashes: Hashes) -> None:
        self._noted[_leading(hashes)] = True

    def among(self, hashes: Hashes) -> Hashes:
        """Those of these hashes that were noted, and a few others."""
        return hashes[self._noted[_leading(hashes)]]


def _leading(hashes: Hashes) -> NDArray[np.uint64]:
    leading: NDArray[np.uint64] = hashes >> np.uint64(64 - LEADING_BITS)
    return leading
