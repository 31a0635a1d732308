"""Schedules of PCT: chains of events, of which one goes on at a time, and a clock of their own.

Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010: each chain has a
random priority, the first one goes on, and at a few random steps the chain that would go on becomes the last. A bug
that needs few events in an unusual order is found with few seeds.

Beside ``schedules.ScheduledLoop``, whose callbacks run in an order that is random at each step: there a chain is hardly
ever held back for long.

Time
    A step takes ``step_seconds``. When no chain can go on, the clock goes to the next timer at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from itertools import count
from random import Random


class Gate:
    """Chains that yield it go on once it is open."""

    def __init__(self, schedule: Schedule) -> None:
        self.is_open = False
        self._schedule = schedule
        self._waiting: list[_Ready] = []

    def wait(self, ready: _Ready) -> None:
        self._waiting.append(ready)

    def open(self) -> None:
        """Twice is fine."""
        self.is_open = True
        self.wake()

    def wake(self) -> None:
        """Let those that wait look why: the gate is as it was."""
        waiting, self._waiting = self._waiting, []
        self._schedule.resume(waiting)


Chain = Generator[str | Gate, None, None]
"""Each step of it happens at once, and is named by the text that the step before it gives."""
_Ready = tuple[float, int, Chain]
_MOST_STEPS = 100_000
FIRST = -2.0
"""The priority of a chain that goes on before all others."""


class Schedule:
    """See the module's text. ``log`` has a line for each event.

    Args:
        changes: how many chains become the last, within the first ``steps`` steps.
    """

    def __init__(self, random: Random, changes: int, steps: int, step_seconds: float = 0.005) -> None:
        self.log: list[str] = []
        self.now_seconds = 0.0
        self._step_seconds = step_seconds
        self._random = random
        self._ready: list[_Ready] = []
        self._changes = {random.randrange(steps): 1.0 + number for number in range(changes)}
        self._faults: dict[int, list[Chain]] = {}
        self._steps = steps
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count(1)

    def gate(self) -> Gate:
        return Gate(self)

    def begin(self, chain: Chain, priority: float | None = None) -> None:
        """Let a chain take part."""
        priority = -self._random.random() if priority is None else priority
        heapq.heappush(self._ready, (priority, next(self._numbers), chain))

    def interrupt(self, chain: Chain, at: int | None = None) -> None:
        """From some step on the chain takes part, or from step ``at``, unless everything has ended before."""
        self._faults.setdefault(self._random.randrange(self._steps) if at is None else at, []).append(chain)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Make the call, which begins chains or opens gates, so much later."""
        heapq.heappush(self._timers, (self.now_seconds + seconds, next(self._numbers), call))

    def pause(self, seconds: float) -> Gate:
        """A gate that opens so much later."""
        gate = self.gate()
        self.after(seconds, gate.open)
        return gate

    def resume(self, chains: list[_Ready]) -> None:
        for each in chains:
            heapq.heappush(self._ready, each)

    def run(self) -> None:
        """Until every chain has ended, or waits for a gate that nothing opens."""
        while self._ready or self._timers:
            if not self._ready:
                self.now_seconds = max(self.now_seconds, self._timers[0][0])
            if self._timers and self._timers[0][0] <= self.now_seconds:
                heapq.heappop(self._timers)[2]()
                continue
            for fault in self._faults.pop(len(self.log), ()):
                self.begin(fault)
            assert len(self.log) < _MOST_STEPS, "it goes on for ever"
            lowered = self._changes.pop(len(self.log), None)
            if lowered is not None and self._ready[0][0] != FIRST:
                _, number, chain = self._ready[0]
                heapq.heapreplace(self._ready, (lowered, number, chain))
            self._step(heapq.heappop(self._ready))

    def _step(self, ready: _Ready) -> None:
        _, number, chain = ready
        try:
            event = next(chain)
        except StopIteration:
            return
        self.now_seconds += self._step_seconds
        if isinstance(event, Gate):
            self.log.append(f"{self.now_seconds:.2f} {number} waits")
            if not event.is_open:
                event.wait(ready)
                return
        else:
            self.log.append(f"{self.now_seconds:.2f} {number} {event}")
        heapq.heappush(self._ready, ready)
