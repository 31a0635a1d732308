"""Schedules of PCT: chains of events, of which one goes on at a time.

Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010: each chain has a
random priority, the first one goes on, and at a few random steps the chain that would go on becomes the last. A bug
that needs few events in an unusual order is found with few seeds.

Beside ``schedules.ScheduledLoop``, whose callbacks run in an order that is random at each step: there a chain is hardly
ever held back for long.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from random import Random

Chain = Generator[str, None, None]
"""Each step of it happens at once, and is named by the text that the step before it gives."""


class Schedule:
    """See the module's text. ``log`` has a line for each event.

    Args:
        changes: how many chains become the last, within the first ``steps`` steps.
    """

    def __init__(self, random: Random, changes: int, steps: int) -> None:
        self.log: list[str] = []
        self._random = random
        self._ready: list[tuple[float, int, Chain]] = []
        self._changes = {random.randrange(steps): 1.0 + number for number in range(changes)}
        self._faults: dict[int, list[Chain]] = {}
        self._steps = steps
        self._begun = 0

    def begin(self, chain: Chain) -> None:
        """Let a chain take part."""
        self._begun += 1
        heapq.heappush(self._ready, (-self._random.random(), self._begun, chain))

    def interrupt(self, chain: Chain, at: int | None = None) -> None:
        """From some step on the chain takes part, or from step ``at``, unless everything has ended before."""
        self._faults.setdefault(self._random.randrange(self._steps) if at is None else at, []).append(chain)

    def run(self) -> None:
        """Until every chain has ended."""
        while self._ready:
            for fault in self._faults.pop(len(self.log), ()):
                self.begin(fault)
            lowered = self._changes.pop(len(self.log), None)
            if lowered is not None:
                _, number, chain = self._ready[0]
                heapq.heapreplace(self._ready, (lowered, number, chain))
            at = self._ready[0]
            try:
                self.log.append(f"{at[1]} {next(at[2])}")
            except StopIteration:
                if self._ready[0] is at:
                    heapq.heappop(self._ready)
                else:  # it has begun a chain that is before it
                    self._ready.remove(at)
                    heapq.heapify(self._ready)
