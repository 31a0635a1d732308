"""What the threads of a simulated driver do: plans of exchanges, DataFrames, readers, broadcasts, what is persisted.

It asks ``DriverLoop`` for what ``jobs``, ``pipeline`` and ``broadcast`` ask it for, in their order, without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from random import Random
from typing import Any, TypeVar

from flight_server.protocol import FlightShuffleError, InvalidRequest, NotFound, ServerLost
from spark_client.connection import TimedOut, Unreachable
from spark_client.servers import RERUNS, Holder, HolderKind, PlannedDataset, RunJob, Scope
from spark_client.servers.dataset_machine import HeldState

from .simulated_cluster import DRIVERS, PREFIX, SimulatedCluster, Source

T = TypeVar("T")
KNOWN = (InvalidRequest, NotFound, Unreachable, TimedOut, KeyboardInterrupt)
"""What a plan may end with."""


class SimulatedDriver:
    """After :meth:`run`: ``errors`` of the threads' plans, and ``read``, how many datasets were read whole.

    Args:
        threads: how many run plans, ``plans`` each.
        offloads: the share of datasets that are kept as objects, too.
        closes: the client is closed at some step, while threads run.
        interrupts: how often Ctrl-C reaches a thread.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        *,
        threads: int = 2,
        plans: int = 2,
        offloads: float = 0.0,
        closes: bool = False,
        interrupts: int = 0,
    ) -> None:
        self.cluster = cluster
        self.random: Random = cluster.random
        self.errors = Counter[str]()
        self.read = 0
        self.is_closed = False
        self.offloads = offloads
        self._numbers = count(1)
        self._threads, self._plans = threads, plans
        self._persisted = [PersistedDataset(self) for _ in range(2)]
        self._open: list[tuple[Holder, str]] = []
        """The frames and broadcasts that are to be released."""
        self._closes, self._interrupts = closes, interrupts

    def run(self) -> None:
        self.cluster.run(self._main)

    def _main(self) -> None:
        cluster = self.cluster
        seeds = [self.random.random() for _ in range(self._threads)]
        running = [cluster.threads.begin(partial(self._thread, Random(seed)), "plans") for seed in seeds]
        if self._closes:
            cluster.schedule.interrupt(self._closing())
        for _ in range(self._interrupts):
            cluster.schedule.interrupt(self._interrupting(self.random.choice(running)))
        for each in running:
            each.join()
            if each.error is not None:
                raise each.error
        for holder, dataset in self._open:
            self._end(holder, [dataset])
        for persisted in self._persisted:
            persisted.leave()
        if self._interrupts:
            cluster.loop.close()  # of what a thread held when it was interrupted
        else:
            assert not cluster.machine.datasets, "each holder has ended"
            for server in cluster.all_servers:
                assert not cluster.left(server), f"{server.start} keeps {cluster.left(server)}"
        cluster.threads.wait_seconds(40 * cluster.lease_seconds)
        for server in cluster.all_servers:
            assert not server.datasets, f"{server.start} keeps {[*server.datasets]}"
        cluster.loop.close()
        cluster.loop.close()

    def _closing(self) -> Any:
        yield "the client is closed"
        self.is_closed = True
        self.cluster.threads.begin(self.cluster.loop.close, "close")

    def _interrupting(self, thread: Any) -> Any:
        yield "Ctrl-C"
        if thread.is_alive():
            thread.interrupt(KeyboardInterrupt())

    def _thread(self, random: Random) -> None:
        for _ in range(self._plans):
            try:
                with self._scope(random) as scope:
                    Plan(self, random, scope).run()
                self.cluster.threads.wait_seconds(random.choice([0.0, 0.1, 7.0, self.cluster.lease_seconds]))
            except KNOWN as error:
                self._check(error)
                self.errors[type(error).__name__] += 1

    @contextmanager
    def _scope(self, random: Random) -> Iterator[Scope | None]:
        if random.random() < 0.5:
            yield None
            return
        scope = Scope()
        try:
            yield scope
        finally:
            self.cluster.loop.act(lambda machine: machine.end_scope(scope))

    def _check(self, error: BaseException) -> None:
        """An error has a reason."""
        if isinstance(error, KeyboardInterrupt):
            assert self._interrupts
        elif isinstance(error, InvalidRequest):
            assert self.is_closed
        else:
            assert self.is_closed or self.cluster.faults or self.cluster.loses_answers
            if isinstance(error, ServerLost) and error.detail:
                assert error.detail.keys() == {"server", "start", "dataset", "run"}

    # What ``Shuffles`` and ``Results`` do.

    def write(
        self, names: Sequence[str], holder: Holder, reads: Sequence[Source] = (), *, alone: bool = False
    ) -> list[Source]:
        cluster, offload = self.cluster, PREFIX if self.random.random() < self.offloads else None
        planned = {name: PlannedDataset(cluster.partitions, offload) for name in names}
        candidates = cluster.locations or ((DRIVERS,) if alone else ())

        def run(call: RunJob) -> Any:
            return cluster.run_job(call, tuple(names), reads, alone=alone)

        cluster.loop.write(
            planned, run, holder, candidates=candidates, reads=[each.dataset for each in reads]
        )
        return [cluster.source(name) for name in names]

    def name(self, kind: str) -> str:
        return f"{kind}/n{next(self._numbers)}"

    def lost(self, datasets: Sequence[str]) -> list[str]:
        self.cluster.loop.act(lambda machine: machine.check(datasets))
        with self.cluster.loop.machine() as machine:
            return [each for each in datasets if machine.state(each) is HeldState.LOST]

    def hold(self, holder: Holder, dataset: str, scope: Scope | None) -> None:
        with self.cluster.loop.machine() as machine:
            machine.hold(dataset, holder, scope)

    def _end(self, holder: Holder, datasets: Sequence[str] | None = None) -> None:
        self.cluster.loop.act(lambda machine: machine.end_hold(holder, datasets))


