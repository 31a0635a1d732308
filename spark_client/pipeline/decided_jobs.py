"""Decides the Spark jobs of a run, again after each of them; asks neither Spark nor a server.

Guarantee: each exchange that the run needs, and that is not there, is written by one job, after the jobs that write its
inputs. After its last reader an exchange is released, unless it is persisted or the run is for it.

Jobs
    The exchanges that one leg reads, of both sides of a join or of the parts of a union, are written by one job, if
    none of them needs another and none is persisted: a job has fixed costs, and the last tasks of one leave cores idle.

Held sides
    The side of a join that is expected to be small is written first. Where it is, its tasks hold it, and the other
    side is not sent (``held_joins``): so what is left to do is decided again after each job.

Pieces
    Tasks may read a partition in pieces if every stage up to the next exchange, or the end, may run over any part of
    its rows (``nodes.Exchange.may_cut``): in a pair, the first stage over any part of one side's rows beside all of the
    other's, which has no stages of its own, because they would run once for each piece. How large partitions are, and
    so which of them have pieces, is known only when the run is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .held_joins import NOTHING_HELD, HeldJoins
from .nodes import Exchange, Leg, Pair, PlanPart, exchanges


@dataclass(frozen=True)
class ExchangeRead:
    """An exchange whose partitions tasks read, alone, or as the ``side`` of a pair. ``may_cut``: also in pieces."""

    exchange: Exchange
    side: str = ""
    may_cut: bool = False


@dataclass(frozen=True)
class ExchangeWrite:
    """An exchange that a job writes, the leg whose rows it sends, and the exchanges that the leg's tasks read."""

    exchange: Exchange
    leg: Leg
    reads: tuple[ExchangeRead, ...]


@dataclass(frozen=True)
class PlannedJob:
    """One job of Spark; after it has ended the run does not read ``releases`` again."""

    writes: tuple[ExchangeWrite, ...]
    releases: tuple[Exchange, ...]


def jobs_of(
    wanted: Iterable[Exchange],
    there: Collection[Exchange] = (),
    kept: Collection[Exchange] = (),
    held: HeldJoins = NOTHING_HELD,
    first: Sequence[Exchange] = (),
) -> list[PlannedJob]:
    """The jobs, in order, after which all that are ``wanted`` can be read.

    Args:
        there: exchanges whose datasets can be read, which no job writes. The first job releases those that no job
            reads.
        kept: those that are persisted.
        held: the sides of joins that their tasks hold.
        first: exchanges that the first job writes alone, if any job does; what they need is there.
    """
    wanted = list(dict.fromkeys(wanted))
    written = _Decision({*there}, kept, held).jobs_for(wanted)
    if first:
        needed = {write.exchange for writes in written for write in writes}
        written = _Decision({*there}, kept, held).jobs_for(wanted, [each for each in first if each in needed])
    stay = {*wanted, *kept}
    last_reader = {
        read.exchange: number
        for number, writes in enumerate(written)
        for write in writes
        for read in write.reads
        if read.exchange not in stay
    }
    for each in there:
        if each not in stay:
            last_reader.setdefault(each, 0)
    return [
        PlannedJob(writes, tuple(each for each, last in last_reader.items() if last == number))
        for number, writes in enumerate(written)
    ]


def outdated(
    wanted: Iterable[Exchange], there: Collection[Exchange], kept: Collection[Exchange] = ()
) -> set[Exchange]:
    """Those of ``there``, without persisted ones, that were made of an exchange which the jobs would write again, and
    so are to be written again, too: a function may give other rows the second time, and a round robin or a limit other
    ones, and rows that were made of the first ones must not meet them. The arguments are those of :func:`jobs_of`.
    """
    wanted, left = [*wanted], {*there}
    while True:
        again = {write.exchange for job in jobs_of(wanted, left, kept) for write in job.writes}
        found = {each for each in left.difference(kept) if not again.isdisjoint(_made_of(each, kept))}
        if not found:
            return {*there} - left
        left -= found


def _made_of(node: Exchange, kept: Collection[Exchange]) -> set[Exchange]:
    """All exchanges before this one, up to persisted ones."""
    found: set[Exchange] = set()
    left = [node]
    while left:
        before = set(exchanges(left.pop().read(kept.__contains__))) - found
        found |= before
        left += before.difference(kept)
    return found


class _Decision:
    """The exchanges that the jobs so far write."""

    def __init__(self, there: set[Exchange], kept: Collection[Exchange], held: HeldJoins) -> None:
        self._there = there
        self._kept = kept
        self._held = held
        self._jobs: list[tuple[ExchangeWrite, ...]] = []

    def jobs_for(
        self, wanted: Iterable[Exchange], first: Sequence[Exchange] = ()
    ) -> list[tuple[ExchangeWrite, ...]]:
        if first:
            self._write(first)
        self._need(wanted)
        return self._jobs

    def _need(self, wanted: Iterable[Exchange]) -> None:
        missing = self._missing(wanted)
        new = [each for each in missing if each not in self._kept]
        needed = {before for each in new for before in self._upstream(each)}
        together = [each for each in new if each not in needed]
        if len(together) > 1:
            self._write(together)
        for each in missing:
            if each not in self._there:
                self._write([each])

    def _write(self, nodes: Sequence[Exchange]) -> None:
        legs = [self._leg(node) for node in nodes]
        for leg in legs:
            self._need(exchanges(leg))
        self._jobs.append(
            tuple(
                ExchangeWrite(node, leg, tuple(read for part in leg.parts for read in reads_of(part)))
                for node, leg in zip(nodes, legs, strict=True)
            )
        )
        self._there.update(nodes)

    def _upstream(self, node: Exchange) -> set[Exchange]:
        """The exchanges that must be written before this one."""
        found: set[Exchange] = set()
        left = self._missing(exchanges(self._leg(node)))
        while left:
            each = left.pop()
            if each not in found:
                found.add(each)
                left += self._missing(exchanges(self._leg(each)))
        return found

    def _missing(self, wanted: Iterable[Exchange]) -> list[Exchange]:
        return [each for each in dict.fromkeys(wanted) if each not in self._there]

    def _leg(self, node: Exchange) -> Leg:
        return self._held.leg_of(node, self._kept)


def reads_of(part: PlanPart) -> tuple[ExchangeRead, ...]:
    """The inputs of the tasks of a part: nothing, one exchange, or the two of a pair."""
    origin = part.origin
    if isinstance(origin, Exchange):
        return (ExchangeRead(origin, may_cut=origin.may_cut(part.stages)),)
    if isinstance(origin, Pair):
        first, *others = part.stages
        divisible: frozenset[str] = getattr(
            first, "divisible_sides", frozenset()
        )  # of stages with two inputs
        found = []
        sides = {"left": (origin.left, origin.right), "right": (origin.right, origin.left)}
        for side, (cut, whole) in sides.items():
            assert isinstance(cut.origin, Exchange)
            assert isinstance(whole.origin, Exchange)
            refused = side not in divisible or whole.stages or whole.origin.split is False
            may_cut = not refused and cut.origin.may_cut([*cut.stages, *others])
            found.append(ExchangeRead(cut.origin, side, may_cut))
        return tuple(found)
    return ()
