"""Runs the exchanges of a plan by Spark jobs: each exchange writes a dataset from what its leg reads.

Guarantee: an exchange that a plan uses several times runs once, and a persisted one only if its dataset is not there
(``jobs.persisting``). Each other dataset is dropped when the job of its last user has sealed, or when anything fails;
those that the last leg reads are the caller's.

Jobs
    The exchanges that one leg reads, of both sides of a join or of the parts of a union, run in one job, if none of
    them needs another and none is persisted: a job has fixed costs, and the last tasks of one leave cores idle.

Reading tasks
    Tasks share partitions, or pieces of partitions far over the median (``jobs.shares``, ``jobs.skew``). A partition
    is cut if every stage up to the next exchange, or the end, may run over any part of its rows
    (``nodes.Exchange.may_cut``): in a pair, the first stage over any part of one side's rows beside all of the
    other's, which has no stages of its own, because they would run once for each piece.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession

from spark_client.jobs import (
    Cut,
    Ran,
    SealedDataset,
    Shares,
    Shuffles,
    Sides,
    Target,
    WrittenDataset,
    cores,
    cuts_of,
    cuts_of_pair,
    tasks_for,
)
from spark_client.steps import Stage

from .exchange_writes import dataset_name, write_of
from .nodes import Exchange, Exchanged, Input, Leg, Pair, PlanPart, exchanges
from .run_statistics import ExchangeStatistics, RunStatistics


class Execution:
    """One run of a plan."""

    def __init__(self, shuffles: Shuffles, spark: SparkSession) -> None:
        self._shuffles = shuffles
        self._spark = spark
        self._token = uuid.uuid4().hex
        self._began = time.monotonic()
        self._written: dict[Exchanged, SealedDataset] = {}
        self._persisted: set[Exchanged] = set()
        self._users: Counter[Exchanged] = Counter()
        self._legs: dict[Exchanged, Leg] = {}
        self._jobs = 0
        # For the statistics: in the order of the runs, with whether an earlier run wrote it.
        self._ran: dict[Exchanged, tuple[Ran, bool]] = {}
        self._readers: dict[Exchanged, list[tuple[Shares, str]]] = defaultdict(list)

    def inputs(self, leg: Leg, *, alone: bool = False) -> list[tuple[Input, tuple[Stage, ...]]]:
        """Run all exchanges that the leg reads; what the tasks of each of its parts get, and their stages.

        Args:
            alone: each partition has a task of its own, unless its exchange says how many.

        Raises:
            FlightShuffleError: the server refused, or could not be reached.
            pyspark.errors.PySparkException: a job failed. After either, all datasets are dropped but persisted ones.
        """
        self._count(leg)
        try:
            return self._inputs(leg, alone=alone)
        except BaseException:
            self.drop_all()
            raise

    def sealed(self, exchanged: Exchanged) -> SealedDataset:
        """Run what the exchange needs, and the exchange; its dataset. Raises as :meth:`inputs`."""
        self._users[exchanged] += 1
        self._count(self._leg(exchanged))
        try:
            return self._sealed(exchanged)
        except BaseException:
            self.drop_all()
            raise

    @property
    def datasets(self) -> list[str]:
        """Those that are there."""
        return [sealed.source.dataset for sealed in self._written.values()]

    @property
    def owned(self) -> list[str]:
        """Those that are there for this run alone."""
        return [
            sealed.source.dataset
            for exchanged, sealed in self._written.items()
            if exchanged not in self._persisted
        ]

    def written(self, exchanged: Exchanged) -> SealedDataset:
        """The dataset of an exchange that has run, and that the last leg reads."""
        return self._written[exchanged]

    def statistics(self) -> tuple[RunStatistics, dict[Exchanged, ExchangeStatistics]]:
        """Of what has run so far."""
        found = {
            exchanged: ExchangeStatistics.of(
                exchanged.exchange, ran, self._readers[exchanged], is_reused=is_reused
            )
            for exchanged, (ran, is_reused) in self._ran.items()
        }
        return RunStatistics(tuple(found.values()), time.monotonic() - self._began), found

    def _leg(self, exchanged: Exchanged) -> Leg:
        """What it reads in this run."""
        if exchanged not in self._legs:
            persisted = self._shuffles.persisted
            self._legs[exchanged] = exchanged.read(lambda node: persisted.find(node) is not None)
        return self._legs[exchanged]

    def _count(self, leg: Leg) -> None:
        for exchanged in exchanges(leg):
            self._users[exchanged] += 1
            if self._users[exchanged] == 1:
                self._count(self._leg(exchanged))

    def _inputs(self, leg: Leg, *, alone: bool = False) -> list[tuple[Input, tuple[Stage, ...]]]:
        self._run_together(list(dict.fromkeys(exchanges(leg))))
        return [(self._input(part, alone=alone), part.stages) for part in leg.parts]

    def _input(self, part: PlanPart, *, alone: bool) -> Input:
        origin = part.origin
        if isinstance(origin, Input):
            return origin
        if isinstance(origin, Pair):
            return self._pair(origin, part.stages, alone=alone)
        sealed = self._sealed(origin)
        may_cut = not alone and origin.exchange.may_cut(part.stages)
        shares = self._shares(
            origin.exchange, sealed.partition_bytes, cuts_of(sealed) if may_cut else [], alone=alone
        )
        self._readers[origin].append((shares, ""))
        return Input.of(self._spark, str(origin.exchange), sealed.source, shares)

    def _pair(self, pair: Pair, stages: tuple[Stage, ...], *, alone: bool) -> Input:
        left, right = pair.left.origin, pair.right.origin
        assert isinstance(left, Exchanged)
        assert isinstance(right, Exchanged)
        first, second = self._sealed(left), self._sealed(right)
        total = tuple(
            one + other for one, other in zip(first.partition_bytes, second.partition_bytes, strict=True)
        )
        sides = divisible_sides(pair, stages) if not alone else []
        cuts = cuts_of_pair(first, second, sides) if sides else []
        shares = self._shares(left.exchange, total, cuts, alone=alone)
        self._readers[left].append((shares, "left"))
        if right is not left:
            self._readers[right].append((shares, "right"))
        source = Sides(first.source, second.source, pair.left.stages, pair.right.stages)
        return Input.of(self._spark, str(left.exchange), source, shares)

    def _shares(
        self, exchange: Exchange, partition_bytes: Sequence[int], cuts: Sequence[Cut], *, alone: bool
    ) -> Shares:
        tasks = exchange.tasks
        if tasks is None and not alone:
            available = cores(self._spark)
            read_bytes = sum(sum(cut.piece_bytes) - partition_bytes[cut.partition] for cut in cuts)
            tasks = None if available is None else tasks_for([*partition_bytes, read_bytes], available)
        return Shares.equal(partition_bytes, tasks or exchange.partitions, cuts)

    def _sealed(self, exchanged: Exchanged) -> SealedDataset:
        known = self._written.get(exchanged)
        if known is not None:
            return known
        kept = self._shuffles.persisted.find(exchanged)
        if kept is None:
            (ran,), is_new = self._run([exchanged]), True
        else:
            ran, is_new = kept.dataset(partial(self._run_shared, exchanged))
            self._persisted.add(exchanged)
        if not is_new:
            self._used(self._leg(exchanged))
        self._ran[exchanged] = ran, not is_new
        self._written[exchanged] = ran.sealed
        return ran.sealed

    def _run_together(self, wanted: Sequence[Exchanged]) -> None:
        """Run those that have not run, in one job if there are several."""
        persisted = self._shuffles.persisted
        new = [each for each in wanted if each not in self._written and persisted.find(each) is None]
        needed = {before for each in new for before in self._upstream(each)}
        nodes = [each for each in new if each not in needed]
        if len(nodes) > 1:
            for node, ran in zip(nodes, self._run(nodes), strict=True):
                self._ran[node] = ran, False
                self._written[node] = ran.sealed

    def _run_shared(self, exchanged: Exchanged) -> Ran:
        (ran,) = self._run([exchanged])
        self._shuffles.results.add(ran.sealed.source.dataset, shared=True)
        return ran

    def _run(self, nodes: Sequence[Exchanged]) -> list[Ran]:
        """One job, after those of the exchanges that these read."""
        targets = [self._target(node) for node in nodes]
        try:
            written = self._shuffles.write(targets)
        finally:
            for node in nodes:
                self._used(self._leg(node))
        return [_sealed_by(each, target) for each, target in zip(written, targets, strict=True)]

    def _target(self, node: Exchanged) -> Target:
        exchange, leg = node.exchange, self._leg(node)
        inputs = self._inputs(leg)
        dataset = dataset_name(exchange, self._token, self._jobs)
        self._jobs += 1
        writes = [write_of(self._shuffles.server, dataset, node, *given) for given in inputs]
        return Target(
            dataset, exchange.partitions, leg.declared.schema, writes, label=str(exchange), name=exchange.name
        )

    def _used(self, leg: Leg) -> None:
        """The leg reads its exchanges no more, or never did; drop what no other leg reads."""
        for exchanged in exchanges(leg):
            self._users[exchanged] -= 1
            if self._users[exchanged]:
                continue
            if exchanged in self._written:
                self._drop(exchanged)
            elif exchanged not in self._ran:
                self._used(self._leg(exchanged))

    def _upstream(self, node: Exchanged) -> set[Exchanged]:
        """The exchanges that must run before this one."""
        found: set[Exchanged] = set()
        left = [*exchanges(self._leg(node))]
        while left:
            exchanged = left.pop()
            if exchanged not in found:
                found.add(exchanged)
                left += exchanges(self._leg(exchanged))
        return found

    def _drop(self, exchanged: Exchanged) -> None:
        sealed = self._written.pop(exchanged)
        if exchanged not in self._persisted:
            self._shuffles.discard(sealed.source.dataset)

    def drop_all(self) -> None:
        """Drop what is there for this run alone, because it has failed."""
        for exchanged in list(self._written):
            self._drop(exchanged)


def divisible_sides(pair: Pair, stages: tuple[Stage, ...]) -> list[str]:
    """The sides of which tasks may read a part of a partition, beside the whole other side."""
    first, *others = stages
    found: frozenset[str] = getattr(first, "divisible_sides", frozenset())  # of stages with two inputs
    parts = {"left": (pair.left, pair.right), "right": (pair.right, pair.left)}
    may = []
    for side, (cut, whole) in parts.items():
        assert isinstance(cut.origin, Exchanged)
        assert isinstance(whole.origin, Exchanged)
        refused = whole.stages or whole.origin.exchange.split is False
        if side in found and not refused and cut.origin.exchange.may_cut([*cut.stages, *others]):
            may.append(side)
    return may


def _sealed_by(written: WrittenDataset, target: Target) -> Ran:
    sizes = written.totals["partition_bytes"]
    partition_bytes = tuple(sizes.get(str(partition), 0) for partition in range(target.partitions))
    return Ran(SealedDataset(written.source, target.schema, partition_bytes), written)