class Plan:
    """One of a thread: exchanges, and what reads the last one."""

    def __init__(self, driver: SimulatedDriver, random: Random, scope: Scope | None) -> None:
        self._driver = driver
        self._random = random
        self._scope = scope

    def run(self) -> None:
        self._random.choice([self._collect, self._collect, self._frame, self._broadcast, self._persist])()

    def _running(self, use: Callable[[Execution], T]) -> T:
        for left in range(RERUNS, -1, -1):
            execution = Execution(self._driver, self._random)
            try:
                return use(execution)
            except BaseException as error:
                if not (left and isinstance(error, Exception) and execution.has_lost()):
                    raise
            finally:
                execution.end()
        raise AssertionError

    def _collect(self) -> None:
        def held(execution: Execution) -> tuple[Source, Holder]:
            holder, source = Holder(HolderKind.READER), execution.last()
            self._driver.hold(holder, source.dataset, self._scope)
            return source, holder

        driver, machine = self._driver, self._driver.cluster.machine
        source, holder = self._running(held)
        left = RERUNS
        while True:
            try:
                driver.lost([source.dataset])
                if left and machine.may_run_again(source.dataset, holder):
                    raise ServerLost("lost before the first row")
                driver.cluster.threads.step("reads the first row")
                machine.hand_out(source.dataset, holder)
                driver.cluster.read(source)
            except FlightShuffleError:
                driver.lost([source.dataset])
                is_lost = machine.may_run_again(source.dataset, holder)
                driver._end(holder)
                if not left or not is_lost:
                    raise
            else:
                driver.read += 1
                driver._end(holder)
                return
            left -= 1
            source, holder = self._running(held)

    def _frame(self) -> None:
        def held(execution: Execution) -> Source:
            source = execution.last()
            self._driver.hold(frame, source.dataset, self._scope)
            driver._open.append((frame, source.dataset))
            return source

        driver, frame = self._driver, Holder(HolderKind.FRAME)
        source = self._running(held)
        for _ in range(self._random.randint(1, 2)):
            driver.cluster.threads.wait_seconds(self._random.choice([0.0, 5.0, driver.cluster.lease_seconds]))
            driver.cluster.read(source)
            driver.read += 1
        if self._random.random() < 0.5:
            driver.cluster.loop.act(lambda machine: machine.end_frames([source.dataset]))

    def _broadcast(self) -> None:
        driver, run, holder = self._driver, Holder(HolderKind.RUN), Holder(HolderKind.BROADCAST)
        try:
            (source,) = driver.write([driver.name("broadcast")], run, alone=True)
            driver.hold(holder, source.dataset, None)
        finally:
            driver._end(run)
        try:
            self._running(lambda execution: execution.last(source))
        finally:
            if self._random.random() < 0.5:
                driver.cluster.loop.act(lambda machine: machine.release(source.dataset))
            else:
                driver._end(holder, [source.dataset])

    def _persist(self) -> None:
        kept = self._random.choice(self._driver._persisted)

        def read(execution: Execution) -> None:
            try:
                source = kept.claim(execution)
                if source is None:
                    source = execution.last()
                    kept.written(execution, source, self._scope)
                else:
                    execution.add(source)
            finally:
                kept.end(execution)
            try:
                execution.last(source)
            except NotFound:
                if source.dataset in self._driver.cluster.machine.datasets:
                    raise  # else another thread has released it

        self._running(read)
        if self._random.random() < 0.2:
            kept.release()


