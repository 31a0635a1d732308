"""The most that a job of the driver's reads, and makes of it, in memory.

How much that is shows only while it runs: a column of texts which are all the same, a compressed file, a frame of
zeros take a thousandth of it where they are stored, and a join may make a million rows of a thousand. A task that takes
too much is one of many processes, beside others; the driver is the application, and one thread. So it stops, and leaves
the job to tasks (``driver_tasks``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

DECODED_TIMES = 8
"""What is read may be so many times as large in memory as the driver was to read, and what a stage gives, too."""


class TooMuchRead(Exception):
    """The job read more than the driver reads."""


@dataclass
class ReadLimit:
    """Of one job: all its tasks together read at most ``most_bytes``, and one batch, and so much gives each stage."""

    most_bytes: int
    _bytes: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, driver_bytes: int) -> ReadLimit:
        """For what was expected to be at most ``driver_bytes``."""
        return cls(DECODED_TIMES * driver_bytes)

    def counted(self, name: str, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches, of what is read, or of a stage, by its name. Raises TooMuchRead."""
        for batch in batches:
            self._bytes[name] += batch.nbytes
            if self._bytes[name] > self.most_bytes:
                raise TooMuchRead(f"{name}: more than {self.most_bytes} bytes in memory")
            yield batch
