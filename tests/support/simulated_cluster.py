"""A cluster without I/O: Spark's tasks, servers that are lost, readers, and the driver's state machine between them.

Each task, call, read and fault is a chain of a :class:`~tests.support.chains.Schedule`, so one seed is one run.

A server is killed, killed and started again, or cut off for some steps, after which it has all that it had. An answer
may come late, or never, though the server has done what it was asked for.

Limits: no time passes, and leases end after everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from spark_client.servers.spread_write import CancelJob, Renew, WriteState

from flight_server.protocol import FlightShuffleError, NotFound
from spark_client.connection import TimedOut, Unreachable
from spark_client.servers import (
    Create,
    DriverCall,
    Drop,
    Fail,
    Report,
    RunJob,
    Seal,
    ServerStart,
    SpreadWrite,
    place,
)

from .chains import Chain, Schedule
from .simulated_server import HeldDataset, SimulatedServer

TASK_TRIES = 4


def _done(server: SimulatedServer, call: Create | Seal | Drop | Renew) -> Any:
    """The server's answer. Raises as it does."""
    match call:
        case Create():
            return server.create(call.dataset)
        case Seal():
            return server.seal(call)
        case Drop():
            return server.drop(call.dataset, call.generation)
        case Renew():
            return server.renew(call.dataset, call.generation)


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
        cuts: how many are cut off for a while.
        mute: the share of the driver's calls that are done and never answered.
        fault_at: the step of the first fault; None for any.
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
        faults: int = 1,
        cuts: int = 0,
        mute: float = 0.0,
        fault_at: int | None = None,
        given: bool = False,
        hands_out: bool = False,
        changes: int = 5,
    ) -> None:
        self.random = Random(seed)
        self.schedule = Schedule(self.random, changes, steps=(4 * tasks + 20 * servers) * len(datasets))
        self.servers = [SimulatedServer(ServerStart(f"grpc://host{i}:1", f"s{i}.0")) for i in range(servers)]
        self._numbers = {each.start.location: number for number, each in enumerate(self.servers)}
        self.states_at_faults: list[WriteState] = []
        self.tasks, self.partitions, self.datasets = tasks, partitions, datasets
        self.given, self.hands_out = given, hands_out
        on = ServerStart(self.servers[0].start.location) if given else None
        self.machine = SpreadWrite(dict.fromkeys(datasets, partitions), "g", on)
        self.calls: list[DriverCall] = []
        self.failed: Exception | None = None
        self.read: dict[str, Counter[tuple[int, str, int]]] = {}
        """Of each dataset that was read whole: the rows by producer, attempt and partition."""
        self.read_in: dict[str, int] = {}
        """The run that had written them."""
        self.accepted: dict[tuple[int, str], Mapping[int, str]] = {}
        """By run and dataset, the attempt of each producer that Spark has accepted; of jobs that have ended well."""
        self.away: set[ServerStart] = set()
        """The servers that did not answer the driver, or a task or reader that has told it."""
        self._running: RunningJob | None = None
        self._cancelled: set[int] = set()
        self._attempts = 0
        self._reads_begun = 0
        self._faults, self.cuts, self.mute, self._fault_at = faults, cuts, mute, fault_at

    def run(self) -> None:
        """Everything, until nothing more happens."""
        for number in range(self._faults):
            self.schedule.interrupt(self._fault(), None if number else self._fault_at)
        for _ in range(self.cuts):
            self.schedule.interrupt(self._cut())
        self.schedule.begin(self._renewals())
        self._do(self.machine.begin())
        self.schedule.run()

    def rows(self, producer: int) -> Mapping[int, int]:
        """What the task puts, by partition."""
        return dict.fromkeys(range(producer % 2, self.partitions, 2), 1 + producer)

    def left(self) -> list[tuple[ServerStart, HeldDataset]]:
        """What living servers still have, until the leases end."""
        return [(server.start, held) for server in self.servers for held in server.datasets.values()]

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
                    self._check_cancelled()
                    self.failed = call.error
                case _:
                    self.schedule.begin(self._call(call))
        if self.machine.state is WriteState.SEALED and self._reads_begun < self.machine.run:
            self._reads_begun = self.machine.run
            self.schedule.begin(self._reading())

    def _call(self, call: Create | Seal | Drop | Renew) -> Chain:
        yield f"{type(call).__name__} {call.dataset} at {call.server.location}"
        server = self.servers[self._numbers[call.server.location]]  # whichever start answers there now
        answer: Any = None
        error: FlightShuffleError | None = None
        try:
            answer = _done(server, call)
            if self.random.random() < self.mute:
                raise TimedOut("no answer")
        except FlightShuffleError as refused:
            error = refused
            if isinstance(error, Unreachable | TimedOut):
                self.away.add(call.server)
        yield f"answer {error or 'good'}"
        if error is not None:
            self._do(self.machine.refused(call, error))
        elif isinstance(call, Create):
            held = server.datasets.get(call.dataset)
            if held is not None and held.generation == answer:
                held.known = True
            self._do(self.machine.created(call, answer))
        elif isinstance(call, Seal):
            self._do(self.machine.sealed(call, answer))

    def _renewals(self) -> Chain:
        for _ in range(3):
            yield "renew"
            self._do(self.machine.renew())

    # Spark.

    def _job(self, job: RunJob) -> None:
        self._check_cancelled()
        self._running = running = RunningJob(job, {dataset: {} for dataset in job.generations})
        for dataset in job.generations:
            for producer in range(self.tasks):
                for _ in range(1 + (self.random.random() < 0.2)):  # speculation
                    self.schedule.begin(self._task(running, dataset, producer))

    def _check_cancelled(self) -> None:
        """A job that is given up is cancelled first: two must not run at once."""
        assert self._running is None or self._running.over or self._running.job.run in self._cancelled

    def _job_ends(self, running: RunningJob, error: Exception | None, server: ServerStart | None) -> Chain:
        running.over = True
        yield f"run {running.job.run} ends: {error or 'good'}"
        if running.job.run in self._cancelled:
            return
        if error is None:
            for dataset, attempts in running.accepted.items():
                self.accepted[running.job.run, dataset] = dict(attempts)
            self._do(self.machine.job_ended(running.job, running.accepted))
        else:
            if server is not None:
                self.away.add(server)
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
            target = self._at(ServerStart(place(dataset, producer, living, host=host, tries=tries)))
            assert target is not None
            failed = ServerStart(target.start.location) if self.given else target.start
            report = Report(dataset, job.generations[dataset], producer, attempt, failed)
            what = f"{dataset} {producer} attempt {attempt}"
            yield f"{what} puts at {target.start.location}"
            try:
                self._put(target, report)
            except (NotFound, Unreachable) as refused:
                error = refused
                continue
            yield f"{what} is committed"
            if self.random.random() < 0.1 and tries < TASK_TRIES - 1:
                continue  # it dies before its report
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

    def _put(self, target: SimulatedServer, report: Report) -> None:
        target.put(report, self.rows(report.producer), creates=not self.given)
        if self.random.random() < self.mute:
            raise Unreachable("no answer to the commit")

    # Readers.

    def _reading(self) -> Chain:
        run = self.machine.run
        if self.machine.state is not WriteState.SEALED:
            return  # a loss came before the reader, and the job runs again
        if self.hands_out:
            self.machine.hand_out()
        plan = [
            (dataset, self.machine.generation(dataset), portion.server)
            for dataset in self.machine.datasets
            for portion in self.machine.portions(dataset)
        ]
        found = {dataset: Counter[tuple[int, str, int]]() for dataset in self.machine.datasets}
        for dataset, generation, start in plan:
            yield f"read {dataset} of {start.location}"
            rows = self._rows(start, dataset, generation)
            if rows is None:
                yield "they are not there"
                self.away.add(start)
                self._do(self.machine.lost(start, generation))
                return
            for attempt, sizes in rows.items():
                found[dataset].update({(*attempt, partition): count for partition, count in sizes.items()})
        for dataset, all_rows in found.items():
            yield f"release {dataset}"
            # Else a loss came between, and the job runs again.
            if self.machine.run == run and self.machine.state in (WriteState.SEALED, WriteState.HANDED_OUT):
                self.read[dataset], self.read_in[dataset] = all_rows, run
                self._check_totals(dataset, all_rows)
                self._do(self.machine.release(dataset))

    def _check_totals(self, dataset: str, rows: Counter[tuple[int, str, int]]) -> None:
        totals, sizes = self.machine.totals(dataset), [0] * self.partitions
        for (_, _, partition), count in rows.items():
            sizes[partition] += count
        assert (totals.rows, totals.sizes.sizes().tolist()) == (rows.total(), sizes)

    def _rows(
        self, start: ServerStart, dataset: str, generation: str
    ) -> dict[tuple[int, str], Mapping[int, int]] | None:
        server = self._at(start)
        held = server.datasets.get(dataset) if server is not None and not server.cut else None
        return held.sealed if held is not None and held.generation == generation else None

    # Faults.

    def _fault(self) -> Chain:
        number = self.random.randrange(len(self.servers))
        server = self.servers[number]
        self.states_at_faults.append(self.machine.state)
        server.lives = False
        server.datasets.clear()
        location = server.start.location
        # No start is drawn twice: a server that was killed twice before it came back would have had one start for two.
        again = ServerStart(location, f"s{number}.{len(self.states_at_faults)}")
        yield f"{location} is killed"
        if self.random.random() < 0.5 and self.servers[number] is server:
            self.servers[number] = SimulatedServer(again)
            yield f"{location} is started again"

    def _cut(self) -> Chain:
        server = self.servers[self.random.randrange(len(self.servers))]
        server.cut = True
        for _ in range(self.random.randrange(1, 40)):
            yield f"{server.start.location} is cut off"
        server.cut = False
        yield f"{server.start.location} is back"

    def _at(self, server: ServerStart) -> SimulatedServer | None:
        """The process there; None if it has another start."""
        there = self.servers[self._numbers[server.location]]
        return there if server.start in ("", there.start.start) else None
