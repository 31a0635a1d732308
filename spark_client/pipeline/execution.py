"""Runs the jobs of a plan (``decided_jobs``): each exchange becomes a dataset on the server.

Guarantee: an exchange that a plan uses several times runs once, and a persisted one only if its dataset is not there
(``jobs.persisting``). Each other dataset is dropped when the job of its last reader has sealed, or when anything fails;
those that the run is for are the caller's.

Persisted exchanges
    Before its first job a run claims the persisted exchanges that it reaches. It keeps the claim of a missing exchange
    until the exchange is written, so that two runs never write the same. It claims them from the one that was made last
    to the one that was made first, which is downstream before upstream: so two runs never wait for each other, and a
    run does not look upstream of a dataset that is there.

Reading tasks
    Tasks share partitions, or pieces of partitions far over the median (``jobs.shares``).
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark_client.arrow import fits_one_chunk
from spark_client.connection import Reading
from spark_client.jobs import (
    WRITE_BUDGET_BYTES,
    ByColumn,
    ByKeys,
    Cut,
    InTurn,
    PersistedDataset,
    Placement,
    ReadTask,
    SealedDataset,
    Shares,
    Shuffles,
    Sides,
    Target,
    TaskNumbers,
    TaskRows,
    WriteTask,
    cores,
    cuts_of,
    cuts_of_pair,
    tasks_for,
)
from spark_client.servers import RERUNS
from spark_client.steps import Stage

from .decided_jobs import ExchangeRead, ExchangeWrite, PlannedJob, jobs_of, outdated, reads_of
from .in_driver import DriverRows, driver_bytes, driver_may_run, gathered
from .nodes import Exchange, Input, Leg, Pair, PlanPart, exchanges
from .run_statistics import ExchangeStatistics, RunStatistics
from .side_tables import SideTables


def shares_for(
    spark: SparkSession,
    exchange: Exchange,
    partition_bytes: Sequence[int],
    cuts: Sequence[Cut],
    *,
    alone: bool = False,
) -> Shares:
    """What each task reads of an exchange, or of a pair of exchanges; ``alone``: one partition, unless the exchange
    says how many tasks there are.
    """
    tasks = exchange.tasks
    if tasks is None and not alone:
        available = cores(spark)
        read_bytes = sum(sum(cut.piece_bytes) - partition_bytes[cut.partition] for cut in cuts)
        tasks = None if available is None else tasks_for([*partition_bytes, read_bytes], available)
    return Shares.equal(partition_bytes, tasks or exchange.partitions, cuts)


def cuts_for(reads: Sequence[ExchangeRead], sealed: Sequence[SealedDataset]) -> list[Cut]:
    """The partitions far over the median that tasks read in pieces, where the steps allow it."""
    may = [read.side for read in reads if read.may_cut]
    if not may:
        return []
    return cuts_of(sealed[0]) if len(sealed) == 1 else cuts_of_pair(sealed[0], sealed[1], may)


def write_of(
    dataset: str,
    exchange: Exchange,
    given: Input,
    stages: tuple[Stage, ...],
    options: Reading,
    *,
    part: int,
    parts: int,
) -> tuple[TaskRows, WriteTask]:
    """The tasks that send the rows of ``given``, after the stages, as the exchange says: one of its ``parts``."""
    given, stages, limits = given.with_settings(stages)
    rows: TaskRows = given.rows
    placement: Placement
    if exchange.ranges is not None:
        placement = exchange.ranges
    elif not exchange.keys:
        placement = InTurn(exchange.partitions)
    elif exchange.hashed_by_spark(given, stages):
        assert given.frame is not None
        placement = ByColumn()
        rows = _with_partition_column(given.frame, exchange)
    else:
        placement = ByKeys(exchange.keys, exchange.partitions, exchange.types)
    reading = ReadTask(given.source, given.shares, stages, limits, options)
    counts = exchange.counted and fits_one_chunk(exchange.leg.schema)
    declared, budget = exchange.leg.declared, WRITE_BUDGET_BYTES
    return rows, WriteTask(
        dataset, exchange.partitions, declared, placement, reading, part, parts, counts, budget
    )


def _with_partition_column(df: DataFrame, exchange: Exchange) -> DataFrame:
    name = "partition"
    while name.casefold() in {column.casefold() for column in df.columns}:
        name = f"_{name}"
    keys = [sql.col(f"`{key.replace('`', '``')}`") for key in exchange.keys]
    return df.withColumn(name, sql.pmod(sql.hash(*keys), sql.lit(exchange.partitions)))


def dataset_name(exchange: Exchange, token: str, number: int) -> str:
    """The name of an exchange's dataset: ``number`` tells it from others of ``token``."""
    if exchange.name is None:
        return f"exchange/{token}/{number}"
    # Neither two dots in a row, nor one alone, may be in a name.
    name = re.sub(r"\.\.+|^\.$|[^A-Za-z0-9._-]", "-", exchange.name)
    return f"exchange/{name}/{token}/{number}"


