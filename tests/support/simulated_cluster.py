"""A cluster without I/O: Spark's tasks, servers that are killed, readers, and the driver's state machine between them.

Each task, call, read and fault is a chain of a :class:`~tests.support.chains.Schedule`, so one seed is one run.

Limits: no time passes, leases end after everything else, and a message is lost only with its server.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from flight_server.protocol import FlightShuffleError, InvalidRequest, NotFound, StaleTicket
from spark_client.connection import Unreachable
from spark_client.servers import (
    CancelJob,
    Create,
    DriverCall,
    Drop,
    Fail,
    Renew,
    Report,
    RunJob,
    Seal,
    ServerStart,
    SpreadWrite,
    WriteState,
    place,
)

from .chains import Chain, Schedule

TASK_TRIES = 4


@dataclass
class HeldDataset:
    """What a server has of one generation: by portion and producer the attempt, and what is sealed of it.

    ``known``: the driver was told of something that is in it.
    """

    generation: str
    committed: dict[ServerStart, dict[tuple[int, str], Mapping[int, int]]] = field(default_factory=dict)
    sealed: dict[ServerStart, dict[int, Mapping[int, int]]] = field(default_factory=dict)
    known: bool = False


@dataclass
class SimulatedServer:
    """One start of a server. A task's rows are counts by partition."""

    start: ServerStart
    lives: bool = True
    datasets: dict[str, HeldDataset] = field(default_factory=dict)
    drawn: int = 0

    def create(self, dataset: str) -> str:
        self._check()
        self.drawn += 1
        generation = f"{self.start.start}/{self.drawn}"
        self.datasets[dataset] = HeldDataset(generation)
        return generation

    def put(self, report: Report, rows: Mapping[int, int], *, creates: bool) -> None:
        """Raises NotFound, StaleTicket, or Unreachable."""
        self._check()
        held = self.datasets.get(report.dataset)
        if creates and (held is None or _run(held.generation) < _run(report.generation)):
            held = self.datasets[report.dataset] = HeldDataset(report.generation)
        held = self._find(report.dataset, report.generation)
        if held.sealed:
            raise StaleTicket("sealed")
        held.committed.setdefault(report.servers[0], {})[report.producer, report.attempt] = rows

    def seal(self, call: Seal) -> dict[str, Any]:
        """Raises as :meth:`put`, and InvalidRequest."""
        self._check()
        held = self._find(call.dataset, call.generation)
        committed = held.committed.get(call.portion, {})
        if not call.attempts.items() <= committed.keys():
            # It was dropped, and a put of a cancelled job has created it again.
            raise InvalidRequest("an attempt is not there")
        found = {each[0]: committed[each] for each in call.attempts.items()}
        assert held.sealed.setdefault(call.portion, found) == found
        sizes = sum(map(Counter, found.values()), Counter[int]())
        rows = sum(sizes.values())
        answer = {"rows": rows, "frames": len(found), "bytes": rows}
        return {**answer, **summed({str(each): size for each, size in sizes.items()}, call.largest)}

    def drop(self, dataset: str, generation: str) -> None:
        self._check()
        self._find(dataset, generation)
        del self.datasets[dataset]

    def renew(self, dataset: str, generation: str) -> None:
        self._check()
        self._find(dataset, generation)

    def _check(self) -> None:
        if not self.lives:
            raise Unreachable(f"{self.start.location} is gone")

    def _find(self, dataset: str, generation: str) -> HeldDataset:
        held = self.datasets.get(dataset)
        if held is None:
            raise NotFound(f"no {dataset}")
        if held.generation != generation:
            raise StaleTicket(f"{dataset} has another generation")
        return held


def _run(generation: str) -> int:
    return int(generation[-2:], 16)


def summed(sizes: Mapping[str, int], largest: int | None) -> dict[str, Any]:
    """The part of a server's answer to a seal that tells the sizes of partitions, as ``PartitionSizes`` wants it."""
    if largest is None:
        return {"partition_bytes": dict(sizes)}
    named = dict(heapq.nlargest(largest, sizes.items(), key=lambda each: each[1]))
    return {"partition_bytes": named, "rest_bytes": sum(sizes.values()) - sum(named.values())}


@dataclass
class RunningJob:
    """What Spark has accepted so far, by dataset and producer."""

    job: RunJob
    accepted: dict[str, dict[int, str]]
    over: bool = False


