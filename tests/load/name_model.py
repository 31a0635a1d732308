"""What a name may be after each call: the sequential specification of datasets, in plain Python.

A :class:`State` is what one server knows of one name. A call is a few steps, each of which happens at once at some
moment between its begin and its answer; :meth:`Call.steps` says what each may lead to. ``call_history`` finds out
whether there are moments that explain all answers.

Each call may be refused without an effect. What must be NOT_FOUND, and what a reader may get, is exact.

Changelogs have a model of their own, ``changelog_model``. Left out: which frames retention by readers has released
(``torture_calls`` counts the readers).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

CLOCK_SECONDS = 0.05
"""The wall clock, by which a retention goes on after a restart, may be so far off."""

Kind = Literal["stream", "shuffle", "source"]
Status = Literal["open", "sealed", "failed"]


class Place(NamedTuple):
    """A partition of a stream; ``put`` is 0 before one has begun."""

    status: Status = "open"
    put: int = 0


class Held(NamedTuple):
    """The dataset that a name leads to."""

    made_by: int
    """The call that made it."""
    kind: Kind
    durable: bool = False
    leased: bool = False
    """Its lease is short: it may go at any moment."""
    places: tuple[Place, ...] = ()
    """The partitions of a stream."""
    added: tuple[int, ...] = ()
    """The write that a shuffle was sealed with, and what was appended; of a source its rows."""
    transactions: frozenset[tuple[str, int]] = frozenset()
    seconds: float | None = None
    """Its retention: so long after its seal it goes, and no earlier."""
    sealed_from: float = 0.0
    """It was sealed no earlier, on the monotonic clock."""

    @property
    def may_go(self) -> bool:
        """Whether its lease or its retention may have ended."""
        outlived = (
            self.seconds is not None
            and self.status == "sealed"
            and time.monotonic() >= self.sealed_from + self.seconds - CLOCK_SECONDS
        )
        return self.leased or outlived

    @property
    def status(self) -> Status:
        if self.kind != "stream":
            return "sealed" if self.added else "open"
        statuses = {place.status for place in self.places}
        return "failed" if "failed" in statuses else "sealed" if statuses == {"sealed"} else "open"

    @property
    def writes(self) -> tuple[int, ...]:
        """What is sealed of it."""
        return (*(place.put for place in self.places if place.status == "sealed"), *self.added)

    def with_place(self, index: int, status: Status, put: int) -> Held:
        return self._replace(places=(*self.places[:index], Place(status, put), *self.places[index + 1 :]))


class Staged(NamedTuple):
    """A staged write that was neither sealed nor dropped."""

    write: int
    mode: str
    durable: bool
    leased: bool


class State(NamedTuple):
    """What the server knows of a name."""

    held: Held | None = None
    staged: frozenset[Staged] = frozenset()
    appended: frozenset[int] = frozenset()
    """The staged writes whose rows became a part of another dataset."""

    def with_staged(self, staged: Staged) -> State:
        return self._replace(staged=self.staged | {staged})

    def find_staged(self, write: int) -> Staged | None:
        return next((each for each in self.staged if each.write == write), None)

    def crashed(self) -> State:
        """After the process has ended: the durable dataset that the name led to, or nothing."""
        return State(self.without_volatile().held)

    def expired(self) -> Iterator[State]:
        """Without the dataset, or one of the staged writes, whose time may be over."""
        if self.held is not None and self.held.may_go:
            yield self._replace(held=None)
        for each in self.staged:
            if each.leased:
                yield self._replace(staged=self.staged - {each})

    def without_volatile(self) -> State:
        """Without a dataset that no start finds."""
        held = self.held
        stays = held is not None and held.durable and held.status == "sealed"
        return self if stays else self._replace(held=None)

    def replaced(self, new: Held) -> State:
        """The name leads to ``new``, which remembers the transactions of what it replaces."""
        before = frozenset() if self.held is None else self.held.transactions
        return self._replace(held=new._replace(transactions=new.transactions | before))


class Ended(NamedTuple):
    """The last phase of a call. ``answer`` is ``refused``, ``not found`` or of the call's kind."""

    answer: object