_log = logging.getLogger(__name__)
_Read = tuple[Exchange, Shares, str]
"""An exchange that tasks read, in these shares, as this side of a pair."""


class Execution:
    """One run of a plan. ``losses`` were those of earlier runs, which this one replaces."""

    def __init__(self, shuffles: Shuffles, spark: SparkSession, losses: Iterable[str] = ()) -> None:
        self._shuffles = shuffles
        self._spark = spark
        self._token = uuid.uuid4().hex
        self._numbers = count()
        self._began = time.monotonic()
        self._wanted: list[Exchange] = []
        self._written: dict[Exchange, SealedDataset] = {}
        self._persisted: dict[Exchange, PersistedDataset | None] = {}
        self._claimed: dict[Exchange, PersistedDataset] = {}
        self._alone: set[str] = set()
        """The datasets that this run writes, without those that other runs may read."""
        # For the statistics: in the order of the runs, with whether an earlier run wrote it.
        self._ran: dict[Exchange, tuple[SealedDataset, bool]] = {}
        self._losses = [*losses]
        self._driver_bytes = shuffles.server.reading.driver_bytes
        self._readers: dict[Exchange, list[tuple[Shares, str]]] = defaultdict(list)
        self._sides = SideTables(shuffles, spark)

    def inputs(self, leg: Leg, *, alone: bool = False) -> list[tuple[Input, tuple[Stage, ...]]]:
        """Run all exchanges that the leg reads; the inputs of the tasks of each of its parts, and their stages.

        Args:
            alone: each partition has a task of its own, unless its exchange says how many.

        Raises:
            FlightShuffleError: the server refused, or could not be reached.
            pyspark.errors.PySparkException: a job failed. After either, all datasets are dropped but persisted ones.
        """
        reads: list[_Read] = []
        try:
            self._run(exchanges(leg), leg)
            found = self._inputs(leg, reads, alone=alone)
            self._note(reads)
        except BaseException:
            self.drop_all()
            raise
        else:
            return found

    def gathered(self, leg: Leg, *, sends: bool = False) -> DriverRows | None:
        """Run all exchanges that the leg reads, and the leg's stages in the driver; None where tasks are to run those:
        a function of the user's is among them, what they read is not small, the result is larger than
        ``GATHERED_BYTES``, or they fail here. Raises as :meth:`inputs`.

        Args:
            sends: the caller sends the rows otherwise, by an exchange, before which a join may hold a side: then it is
                left to that.
        """
        if not driver_may_run(leg) or (sends and self._sides.may_leave_out(leg)):
            return None
        try:
            self._run(exchanges(leg), leg)
            if not self._is_for_driver([leg]):
                return None
            inputs = self._inputs(leg, [], one=True)
            try:
                return gathered(inputs, leg.declared, self._shuffles.server.reading)
            except Exception as error:  # noqa: BLE001 - tasks raise it, if it is one of the rows
                _log.info("left to Spark's tasks: %s", error)
                self._driver_bytes = 0
                return None
        except BaseException:
            self.drop_all()
            raise

    def sealed(self, exchange: Exchange) -> SealedDataset:
        """Run the exchanges that this one needs, and this one; its dataset. Raises as :meth:`inputs`."""
        try:
            self._run([exchange])
            return self._written[exchange]
        except BaseException:
            self.drop_all()
            raise

    @property
    def datasets(self) -> list[str]:
        """Those that the run is for."""
        return [self._written[each].source.dataset for each in self._wanted]

    @property
    def owned(self) -> list[str]:
        """Those of them that no other run reads."""
        return [dataset for dataset in self.datasets if dataset in self._alone]

    def written(self, exchange: Exchange) -> SealedDataset:
        """The dataset of an exchange that the run is for."""
        return self._written[exchange]

    def statistics(self) -> tuple[RunStatistics, dict[Exchange, ExchangeStatistics]]:
        found = {
            exchange: ExchangeStatistics.of(exchange, sealed, self._readers[exchange], is_reused=is_reused)
            for exchange, (sealed, is_reused) in self._ran.items()
        }
        again = [loss for sealed, is_reused in self._ran.values() if not is_reused for loss in sealed.losses]
        losses = dict.fromkeys([*self._losses, *again])
        return RunStatistics(tuple(found.values()), time.monotonic() - self._began, tuple(losses)), found

    @property
    def notes(self) -> dict[Exchange, str]:
        """What was done with exchanges that joins hold, or leave out, for people."""
        return self._sides.notes

    def drop_all(self) -> None:
        """Drop the datasets of this run alone, because it has failed."""
        for dataset in self._alone:
            self._shuffles.results.forget(dataset)
            self._shuffles.discard(dataset)
        self._written = {
            node: sealed for node, sealed in self._written.items() if sealed.source.dataset not in self._alone
        }

    def has_lost(self) -> bool:
        """Whether a server has lost a part of what this run wrote, or found, and has not dropped."""
        return self._shuffles.has_lost(self._written.values())

    def _run(self, wanted: Iterable[Exchange], last: Leg | None = None) -> None:
        """``last`` is the leg that reads them; None if the caller does."""
        self._wanted = list(dict.fromkeys(wanted))
        try:
            self._claim()
            self._sides.begin(self._wanted, last, self._kept, self._written)
            for run in range(1 + RERUNS):
                try:
                    while (job := self._next()) is not None:
                        self._do(job)
                except Exception:
                    if run == RERUNS or not self._forget_lost():
                        raise
                else:
                    return
        finally:
            self._sides.end()
            for persisted in self._claimed.values():
                persisted.end(self)

    def _next(self) -> PlannedJob | None:
        """The next job; None after the last one."""
        first = self._sides.decide(self._written, self._kept)
        jobs = jobs_of(self._wanted, self._written.keys(), self._kept, self._sides.held, first)
        return jobs[0] if jobs else None

    def _forget_lost(self) -> bool:
        """Forget what a lost server held, so that it is written again, and what was made of exchanges that are then
        written again; False if nothing was lost, or what other runs may read.
        """
        if not self._shuffles.servers.several:
            return False
        sides = self._sides.forget()
        self._losses += sides
        lost = [node for node, sealed in self._written.items() if not self._shuffles.is_whole(sealed)]
        if not self._kept.isdisjoint(lost):
            return False  # a new run claims it (``finishing``)
        # A job may have failed by the loss of the only server that it writes to.
        gone = [] if lost else self._shuffles.servers.lost()
        self._losses += [f"the server {server.location} is gone" for server in gone]
        for node in lost:
            self._losses.append(f"{node}, a server that held a part of it is gone")
            _log.warning("run again: %s", self._losses[-1])
            self._drop(node)
        for node in outdated(self._wanted, self._written.keys(), self._kept) if lost else ():
            self._losses.append(f"{node}, what it was made of was written again")
            self._drop(node)
        return bool(lost or gone or sides)

    @property
    def _kept(self) -> set[Exchange]:
        """The persisted ones of those that were looked for."""
        return {node for node, persisted in self._persisted.items() if persisted is not None}

    def _claim(self) -> None:
        left = {*self._wanted}
        while left:
            node = max(left, key=lambda each: each.serial)
            left.remove(node)
            if node in self._written:
                continue  # by this run
            while (persisted := self._find(node)) is not None:
                # Before the claim, so that the run ends it in any case.
                self._claimed[node] = persisted
                sealed = persisted.claim(self)
                if sealed is not None:
                    self._add(node, sealed, is_reused=True)
                if sealed is not None or not persisted.is_dropped:
                    break
                # It was unpersisted while this run waited.
                persisted.end(self)
                del self._claimed[node], self._persisted[node]
            if node in self._written:
                continue
            left.update(exchanges(node.read(lambda each: self._find(each) is not None)))

    def _find(self, node: Exchange) -> PersistedDataset | None:
        """The driver's dataset of it, by the one found first: another thread may persist it in the meantime."""
        if node not in self._persisted:
            self._persisted[node] = self._shuffles.persisted.find(node)
        return self._persisted[node]

    def _do(self, job: PlannedJob) -> None:
        here = self._is_for_driver([write.leg for write in job.writes])
        reads: list[_Read] = []
        targets = [self._target(write, reads, here=here) for write in job.writes]
        written = self._shuffles.write(targets, here=here)
        if any(sealed.work.tasks for sealed in written):
            self._note(reads)
            if here and self._shuffles.executors is None:
                # It was more than it looked, and the later jobs read it. Of servers in executors the driver may just
                # not have known any.
                self._driver_bytes = 0
        for write, sealed in zip(job.writes, written, strict=True):
            node = write.exchange
            self._add(node, sealed)
            if node in self._claimed:
                self._shuffles.results.add(sealed.source.dataset, shared=True)
                self._claimed[node].end(self, sealed)
                self._alone.remove(sealed.source.dataset)
        for node in job.releases:
            self._drop(node)

    def _add(self, node: Exchange, sealed: SealedDataset, *, is_reused: bool = False) -> None:
        self._ran[node] = sealed, is_reused
        self._written[node] = sealed

    def _is_for_driver(self, legs: Sequence[Leg]) -> bool:
        """Whether the driver runs these legs, whose exchanges are written."""
        most = self._driver_bytes
        return most > 0 and all(map(driver_may_run, legs)) and driver_bytes(legs, self._written) <= most

    def _note(self, reads: Iterable[_Read]) -> None:
        """For the statistics: tasks read these."""
        for node, shares, side in reads:
            self._readers[node].append((shares, side))

    def _target(self, write: ExchangeWrite, reads: list[_Read], *, here: bool) -> Target:
        exchange = write.exchange
        dataset = dataset_name(exchange, self._token, next(self._numbers))
        self._alone.add(dataset)
        inputs = self._inputs(write.leg, reads, one=here and not exchange.in_turn)
        options = self._shuffles.server.reading
        writes = [
            write_of(dataset, write.exchange, *given, options, part=part, parts=len(inputs))
            for part, given in enumerate(inputs)
        ]
        # The rows of one partition have one order, that of the tasks.
        alone = exchange.partitions == 1
        return Target(writes, str(exchange), exchange.name, alone=alone, offload=exchange.offload)

    def _inputs(
        self, leg: Leg, noted: list[_Read], *, alone: bool = False, one: bool = False
    ) -> list[tuple[Input, tuple[Stage, ...]]]:
        """Of each part what the tasks read, and their stages; ``one`` task reads all."""
        return [(self._input(part, noted, alone=alone, one=one), part.stages) for part in leg.parts]

    def _input(self, part: PlanPart, noted: list[_Read], *, alone: bool, one: bool) -> Input:
        origin = part.origin
        if isinstance(origin, Input):
            return origin
        reads = reads_of(part)
        sealed = [self._written[read.exchange] for read in reads]
        partition_bytes = tuple(map(sum, zip(*(each.partition_bytes for each in sealed), strict=True)))
        exchange = reads[0].exchange
        if one:
            shares = Shares.equal(partition_bytes, 1)
        else:
            cuts = [] if alone else cuts_for(reads, sealed)
            shares = shares_for(self._spark, exchange, partition_bytes, cuts, alone=alone)
        # Of an exchange that is both sides of a pair, once.
        sides = {read.exchange: read.side for read in reversed(reads)}
        noted += [(node, shares, side) for node, side in sides.items()]
        source = (
            Sides(sealed[0].source, sealed[1].source, origin.left.stages, origin.right.stages)
            if isinstance(origin, Pair)
            else sealed[0].source
        )
        return Input(TaskNumbers(self._spark, len(shares)), str(exchange), source, shares)

    def _drop(self, exchange: Exchange) -> None:
        dataset = self._written.pop(exchange).source.dataset
        self._shuffles.discard(dataset)
        self._alone.remove(dataset)
