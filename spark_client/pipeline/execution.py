"""Runs the jobs of a plan (``decided_jobs``): each exchange becomes a dataset on the server.

Guarantee: an exchange that a plan uses several times runs once, and a persisted one only if its dataset is not there
(``jobs.persisting``). Each other dataset is dropped when the job of its last reader has sealed, or when anything fails;
those that the run is for are the caller's.

Plans
    What runs is the plan of the user's steps with filters moved ahead (``moved_filters``) and without columns that no
    later step uses (``needed_columns``). Callers know legs and exchanges as the steps made them.

Losses
    A caller uses a run inside :meth:`Execution.result_of`. If that fails, and a server was lost with
    what the run has written or read, this is written again, with all that was made of it, and the caller's function is
    called again, at most ``RERUNS`` times. What is whole stays.

Persisted exchanges
    Before its first job a run claims the persisted exchanges that it reaches. It keeps the claim of a missing exchange
    until the exchange is written, so that two runs never write the same. It claims them from the one that was made last
    to the one that was made first, which is downstream before upstream: so two runs never wait for each other, and a
    run does not look upstream of a dataset that is there. When a run begins again it has no claim.

Ranges
    An exchange by ranges without boundaries is written by two jobs: tasks take a sample of its rows' keys, which the
    driver reads (``ranges``), and then send the rows. What is before it is written by then, and is read twice. An
    exchange that only orders rows has one range if the driver writes it, because that is little, and is not written
    where the driver runs the steps before it and after it.

Reading tasks
    Tasks share partitions, or pieces of partitions far over the median (``jobs.shares``).
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import NamedTuple, TypeVar

from pyspark.sql import SparkSession

from spark_client.arrow import fits_one_chunk
from spark_client.jobs import (
    NO_SHARES,
    WRITE_BUDGET_BYTES,
    ByKeys,
    ByRange,
    Cut,
    InTurn,
    Persisted,
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
    TaskSource,
    WriteTask,
    batch_limits,
    cores,
    cuts_of,
    cuts_of_pair,
    function_settings,
    settings_once,
    tasks_for,
)
from spark_client.servers import RERUNS, Holder, HolderKind
from spark_client.steps import Stage, with_settings

from .decided_jobs import ExchangeWrite, PlannedJob, jobs_of, outdated, reads_of
from .in_driver import DriverRows, DriverTask, driver_bytes, driver_may_run, gathered, of_all_shares
from .moved_filters import with_moved_filters
from .needed_columns import with_needed_columns
from .nodes import Exchange, Input, Leg, Pair, PlanPart, SampledRanges, exchanges
from .ranges import one_range, sample_leg, sampled
from .run_statistics import ExchangeStatistics, LastRun, RunStatistics
from .side_tables import SideTables

_log = logging.getLogger(__name__)
_SORTED_HERE = "not written, because the driver has all rows"
T = TypeVar("T")


def planned(leg: Leg, persisted: Persisted) -> Leg:
    """The leg as it runs: with filters moved ahead, and without columns that no step uses."""

    def is_persisted(exchange: Exchange) -> bool:
        return persisted.find(exchange.node) is not None

    def is_there(exchange: Exchange) -> bool:
        dataset = persisted.find(exchange.node)
        return dataset is not None and dataset.is_written

    return with_needed_columns(*with_moved_filters(leg, is_persisted, is_there), is_persisted)


class TaskInput(NamedTuple):
    """The rows over which tasks of a run are run, a DataFrame's or numbers of shares, and what these tasks read, and do
    with it. ``exchanges`` are those that they read, each with its side of a pair, or an empty text.
    """

    rows: TaskRows
    task: ReadTask
    exchanges: Sequence[tuple[Exchange, str]] = ()


def write_of(
    dataset: str, exchange: Exchange, read: ReadTask, part: int, parts: int, *, ranges: ByRange | None = None
) -> WriteTask:
    """The task that sends what is read as the exchange says: one of its ``parts``. ``ranges`` are those of one by
    ranges.
    """
    placement: Placement
    if ranges is not None:
        placement = ranges
    elif exchange.keys:
        placement = ByKeys(exchange.keys, exchange.partitions, exchange.types)
    else:
        placement = InTurn(exchange.partitions)
    counts = exchange.counted and fits_one_chunk(exchange.leg.schema)
    declared, budget = exchange.leg.declared, WRITE_BUDGET_BYTES
    return WriteTask(dataset, exchange.partitions, declared, placement, read, part, parts, counts, budget)


def dataset_name(exchange: Exchange, token: str, number: int) -> str:
    """The name of an exchange's dataset: ``number`` tells it from others of ``token``."""
    if exchange.name is None:
        return f"exchange/{token}/e{number}"
    # Neither two dots in a row, nor one alone, may be in a name.
    name = re.sub(r"\.\.+|^\.$|[^A-Za-z0-9._-]", "-", exchange.name)
    return f"exchange/{name}/{token}/e{number}"