Phase = object
"""How far a call is: ``None`` before its first step, then what it has to remember, at last :class:`Ended`."""
Step = tuple[Any, Phase]
"""The state that it leads to, of the call's model, and how far the call is then."""
REFUSED, NOT_FOUND, OK = Ended("refused"), Ended("not found"), Ended("ok")


@dataclass(frozen=True)
class Call:
    """One call of one client. ``number`` is the call's own, and of a write what its rows have."""

    number: int

    sees_absence: ClassVar[bool] = False
    """Whether NOT_FOUND says that there is no dataset of this name, and nothing else."""

    def steps(self, state: Any, phase: Phase) -> Iterator[Step]:
        """Where the next step may lead; none after the last phase."""
        if phase is None:
            yield state, REFUSED
            yield from self.begin(state)
        elif not isinstance(phase, Ended):
            yield from self.go_on(state, phase)

    def begin(self, state: Any) -> Iterator[Step]:
        raise NotImplementedError

    def go_on(self, state: Any, phase: Phase) -> Iterator[Step]:
        raise AssertionError(f"{self} has one step")


@dataclass(frozen=True)
class Create(Call):
    """Action ``create`` of a kind without versions. Its answer is whether a dataset was made."""

    kind: Kind
    durable: bool
    leased: bool
    partitions: int = 1
    seconds: float | None = None
    rows: int | None = None
    """The write whose rows a source has."""

    def begin(self, state: State) -> Iterator[Step]:
        if state.held is None or state.held.status == "failed":
            places = (Place(),) * self.partitions if self.kind == "stream" else ()
            added = () if self.rows is None else (self.rows,)
            made = Held(
                self.number, self.kind, self.durable, self.leased, places, added, seconds=self.seconds
            )
            yield state.replaced(made), Ended("made")
        else:
            yield state, Ended("there")


class _Begun(NamedTuple):
    dataset: int
    durable: bool
    leased: bool
    seconds: float | None


@dataclass(frozen=True)
class Put(Call):
    """A put of mode ``create`` or ``overwrite`` into a partition of a stream."""

    overwrites: bool
    partition: int = 0
    began: float = 0.0
    """On the monotonic clock."""

    def begin(self, state: State) -> Iterator[Step]:
        held, index = state.held, self.partition
        mine = (Place(put=self.number),)
        fails = held is not None and held.status == "failed"
        if held is None:
            if index:
                return
            new = Held(self.number, "stream", places=mine)
        elif fails and (self.overwrites or len(held.places) == 1):
            new = Held(self.number, "stream", held.durable, held.leased, mine, seconds=held.seconds)
        elif self.overwrites:
            yield state, _Begun(self.number, held.durable, held.leased, held.seconds)
            return
        elif index < len(held.places) and held.places[index] == Place():
            new = held.with_place(index, "open", self.number)
        else:
            if held.kind == "shuffle" and held.status == "open":
                yield state, OK  # without rows it may be an attempt, which no seal names
            return
        yield state.replaced(new), _Begun(new.made_by, new.durable, new.leased, new.seconds)

    def go_on(self, state: State, phase: Phase) -> Iterator[Step]:
        assert isinstance(phase, _Begun)
        held = state.held
        if held is not None and held.made_by == phase.dataset:
            yield state._replace(held=held.with_place(self.partition, "failed", self.number)), REFUSED
            sealed_held = held.with_place(self.partition, "sealed", self.number)
            yield state._replace(held=sealed_held._replace(sealed_from=self.began)), OK
            return
        yield state, REFUSED
        if self.overwrites:
            if _would_come_back(held, durable=phase.durable):
                return
            sealed = (Place("sealed", self.number),)
            new = Held(
                self.number,
                "stream",
                phase.durable,
                phase.leased,
                sealed,
                seconds=phase.seconds,
                sealed_from=self.began,
            )
            yield state.replaced(new), OK
        else:
            yield state, OK  # it was replaced while it was written: only its readers see it