class Execution:
    """One run of a plan, which holds what it writes."""

    def __init__(self, driver: SimulatedDriver, random: Random) -> None:
        self._driver = driver
        self._random = random
        self._holder = Holder(HolderKind.RUN)
        self._written: dict[str, Source] = {}

    def last(self, source: Source | None = None) -> Source:
        """Write some exchanges, of which each job reads those of the one before, the first one the ``source``."""
        for left in range(RERUNS, -1, -1):
            try:
                return self._write(source)
            except Exception:
                lost = self._driver.lost(
                    [each for each in self._written if source is None or each != source.dataset]
                )
                if not left or not lost:
                    raise
                self._drop(lost)
        raise AssertionError

    def _write(self, source: Source | None) -> Source:
        driver = self._driver
        reads = [] if source is None else [source]
        for _ in range(self._random.randint(1, 2)):
            names = [driver.name("exchange") for _ in range(self._random.randint(1, 2))]
            written = driver.write(names, self._holder, reads)
            for each in written:
                self.add(each)
            driver.read += len(reads)
            self._drop([each.dataset for each in reads if each != source])
            reads = written
        self._drop([each.dataset for each in reads[:-1]])
        return reads[-1]

    def add(self, source: Source) -> None:
        self._written[source.dataset] = source

    def _drop(self, datasets: Sequence[str]) -> None:
        for each in datasets:
            del self._written[each]
        self._driver._end(self._holder, datasets)

    def has_lost(self) -> bool:
        return bool(self._driver.lost([*self._written]))

    def end(self) -> None:
        self._driver._end(self._holder)


class PersistedDataset:
    """As ``jobs.persisting`` has it."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self._driver = driver
        self._holder = Holder(HolderKind.PERSISTED)
        self._run: object = None
        self._changed = driver.cluster.schedule.gate()
        self._source: Source | None = None

    def claim(self, run: object) -> Source | None:
        self._wait()
        self._run = run
        source = self._source
        if source is not None:
            try:
                self._driver.lost([source.dataset])
                with self._driver.cluster.loop.machine() as machine:
                    state = machine.state(source.dataset)
                if state in (HeldState.SEALED, HeldState.HANDED_OUT):
                    return source
            finally:
                self.end(run)
            self._wait()
            self._run = run
        self._source = None
        if source is not None:
            self._driver._end(self._holder)
        return None

    def _wait(self) -> None:
        while self._run is not None:
            self._driver.cluster.threads.wait(self._changed)

    def written(self, run: object, source: Source, scope: Scope | None) -> None:
        if self._run is run:
            self._driver.hold(self._holder, source.dataset, scope)
            self._source = source

    def end(self, run: object) -> None:
        if self._run is run:
            self._run = None
            self._changed.open()
            self._changed = self._driver.cluster.schedule.gate()

    def release(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            self._driver.cluster.loop.act(lambda machine: machine.release(source.dataset))

    def leave(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            self._driver._end(self._holder)