class SimulatedCluster:
    """One write of ``datasets``, from the job to the release. After :meth:`run`, ``machine`` and the rest can be asked.

    Args:
        faults: how many servers are killed, or started again, at any time.
        given: the driver creates the datasets on the only server, as with one server today.
    """

    def __init__(
        self,
        seed: int,
        *,
        servers: int = 4,
        tasks: int = 6,
        partitions: int = 3,
        datasets: tuple[str, ...] = ("left", "right"),
        copies: int = 1,
        faults: int = 1,
        given: bool = False,
        hands_out: bool = False,
        changes: int = 5,
    ) -> None:
        self.random = Random(seed)
        self.schedule = Schedule(self.random, changes, steps=(4 * tasks + 20 * servers) * len(datasets))
        self.servers = [SimulatedServer(ServerStart(f"grpc://host{i}:1", f"s{i}.0")) for i in range(servers)]
        self._numbers = {each.start.location: number for number, each in enumerate(self.servers)}
        self.states_at_faults: list[WriteState] = []
        self.tasks, self.partitions, self.datasets, self.copies = tasks, partitions, datasets, copies
        self.given, self.hands_out = given, hands_out
        on = ServerStart(self.servers[0].start.location) if given else None
        self.machine = SpreadWrite(dict.fromkeys(datasets, partitions), "g", on)
        self.calls: list[DriverCall] = []
        self.failed: Exception | None = None
        self.read: dict[str, Counter[tuple[int, int]]] = {}
        self._cancelled: set[int] = set()
        self._attempts = 0
        self._reads_begun = 0
        self._faults = faults

    def run(self) -> None:
        """Everything, until nothing more happens."""
        for _ in range(self._faults):
            self.schedule.interrupt(self._fault())
        self.schedule.begin(self._renewals())
        self._do(self.machine.begin())
        self.schedule.run()

    def rows(self, producer: int) -> Mapping[int, int]:
        """What the task puts, by partition."""
        return dict.fromkeys(range(producer % 2, self.partitions, 2), 1 + producer)

    def expected(self) -> Counter[tuple[int, int]]:
        """The rows of a whole dataset, by producer and partition."""
        return Counter(
            {(task, part): rows for task in range(self.tasks) for part, rows in self.rows(task).items()}
        )

    def left(self) -> list[HeldDataset]:
        """What living servers still have, until the leases end."""
        return [held for server in self.servers for held in server.datasets.values()]

    # The driver's loop: what ``Shuffles`` does with the calls.

    def _do(self, calls: list[DriverCall]) -> None:
        self.calls += calls
        for call in calls:
            match call:
                case RunJob():
                    self._job(call)
                case CancelJob():
                    self._cancelled.add(call.run)
                case Fail():
                    self.failed = call.error
                case _:
                    self.schedule.begin(self._call(call))
        if self.machine.state is WriteState.SEALED and self._reads_begun < self.machine.run:
            self._reads_begun = self.machine.run
            self.schedule.begin(self._reading())

    def _call(self, call: Create | Seal | Drop | Renew) -> Chain:
        server = self._at(call.server)
        yield f"{type(call).__name__} {call.dataset} at {call.server.location}"
        answer: Any = None
        error: FlightShuffleError | None = None
        try:
            if server is None:
                raise Unreachable("another start answers")
            match call:
                case Create():
                    answer = server.create(call.dataset)
                    server.datasets[call.dataset].known = True
                case Seal():
                    answer = server.seal(call)
                case Drop():
                    server.drop(call.dataset, call.generation)
                case Renew():
                    server.renew(call.dataset, call.generation)
        except FlightShuffleError as refused:
            error = refused
        yield f"answer {error or 'good'}"
        if error is not None:
            self._do(self.machine.refused(call, error))
        elif isinstance(call, Create):
            self._do(self.machine.created(call, answer))
        elif isinstance(call, Seal):
            self._do(self.machine.sealed(call, answer))

    def _renewals(self) -> Chain:
        for _ in range(3):
            yield "renew"
            self._do(self.machine.renew())

    # Spark.

    def _job(self, job: RunJob) -> None:
        running = RunningJob(job, {dataset: {} for dataset in job.generations})
        for dataset in job.generations:
            for producer in range(self.tasks):
                for _ in range(1 + (self.random.random() < 0.2)):  # speculation
                    self.schedule.begin(self._task(running, dataset, producer))

    def _job_ends(self, running: RunningJob, error: Exception | None, server: ServerStart | None) -> Chain:
        running.over = True
        yield f"run {running.job.run} ends: {error or 'good'}"
        if running.job.run in self._cancelled:
            return
        if error is None:
            self._do(self.machine.job_ended(running.job, running.accepted))
        else:
            if server is not None:
                self._do(self.machine.lost(server, next(iter(running.job.generations.values()))))
            self._do(self.machine.job_failed(running.job, error))

    def _task(self, running: RunningJob, dataset: str, producer: int) -> Chain:
        job = running.job
        error: Unreachable | NotFound = Unreachable("no server")
        failed: ServerStart | None = None
        for tries in range(TASK_TRIES):
            if job.run in self._cancelled and self.random.random() < 0.5:
                return  # the others are zombies
            self._attempts += 1
            attempt = str(self._attempts)
            # A task finds the servers by their locations, and learns the start from the answer.
            without = {each.location for each in job.without}
            living = [each.start.location for each in self.servers if each.lives]
            living = [each for each in living if each not in without] or living
            if not living:
                break
            if self.given:
                living = [self.servers[0].start.location]
            host = f"host{producer}" if producer < len(self.servers) else None
            chosen = place(dataset, producer, living, host=host, tries=tries, copies=self.copies)
            targets = [each for each in map(self._at, map(ServerStart, chosen)) if each is not None]
            starts = tuple(ServerStart(each.start.location) if self.given else each.start for each in targets)
            report = Report(dataset, job.generations[dataset], producer, attempt, starts)
            what = f"{dataset} {producer} attempt {attempt}"
            try:
                for target, start in zip(targets, starts, strict=True):
                    failed = start
                    yield f"{what} puts at {target.start.location}"
                    target.put(report, self.rows(producer), creates=not self.given)
            except (NotFound, Unreachable) as refused:
                error = refused
                continue
            yield f"{what} is committed"
            if self.random.random() < 0.1 and tries < TASK_TRIES - 1:
                continue  # it dies before its report
            for target in targets:
                held = target.datasets.get(dataset)
                if held is not None and held.generation == report.generation:
                    held.known = True
            self._do(self.machine.reported(report))
            running.accepted[dataset].setdefault(producer, attempt)  # Spark never accepts two
            if not running.over and all(len(each) == self.tasks for each in running.accepted.values()):
                self.schedule.begin(self._job_ends(running, None, None))
            return
        if not running.over and producer not in running.accepted[dataset]:
            self.schedule.begin(self._job_ends(running, error, failed))

    # Readers.

    def _reading(self) -> Chain:
        run = self.machine.run
        if self.hands_out:
            self.machine.hand_out()
        plan = [
            (dataset, self.machine.generation(dataset), portion.name, tuple(portion.copies))
            for dataset in self.machine.datasets
            for portion in self.machine.portions(dataset)
        ]
        found = {dataset: Counter[tuple[int, int]]() for dataset in self.machine.datasets}
        for dataset, generation, name, copies in plan:
            yield f"read {dataset} of {name.location}"
            rows = next(filter(None, (self._rows(copy, dataset, generation, name) for copy in copies)), None)
            if rows is None:
                yield "they are not there"
                for copy in copies:
                    self._do(self.machine.lost(copy, generation))
                return
            for producer, sizes in rows.items():
                found[dataset].update({(producer, partition): count for partition, count in sizes.items()})
        for dataset, all_rows in found.items():
            yield f"release {dataset}"
            # Else a loss came between, and the job runs again.
            if self.machine.run == run and self.machine.state in (WriteState.SEALED, WriteState.HANDED_OUT):
                self.read[dataset] = all_rows
                self._check_totals(dataset, all_rows)
                self._do(self.machine.release(dataset))

    def _check_totals(self, dataset: str, rows: Counter[tuple[int, int]]) -> None:
        totals, sizes = self.machine.totals(dataset), [0] * self.partitions
        for (_, partition), count in rows.items():
            sizes[partition] += count
        assert (totals.rows, totals.sizes.sizes().tolist()) == (rows.total(), sizes)

    def _rows(
        self, copy: ServerStart, dataset: str, generation: str, portion: ServerStart
    ) -> dict[int, Mapping[int, int]] | None:
        server = self._at(copy)
        held = server.datasets.get(dataset) if server is not None else None
        return held.sealed[portion] if held is not None and held.generation == generation else None

    # Faults.

    def _fault(self) -> Chain:
        number = self.random.randrange(len(self.servers))
        server = self.servers[number]
        self.states_at_faults.append(self.machine.state)
        server.lives = False
        server.datasets.clear()
        location, start = server.start
        again = ServerStart(location, f"{start}+")
        yield f"{location} is killed"
        if self.random.random() < 0.5:
            self.servers[number] = SimulatedServer(again)
            yield f"{location} is started again"

    def _at(self, server: ServerStart) -> SimulatedServer | None:
        """The process there; None if it has another start."""
        there = self.servers[self._numbers[server.location]]
        return there if server.start in ("", there.start.start) else None