class Execution:
    """One run of a plan, which holds the datasets that it writes until its end. ``losses`` were those of earlier runs,
    which this one replaces.
    """

    def __init__(self, shuffles: Shuffles, spark: SparkSession, losses: Iterable[str] = ()) -> None:
        self._shuffles = shuffles
        self._spark = spark
        self._token = uuid.uuid4().hex
        self._numbers = count()
        self._began = time.monotonic()
        self._last: list[Exchange] = []
        """Those that the run is for."""
        self._written: dict[Exchange, SealedDataset] = {}
        self._persisted: dict[Exchange, PersistedDataset | None] = {}
        self._claimed: dict[Exchange, PersistedDataset] = {}
        self._holder = Holder(HolderKind.RUN)
        # For the statistics: in the order of the runs, with whether an earlier run wrote it.
        self._ran: dict[Exchange, tuple[SealedDataset, bool]] = {}
        self._losses = [*losses]
        self._notes: dict[Exchange, str] = {}
        self._planned: dict[Leg, Leg] = {}
        self._driver_bytes = shuffles.server.reading.driver_bytes
        self._readers: dict[Exchange, list[tuple[Shares, str]]] = defaultdict(list)
        self._sides = SideTables(shuffles, spark)

    def result_of(self, use: Callable[[Execution], T]) -> T:
        """The result of ``use``, which calls the methods below; after a loss it is called again (see the module). At
        the end all datasets are dropped that nothing else holds.

        Raises:
            FlightShuffleError: the server refused, or could not be reached.
            pyspark.errors.PySparkException: a job failed.
        """
        try:
            for left in range(RERUNS, -1, -1):
                try:
                    with settings_once(self._spark):
                        return use(self)
                except Exception:
                    if not left or not self._forget_lost():
                        raise
            raise AssertionError
        finally:
            self._sides.end()
            self._shuffles.loop.end(self._holder)

    def inputs(self, leg: Leg, *, alone: bool = False) -> list[TaskInput]:
        """Run all exchanges that the leg reads; of each of its parts what tasks read. ``alone``: each partition has a
        task of its own, unless its exchange says how many.
        """
        leg = self.plan(leg)
        self._run(exchanges(leg), leg)
        inputs = self._inputs(leg, alone=alone)
        self._note(inputs)
        return inputs

    def gathered(self, leg: Leg, *, sends: bool = False) -> DriverRows | None:
        """Run all exchanges that the leg reads, and the leg's stages in the driver; None where tasks are to run those:
        a function of the user's is among them, what they read is not small, the result is larger than
        ``GATHERED_BYTES``, or they fail here.

        Args:
            sends: the caller sends the rows otherwise, by an exchange, before which a join may hold a side: then it is
                left to that.
        """
        leg = self.plan(leg)
        if not driver_may_run(leg) or (sends and self._sides.may_leave_out(leg)):
            return None
        if (rows := self._ordered(leg)) is not None:
            return rows
        self._run(exchanges(leg), leg)
        if not self._is_for_driver([leg]):
            return None
        return self._rows_of(leg, lambda: [of_all_shares(each.task) for each in self._inputs(leg, one=True)])

    def _ordered(self, leg: Leg) -> DriverRows | None:
        """As :meth:`gathered`, of a leg that reads the exchange of an ``orderBy``, if the driver has all of its rows:
        it sorts them as they are. None of another leg.
        """
        exchange, part = leg.last, leg.single
        if exchange is None or part is None or not exchange.orders:
            return None
        if exchange in self._written or self._shuffles.persisted.find(exchange.node) is not None:
            return None
        self._planned[exchange.leg] = exchange.leg
        before = self.gathered(exchange.leg, sends=True)
        if before is None:
            return None
        sorting = self._task(None, NO_SHARES, part.stages)
        rows = self._rows_of(leg, lambda: [(sorting, iter(before.batches))])
        if rows is None:
            return None
        self._notes[exchange] = _SORTED_HERE
        return replace(rows, seconds=before.seconds + rows.seconds)

    def _rows_of(self, leg: Leg, tasks: Callable[[], Iterable[DriverTask]]) -> DriverRows | None:
        try:
            return gathered(tasks(), leg.declared, self._shuffles.server.reading)
        except Exception as error:  # noqa: BLE001 - tasks raise it, if it is one of the rows
            _log.info("left to Spark's tasks: %s", error)
            self._driver_bytes = 0
            return None

    def sealed(self, exchange: Exchange) -> SealedDataset:
        """Run the exchanges that this one needs, and this one, with all of its columns; its dataset."""
        planned = self._planned_exchange(exchange)
        self._run([planned])
        return self._written[planned]

    def plan(self, leg: Leg) -> Leg:
        if leg not in self._planned:
            self._planned[leg] = planned(leg, self._shuffles.persisted)
        return self._planned[leg]

    def _planned_exchange(self, exchange: Exchange) -> Exchange:
        """That the run is for, whose readers need all rows and columns."""
        leg = self.plan(exchange.leg)
        if leg is exchange.leg:
            return exchange
        known = next((each for each in self._written if each.original is exchange), None)
        return known or replace(exchange, leg=leg, original=exchange)

    @property
    def datasets(self) -> list[str]:
        """Those that the run is for."""
        return [self._written[each].source.dataset for each in self._last]

    def written(self, leg: Leg) -> SealedDataset | None:
        """The dataset of an exchange whose rows the leg has, without steps after it; None of another leg."""
        part = self.plan(leg).single
        alone = part is not None and not part.stages and isinstance(part.origin, Exchange)
        return self._written[part.exchange] if part is not None and alone else None

    def ran(self, leg: Leg, added: Exchange | None = None, result_seconds: float | None = None) -> LastRun:
        """What has run so far, for a leg. ``added`` is an exchange that the plan does not have, ``result_seconds`` are
        the driver's for the steps after the last one.
        """
        each = {
            exchange: ExchangeStatistics.of(exchange, sealed, self._readers[exchange], is_reused=is_reused)
            for exchange, (sealed, is_reused) in self._ran.items()
        }
        again = [loss for sealed, is_reused in self._ran.values() if not is_reused for loss in sealed.losses]
        losses = tuple(dict.fromkeys([*self._losses, *again]))
        seconds = time.monotonic() - self._began
        whole = RunStatistics(tuple(each.values()), seconds, losses, result_seconds)
        # The added one refers to the leg, which would then never be forgotten; so would the leg as it is.
        last = each.pop(self._planned_exchange(added), None) if added is not None else None
        in_driver = result_seconds is not None or (last is not None and not last.tasks)
        ran = self.plan(leg)
        notes = self._sides.notes | self._notes
        return LastRun(whole, each, in_driver, notes, None if ran is leg else ran)

    def _run(self, last: Iterable[Exchange], leg: Leg | None = None) -> None:
        """Write these exchanges, which ``leg`` reads, or, without one, the caller."""
        self._last = list(dict.fromkeys(last))
        try:
            self._claim()
            self._sides.begin(self._last, leg, self._kept, self._written)
            while (job := self._next()) is not None:
                self._do(job)
            self._sides.end()
        finally:
            for persisted in self._claimed.values():
                persisted.end(self)
            self._claimed.clear()

    def _next(self) -> PlannedJob | None:
        """The next job; None after the last one."""
        first = self._sides.decide(self._written, self._kept)
        jobs = jobs_of(self._last, self._written.keys(), self._kept, self._sides.held, first)
        return jobs[0] if jobs else None

    def _forget_lost(self) -> bool:
        """Forget what a lost server held, so that it is written again, and what was made of exchanges that are then
        written again; False if nothing was lost.
        """
        sides = self._sides.forget()
        self._notes.clear()
        gone = self._shuffles.loop.lost(each.source.dataset for each in self._written.values())
        lost = [node for node, sealed in self._written.items() if sealed.source.dataset in gone]
        losses = dict.fromkeys(lost, "a server that held a part of it is gone")
        left = self._written.keys() - losses
        if lost:
            late = outdated(self._last, left, self._kept, self._sides.thinned)
            losses |= dict.fromkeys(late, "what it was made of was written again")
        for node, loss in losses.items():
            self._losses.append(f"{node}, {loss}")
            _log.warning("run again: %s", self._losses[-1])
            self._drop(node)
        self._losses += sides
        return bool(losses or sides)

    @property
    def _kept(self) -> set[Exchange]:
        """The persisted ones of those that were looked for."""
        return {node for node, persisted in self._persisted.items() if persisted is not None}

    def _claim(self) -> None:
        left = {*self._last}
        while left:
            node = max(left, key=lambda each: each.node.serial)
            left.remove(node)
            if node not in self._written and not self._reuses(node):
                left.update(exchanges(node.leg))

    def _reuses(self, node: Exchange) -> bool:
        """Whether the exchange is persisted and its dataset is there; if it is not, this run has it to write."""
        while (persisted := self._find(node)) is not None:
            # Before the claim, so that the run ends it in any case.
            self._claimed[node] = persisted
            sealed = persisted.claim(self)
            if sealed is not None:
                self._add(node, sealed, is_reused=True)
            if sealed is not None or not persisted.is_dropped:
                return sealed is not None
            # It was unpersisted while this run waited.
            persisted.end(self)
            del self._claimed[node], self._persisted[node]
        return False

    def _find(self, node: Exchange) -> PersistedDataset | None:
        """The driver's dataset of it, by the one that was there first: another thread may persist it meanwhile."""
        if node not in self._persisted:
            self._persisted[node] = self._shuffles.persisted.find(node.node)
        return self._persisted[node]

    def _do(self, job: PlannedJob) -> None:
        in_driver = self._is_for_driver([write.leg for write in job.writes])
        ranges = [self._ranges_of(write, in_driver=in_driver) for write in job.writes]
        inputs = [
            self._inputs(write.leg, one=in_driver and not write.exchange.in_turn) for write in job.writes
        ]
        targets = [
            self._target(write.exchange, each, placement)
            for write, each, placement in zip(job.writes, inputs, ranges, strict=True)
        ]
        written = self._shuffles.write(targets, self._holder, here=in_driver)
        if any(sealed.work.tasks for sealed in written):
            for each in inputs:
                self._note(each)
            if in_driver and self._shuffles.executors is None:
                # It was more than it looked, and the later jobs read it. Of servers in executors the driver may just
                # not have known any.
                self._driver_bytes = 0
        for write, sealed in zip(job.writes, written, strict=True):
            node = write.exchange
            self._add(node, sealed)
            if node in self._claimed:
                self._claimed[node].end(self, sealed)
        for node in job.releases:
            self._drop(node)

    def _ranges_of(self, write: ExchangeWrite, *, in_driver: bool) -> ByRange | None:
        """The ranges by which the exchange places its rows; None of one by other means."""
        exchange, leg = write.exchange, write.leg
        if not isinstance(exchange.ranges, SampledRanges):
            return exchange.ranges
        if exchange.partitions == 1 or (in_driver and exchange.ranges.only_order):
            return one_range(exchange, leg)
        sample = Exchange(sample_leg(exchange, leg), 1, label=f"sample of {exchange}")
        inputs = self._inputs(sample.leg, one=in_driver)
        (sealed,) = self._shuffles.write([self._target(sample, inputs)], self._holder, here=in_driver)
        # While it is read, a server that is lost with it is one that the run has lost.
        self._written[sample] = sealed
        with closing(sealed.read()) as samples:
            ranges = sampled(exchange, leg, samples)
        self._drop(sample)
        return ranges

    def _add(self, node: Exchange, sealed: SealedDataset, *, is_reused: bool = False) -> None:
        self._ran[node] = sealed, is_reused
        self._written[node] = sealed

    def _is_for_driver(self, legs: Sequence[Leg]) -> bool:
        """Whether the driver runs these legs, whose exchanges are written."""
        most = self._driver_bytes
        return most > 0 and all(map(driver_may_run, legs)) and driver_bytes(legs, self._written) <= most

    def _note(self, inputs: Iterable[TaskInput]) -> None:
        """For the statistics: tasks read these."""
        for each in inputs:
            for node, side in each.exchanges:
                self._readers[node].append((each.task.shares, side))

    def _target(
        self, exchange: Exchange, inputs: Sequence[TaskInput], ranges: ByRange | None = None
    ) -> Target:
        dataset = dataset_name(exchange, self._token, next(self._numbers))
        writes = [
            (each.rows, write_of(dataset, exchange, each.task, part, len(inputs), ranges=ranges))
            for part, each in enumerate(inputs)
        ]
        # The rows of one partition have one order, that of the tasks.
        alone = exchange.partitions == 1
        return Target(writes, str(exchange), exchange.name, alone=alone, offload=exchange.offload)

    def _inputs(self, leg: Leg, *, alone: bool = False, one: bool = False) -> list[TaskInput]:
        """Of each part what the tasks read; ``one`` task reads all."""
        return [self._input(part, alone=alone, one=one) for part in leg.parts]

    def _input(self, part: PlanPart, *, alone: bool, one: bool) -> TaskInput:
        origin = part.origin
        if isinstance(origin, Input):
            return TaskInput(origin.rows, self._task(origin.source, origin.shares, part.stages))
        reads = reads_of(part)
        sealed = [self._written[read.exchange] for read in reads]
        partition_bytes = tuple(map(sum, zip(*(each.partition_bytes for each in sealed), strict=True)))
        tasks = 1 if one else reads[0].exchange.tasks
        cuts: list[Cut] = []
        if not alone and not one and (may := [read.side for read in reads if read.may_cut]):
            # Partitions far over the median, where the steps allow it.
            cuts = cuts_of(sealed[0]) if len(sealed) == 1 else cuts_of_pair(sealed[0], sealed[1], may)
        if tasks is None and not alone and (available := cores(self._spark)) is not None:
            read_bytes = sum(sum(cut.piece_bytes) - partition_bytes[cut.partition] for cut in cuts)
            tasks = tasks_for([*partition_bytes, read_bytes], available)
        shares = Shares.equal(partition_bytes, tasks or len(partition_bytes), cuts)
        source = (
            Sides(sealed[0].source, sealed[1].source, origin.left.stages, origin.right.stages)
            if isinstance(origin, Pair)
            else sealed[0].source
        )
        # Of an exchange that is both sides of a pair, once.
        sides = {read.exchange: read.side for read in reversed(reads)}
        task = self._task(source, shares, part.stages)
        return TaskInput(TaskNumbers(self._spark, len(shares)), task, [*sides.items()])

    def _task(self, source: TaskSource | Sides | None, shares: Shares, stages: tuple[Stage, ...]) -> ReadTask:
        """A task whose functions of users get rows by the session's settings now, in batches within its limits; Spark
        is asked only if there are any.
        """
        options = self._shuffles.server.reading
        of_sides = source.left_stages + source.right_stages if isinstance(source, Sides) else ()
        if all(stage.ours for stage in (*stages, *of_sides)):
            return ReadTask(source, shares, stages, options=options)
        settings = function_settings(self._spark)
        if isinstance(source, Sides):
            left, right = (
                with_settings(each, settings) for each in (source.left_stages, source.right_stages)
            )
            source = replace(source, left_stages=left, right_stages=right)
        return ReadTask(source, shares, with_settings(stages, settings), batch_limits(self._spark), options)

    def _drop(self, exchange: Exchange) -> None:
        """The run does not need its dataset any more."""
        self._shuffles.loop.end(self._holder, [self._written.pop(exchange).source.dataset])