@dataclass(frozen=True)
class Stage(Call):
    """Action ``create`` with a mode. ``write`` is the number of the call that asked first."""

    write: int
    mode: str
    durable: bool
    leased: bool

    def begin(self, state: State) -> Iterator[Step]:
        if state.find_staged(self.write) is not None:
            yield state, OK
            return
        held = state.held
        durable = self.durable or (held is not None and held.durable)
        leased = self.leased or (held is not None and held.leased)
        yield state.with_staged(Staged(self.write, self.mode, durable, leased)), OK


@dataclass(frozen=True)
class Seal(Call):
    """Action ``seal`` of a staged write, or of a shuffle that has the name."""

    write: int
    transaction: tuple[str, int] | None = None

    def begin(self, state: State) -> Iterator[Step]:
        held, staged = state.held, state.find_staged(self.write)
        if staged is not None:
            yield from self._take_effect(state, staged)
        elif self.write in state.appended:
            yield state, OK
        elif held is not None and held.made_by == self.write:
            yield state._replace(held=held._replace(added=held.added or (self.write,))), OK

    def _take_effect(self, state: State, staged: Staged) -> Iterator[Step]:
        held, rest = state.held, state.staged - {staged}
        transactions = frozenset() if self.transaction is None else frozenset({self.transaction})
        if held is not None and self._repeats(held):
            yield State(held, rest, state.appended | {self.write}), OK
        elif _would_come_back(held, durable=staged.durable) or self._is_overtaken(held):
            return
        elif held is None or staged.mode == "overwrite":
            added, leased = (self.write,), staged.leased
            new = Held(self.write, "shuffle", staged.durable, leased, added=added, transactions=transactions)
            yield state._replace(staged=rest).replaced(new), OK
        elif staged.mode == "append" and held.status == "sealed" and not held.durable:
            held = held._replace(
                added=(*held.added, self.write), transactions=held.transactions | transactions
            )
            yield State(held, rest, state.appended | {self.write}), OK

    def _repeats(self, held: Held) -> bool:
        return self.transaction in held.transactions

    def _is_overtaken(self, held: Held | None) -> bool:
        """Whether a later one of its id is there."""
        wanted = self.transaction
        return (
            held is not None
            and wanted is not None
            and any(name == wanted[0] and version > wanted[1] for name, version in held.transactions)
        )


def _would_come_back(held: Held | None, *, durable: bool) -> bool:
    """What is durable is not replaced by what is not."""
    return held is not None and held.durable and held.status != "failed" and not durable


@dataclass(frozen=True)
class Drop(Call):
    """Action ``drop``: of the name, or of the generation that a call has made (``write``)."""

    write: int | None = None
    staged_only: bool = False

    sees_absence: ClassVar[bool] = True

    def begin(self, state: State) -> Iterator[Step]:
        held = state.held
        if self.write is None:
            yield state._replace(held=None), NOT_FOUND if held is None else OK
        elif (staged := state.find_staged(self.write)) is not None:
            yield state._replace(staged=state.staged - {staged}), OK
        elif held is not None and held.made_by == self.write and not self.staged_only:
            yield state._replace(held=None), OK
        else:
            yield state, NOT_FOUND


@dataclass(frozen=True)
class Renew(Call):
    """Action ``renew`` of the name."""

    sees_absence: ClassVar[bool] = True

    def begin(self, state: State) -> Iterator[Step]:
        yield state, NOT_FOUND if state.held is None else OK


class Found(NamedTuple):
    """What a reader found; it waits for the rest of what is open."""

    status: Status
    writes: tuple[int, ...]


@dataclass(frozen=True)
class Read(Call):
    """A read of all partitions, at the moment when the name is looked up. Its answer is :class:`Found`."""

    def begin(self, state: State) -> Iterator[Step]:
        held = state.held
        if held is None:
            yield state, NOT_FOUND
        else:
            yield state, Ended(Found(held.status, held.writes))
