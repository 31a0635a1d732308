"""Decides the Spark jobs of a run, again after each of them; asks neither Spark nor a server.

Guarantee: each exchange that the run needs, and that is not written, is written by one job, after the jobs that write
its inputs. After its last reader an exchange is released, unless it is persisted or the run is for it.

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
    so which of them have pieces, is known only while the plan runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

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
    """An exchange that a job writes, and the leg whose rows it sends."""

    exchange: Exchange
    leg: Leg

    @property
    def reads(self) -> list[ExchangeRead]:
        return [read for part in self.leg.parts for read in reads_of(part)]


@dataclass(frozen=True)
class PlannedJob:
    """One job; after it has ended the run does not read ``releases`` again."""

    writes: tuple[ExchangeWrite, ...]
    releases: tuple[Exchange, ...]


def jobs_of(
    last: Iterable[Exchange],
    written: Collection[Exchange] = (),
    kept: Collection[Exchange] = (),
    held: HeldJoins = NOTHING_HELD,
    first: Collection[Exchange] = (),
) -> list[PlannedJob]:
    """The jobs, in order, after which the ``last`` exchanges can be read.

    Args:
        written: exchanges whose datasets can be read, which no job writes. The first job releases those that no job
            reads.
        kept: those that are persisted.
        held: the sides of joins that their tasks hold.
        first: exchanges that the first job writes alone, if any job does; what they need is written.
    """
    last = list(dict.fromkeys(last))
    jobs = _Decision(written, kept, held).jobs_of(last)
    if early := [write for writes in jobs for write in writes if write.exchange in first]:
        left = [[write for write in writes if write.exchange not in first] for writes in jobs]
        jobs = [early, *filter(None, left)]
    stay = {*last, *kept}
    last_readers = {
        read: number
        for number, writes in enumerate(jobs)
        for write in writes
        for read in exchanges(write.leg)
    }
    last_readers |= dict.fromkeys({*written} - last_readers.keys(), 0)
    return [
        PlannedJob(
            tuple(writes),
            tuple(each for each, reader in last_readers.items() if reader == number and each not in stay),
        )
        for number, writes in enumerate(jobs)
    ]


def outdated(
    last: Iterable[Exchange],
    written: Collection[Exchange],
    kept: Collection[Exchange] = (),
    thinned: Mapping[Exchange, Exchange] = MappingProxyType({}),
) -> set[Exchange]:
    """Those of ``written``, without persisted ones, that were made of an exchange which the jobs would write again, and
    so are to be written again, too: a function may give other rows the second time, and a round robin or a limit other
    ones, and rows that were made of the first ones must not meet them.

    Args:
        thinned: those without rows that match no key of another one, and that one. The other arguments are those of
            :func:`jobs_of`.
    """
    last, left = [*last], {*written}
    while True:
        again = {write.exchange for job in jobs_of(last, left, kept) for write in job.writes}
        late = {each for each in left.difference(kept) if not again.isdisjoint(_made_of(each, kept, thinned))}
        if not late:
            return {*written} - left
        left -= late


def _made_of(
    node: Exchange, kept: Collection[Exchange], thinned: Mapping[Exchange, Exchange]
) -> set[Exchange]:
    """All exchanges before this one, up to persisted ones."""
    every: set[Exchange] = set()
    left = [node]
    while left:
        each = left.pop()
        before = {*exchanges(each.leg), thinned.get(each, each)} - every - {each}
        every |= before
        left += before.difference(kept)
    return every


class _Decision:
    """The jobs so far, and the exchanges that can be read after them."""

    def __init__(self, written: Iterable[Exchange], kept: Collection[Exchange], held: HeldJoins) -> None:
        self._written = {*written}
        self._kept = kept
        self._held = held
        self._jobs: list[list[ExchangeWrite]] = []

    def jobs_of(self, nodes: Iterable[Exchange]) -> list[list[ExchangeWrite]]:
        """The jobs that write these exchanges, and what they need."""
        missing = self._missing(nodes)
        new = [each for each in missing if each not in self._kept]
        needed = {before for each in new for before in self._upstream(each)}
        together = [each for each in new if each not in needed]
        if len(together) > 1:
            self._write(together)
        for each in missing:
            if each not in self._written:
                self._write([each])
        return self._jobs

    def _write(self, nodes: Sequence[Exchange]) -> None:
        writes = [ExchangeWrite(node, self._leg(node)) for node in nodes]
        for write in writes:
            self.jobs_of(exchanges(write.leg))
        self._jobs.append(writes)
        self._written.update(nodes)

    def _upstream(self, node: Exchange) -> set[Exchange]:
        """The exchanges that must be written before this one."""
        upstream: set[Exchange] = set()
        left = self._missing(exchanges(self._leg(node)))
        while left:
            each = left.pop()
            if each not in upstream:
                upstream.add(each)
                left += self._missing(exchanges(self._leg(each)))
        return upstream

    def _missing(self, nodes: Iterable[Exchange]) -> list[Exchange]:
        return [each for each in dict.fromkeys(nodes) if each not in self._written]

    def _leg(self, node: Exchange) -> Leg:
        return self._held.leg_of(node)


def reads_of(part: PlanPart) -> tuple[ExchangeRead, ...]:
    """The exchanges that the tasks of a part read: none, one, or the two of a pair."""
    origin = part.origin
    if isinstance(origin, Exchange):
        return (ExchangeRead(origin, may_cut=origin.may_cut(part.stages)),)
    if not isinstance(origin, Pair):
        return ()
    first, *others = part.stages
    divisible: frozenset[str] = getattr(first, "divisible_sides", frozenset())  # of stages with two inputs
    reads = []
    for side, cut, whole in (("left", origin.left, origin.right), ("right", origin.right, origin.left)):
        refused = side not in divisible or whole.stages or whole.exchange.split is False
        may_cut = not refused and cut.exchange.may_cut([*cut.stages, *others])
        reads.append(ExchangeRead(cut.exchange, side, may_cut))
    return tuple(reads)
