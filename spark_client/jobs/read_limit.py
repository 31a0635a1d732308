"""The most that a job of the driver's reads, in memory.

How much that is shows only while it is read: a column of texts which are all the same, a compressed file, a frame of
zeros take a thousandth of it where they are stored. A task that takes too much is one of many processes; the driver is
the application. So it stops, and leaves the job to tasks (``driver_tasks``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DECODED_TIMES = 8
"""What is read may be so many times as large in memory as the driver was to read."""


class TooMuchRead(Exception):
    """The job read more than the driver reads."""


@dataclass
class ReadLimit:
    """Of one job: all its tasks together read at most ``most_bytes``, and one batch."""

    most_bytes: int
    read_bytes: int = 0

    @classmethod
    def of(cls, driver_bytes: int) -> ReadLimit:
        """For what was expected to be at most ``driver_bytes``."""
        return cls(DECODED_TIMES * driver_bytes)

    def counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches. Raises TooMuchRead."""
        for batch in batches:
            self.read_bytes += batch.nbytes
            if self.read_bytes > self.most_bytes:
                raise TooMuchRead(f"what it reads takes more than {self.most_bytes} bytes in memory")
            yield batch
