"""The sizes of a dataset's partitions, from the answers of the servers that have sealed it.

Where servers times partitions are more than ``EXACT_SIZES``, each server names its ``LARGEST_SIZES`` largest partitions
and gives the sum of the others, which is spread evenly: large partitions are known, small ones on average, and the
total is exact. Spark's map outputs do the same: exact sizes of huge blocks, and the average of the others
(``HighlyCompressedMapStatus`` in its ``core/src/main/scala/org/apache/spark/scheduler/MapStatus.scala``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

EXACT_SIZES = 10_000_000
"""Sizes that the driver takes from the servers' answers for one dataset: about 150 MB of JSON, one after the other."""
LARGEST_SIZES = 1_000


def largest_sizes(partitions: int, answers: int) -> int | None:
    """How many sizes each of the answers names; None: all."""
    return None if partitions * answers <= EXACT_SIZES else LARGEST_SIZES


class SealTotals:
    """The sums of the servers' answers to the seals of one dataset so far. Holds 8 bytes for each partition."""

    def __init__(self, partitions: int) -> None:
        self.rows = 0
        self.frames = 0
        self._bytes = np.zeros(partitions, np.int64)
        self._rest_bytes = 0

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add a server's answer: ``partition_bytes``, by the partitions' numbers as text, and ``rest_bytes``, of all
        partitions that it does not name.
        """
        self.rows += answer["rows"]
        self.frames += answer["frames"]
        sizes = answer["partition_bytes"]
        at = np.fromiter(map(int, sizes), np.int64, len(sizes))
        self._bytes[at] += np.fromiter(sizes.values(), np.int64, len(sizes))
        self._rest_bytes += answer.get("rest_bytes", 0)

    def sizes(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The stored bytes of each partition, over all servers. Where a server named only its largest ones, an empty
        partition may have a size, too.
        """
        if not self._rest_bytes or not len(self._bytes):
            return self._bytes
        each, left = divmod(self._rest_bytes, len(self._bytes))
        sizes = self._bytes + each
        sizes[:left] += 1
        return sizes


def filled_bits(answer: Mapping[str, Any]) -> bytes | None:
    """Of a server's answer to the seal a bit for each partition, from the lowest of the first byte on, which is 0 if
    the server has no rows of it; None if it does not name all partitions.
    """
    if "rest_bytes" in answer:
        return None
    at = np.fromiter(map(int, answer["partition_bytes"]), np.int64, len(answer["partition_bytes"]))
    bits = np.zeros(int(at.max()) + 1 if len(at) else 0, np.uint8)
    bits[at] = 1
    return np.packbits(bits, bitorder="little").tobytes()
