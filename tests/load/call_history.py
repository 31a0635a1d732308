"""Whether there are moments that explain all answers: a linearizability check of one name, answer by answer.

Guarantee: :meth:`CallHistory.answered` raises :class:`Inexplicable` as soon as no order of the calls' steps, each at a
moment between its begin and its answer, gives the answers so far. It keeps all *worlds* that do: a state of the name
and how far each call is that has not been answered.

Calls without an answer
    A call that was cancelled, or whose connection broke, stays: its steps may happen at any later moment, or never.
    :meth:`CallHistory.settle` ends that: the caller has made sure that the server no longer works at them.

Search
    Steps are taken only when an answer needs them ("just in time"): those of other calls first, in each order.
    *Source:* G. Lowe, Testing for linearizability, 2017.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, Self

from tests.load.name_model import REFUSED, Call, Ended, Phase, State

MAX_LINES = 400

_WITHOUT_ANSWER = Ended(None)

Matches = Callable[[object], bool]


class Inexplicable(AssertionError):
    """No order of the calls explains an answer."""


class NameState(Protocol):
    """What a server knows of a name, by a model; hashable."""

    def expired(self) -> Iterator[Self]:
        """Without what may have gone by itself."""

    def without_volatile(self) -> Self:
        """Without a dataset that no start finds."""

    def crashed(self) -> Self:
        """After the process has ended."""


class World(NamedTuple):
    """One explanation of the answers so far."""

    state: Any
    """A :class:`NameState`."""
    phases: frozenset[tuple[int, Phase]]
    """Of the calls that have begun and are not answered; those without a step yet are left out."""


class CallHistory:
    """The calls of one name. Thread-safe.

    Args:
        began: when the run began, on the monotonic clock; the log's times count from there.
        state: of a name that leads to no dataset, by the model of this name's calls.
    """

    def __init__(self, name: str, began: float, state: NameState | None = None) -> None:
        self.name = name
        self.log: deque[str] = deque(maxlen=MAX_LINES)
        self._began = began
        self._lock = threading.Lock()
        self._worlds = {World(State() if state is None else state, frozenset())}
        self._open: dict[int, Call] = {}
        self._given_up: dict[int, float] = {}

    @property
    def worlds(self) -> int:
        return len(self._worlds)

    @property
    def given_up(self) -> int:
        """How many calls have ended without an answer and may still have an effect."""
        return len(self._given_up)

    @property
    def last_given_up(self) -> float:
        """When the last of them ended, on the monotonic clock."""
        return max(self._given_up.values(), default=0.0)

    def states(self) -> set[Any]:
        """What the name may be now, as far as the answers tell."""
        with self._lock:
            return {world.state for world in self._worlds}

    def begin(self, call: Call, said: str = "") -> None:
        """A call is about to be made."""
        with self._lock:
            self._open[call.number] = call
            self._note(f"{call.number}: {call} {said}")

    def answered(self, call: Call, matches: Matches, said: object) -> None:
        """A call has this answer.

        Args:
            matches: whether the answer is one that the model gives.
            said: the answer, for the log.

        Raises:
            Inexplicable: the message has what the name may have been.
        """
        with self._lock:
            self._note(f"{call.number}: answered {said}")
            found: set[World] = set()
            before = self._worlds
            for world in self._reached(before, until=call.number):
                phases = dict(world.phases)
                phase = phases.pop(call.number, None)
                if isinstance(phase, Ended) and matches(phase.answer):
                    found.add(World(world.state, frozenset(phases.items())))
            del self._open[call.number]
            if not found:
                raise Inexplicable(
                    f"{self.name}: the answer {said} to {call} cannot be; the name may have been "
                    + "; or ".join(sorted(str(world.state) for world in before)[:5])
                )
            self._worlds = found

    def give_up(self, call: Call, said: object) -> None:
        """A call has ended without an answer."""
        with self._lock:
            self._note(f"{call.number}: without an answer, {said}")
            self._given_up[call.number] = time.monotonic()

    def settle(self) -> None:
        """The calls that were given up change nothing any more; no other call is open."""
        with self._lock:
            assert self._open.keys() == self._given_up.keys()
            self._note("settled")
            self._end_all(self._reached(self._worlds), whole=True)

    def crash(self) -> None:
        """The server's process has ended; each call has its answer, or never gets one."""
        with self._lock:
            assert self._open.keys() == self._given_up.keys()
            self._note("the server ended")
            # First goes what is not durable: a durable write whose manifest was there already may then have the name.
            left = {
                world._replace(state=world.state.without_volatile()) for world in self._reached(self._worlds)
            }
            self._end_all(
                (world._replace(state=world.state.crashed()) for world in self._reached(left)), whole=False
            )

    def note(self, text: str) -> None:
        """Add a line to the log."""
        with self._lock:
            self._note(text)

    def _end_all(self, reached: Iterable[World], *, whole: bool) -> None:
        """Forget the calls that were given up; with ``whole`` none may be half done."""
        self._worlds = {
            World(world.state, frozenset())
            for world in reached
            if not whole or all(isinstance(phase, Ended) for _, phase in world.phases)
        }
        self._open.clear()
        self._given_up.clear()

    def _reached(self, worlds: Iterable[World], until: int | None = None) -> Iterator[World]:
        """All worlds that steps of open calls lead to; no steps are taken once the call ``until`` has ended."""
        seen = set(worlds)
        waiting = list(seen)
        while waiting:
            world = waiting.pop()
            yield world
            phases = dict(world.phases)
            if until is not None and isinstance(phases.get(until), Ended):
                continue
            for following in self._following(world, phases, until):
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)

    def _following(self, world: World, phases: dict[int, Phase], until: int | None) -> Iterator[World]:
        for without in world.state.expired():
            yield World(without, world.phases)
        for number, call in self._open.items():
            before = phases.get(number)
            for state, phase in call.steps(world.state, before):
                if before is None and phase == REFUSED and number != until:
                    continue  # as if it had not begun
                if number in self._given_up and isinstance(phase, Ended):
                    phase = _WITHOUT_ANSWER  # noqa: PLW2901 - worlds that differ in it only are one
                yield World(state, frozenset({**phases, number: phase}.items()))

    def _note(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:9.3f} {self.name} {text}")
