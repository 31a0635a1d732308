"""History: the server's traffic, pools and waits over the last minutes, for a page that has just been opened.

Guarantee: at most ``SAMPLES`` samples, one taken every ``SAMPLE_SECONDS``, so the answer and the RAM are bounded. The
counters are those since the start of the server, so a late sample moves no bytes to another moment.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from flight_server.concurrency import Waits
from flight_server.datasets import Catalogue, Counters
from flight_server.tiering import Spiller

SAMPLE_SECONDS = 2.0
SAMPLES = 150
_RATE_SAMPLES = 5
"""A rate is that of the last 10 s: one over a single sample jumps with each large frame."""


class History:
    """That of one server; one event loop."""

    def __init__(self, catalogue: Catalogue, counters: Counters, spiller: Spiller, waits: Waits) -> None:
        self._budget = catalogue.budget
        self._counters = counters
        self._spiller = spiller
        self._waits = waits
        self._samples: deque[tuple[float, dict[str, int]]] = deque(maxlen=SAMPLES)

    async def sample(self) -> None:
        """Add the numbers of now."""
        self._samples.append((time.monotonic(), self._now()))

    def listed(self) -> dict[str, Any]:
        """The samples as columns, oldest first, and the age of each in seconds."""
        now, samples = time.monotonic(), list(self._samples)
        return {
            "age_seconds": [round(now - at, 3) for at, _ in samples],
            **{name: [sample[name] for _, sample in samples] for name in self._now()},
        }

    def rates(self) -> dict[str, int]:
        """Bytes per second of producers, of readers, and of the disk both ways, over the last 10 s."""
        now, last = time.monotonic(), self._now()
        at, first = (
            self._samples[max(0, len(self._samples) - _RATE_SAMPLES)] if self._samples else (now, last)
        )
        seconds = max(now - at, SAMPLE_SECONDS)
        return {
            f"{name}_per_second": int((last[name] - first[name]) / seconds)
            for name in ("bytes_in", "bytes_out", "spilled_bytes", "bytes_read_back")
        }

    def _now(self) -> dict[str, int]:
        return {
            "bytes_in": self._counters.bytes_in,
            "bytes_out": self._counters.bytes_out,
            "spilled_bytes": self._spiller.spilled_bytes,
            "bytes_read_back": self._counters.bytes_read_back,
            "memory_used_bytes": self._budget.memory.used_bytes,
            "disk_used_bytes": self._budget.disk.used_bytes,
            "waits": len(self._waits),
            "readers_ended_as_too_slow": self._counters.readers_ended_as_too_slow,
        }
