"""A cluster without I/O: servers, the network between them and a driver, Spark's tasks, and faults.

The driver is ``servers.DriverLoop`` itself, with the state machine that decides for it: its threads, clock and queues
are those of ``simulated_threads``, and its calls go to ``simulated_server``. Each task, call and fault is a chain of a
:class:`~tests.support.chains.Schedule`, so one seed is one run. What the driver's threads do stands in
``simulated_driver``.

A server is killed, and perhaps started again; or stopped for a while, after which it does what it was asked for; or the
driver does not reach it for a while. An answer may come late, or never, though the server has done what it was asked
for. The driver's process may end at any call: then it makes no further one.

Observed at each event
    No start is lost that lives, unless a call that a job needed was not answered; no portion, unless its server has
    lost it. Nothing is renewed that was released. No lease ends of a dataset that is held, unless its server did not
    answer lately. No job runs more often than it may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from flight_server.protocol import FlightShuffleError, NotFound
from spark_client.connection import TimedOut, Unreachable
from spark_client.servers import RERUNS, DriverLoop, Report, RunJob, ServerStart, driver_loop, owner_of, place
from spark_client.servers.dataset_machine import DatasetMachine, HeldState
from spark_client.servers.driver_calls import Drop, Renew
from spark_client.servers.driver_loop import End
from spark_client.servers.server_table import ServerTable

from .chains import Chain, Gate, Schedule
from .simulated_server import HeldDataset, Rows, SimulatedServer, Storage
from .simulated_threads import Killed, SimulatedThreads

TASK_TRIES = 4
CALL_SECONDS = 20.0
"""The deadline of a call that a job needs."""
SEAL_SECONDS = 40.0
UNSEEN_LEASES = 20
"""Of a server that a task has started, and the driver does not know: its datasets' leases are so much longer."""
DRIVERS = "grpc://driver:1"
PREFIX = "s3://bucket/offloaded"
EVENTS = (
    *("plan", "ended", "run_failed", "answered", "failed", "check", "renew", "hold", "hand_out"),
    *("may_run_again", "end_hold", "end_frames", "end_scope", "abandon", "release", "close"),
)
"""The verbs of ``DatasetMachine``."""


_Call = tuple[str, str, bytes, float]
"""Its location, name, body and deadline."""


class Source(NamedTuple):
    """A sealed dataset, as what reads it knows it: its portions, each with the object that has it, too."""

    dataset: str
    generation: str
    portions: tuple[tuple[ServerStart, str | None], ...]


@dataclass
class RunningJob:
    """What Spark has accepted so far, by dataset and producer."""

    call: RunJob
    datasets: tuple[str, ...]
    reads: Sequence[Source]
    alone: bool
    over: Gate
    accepted: dict[tuple[str, int], Report] = field(default_factory=dict)
    error: Exception | None = None
    is_cancelled: bool = False


class SimulatedCluster:
    """See the module's text. After :meth:`run`, ``machine``, ``servers`` and the rest can be looked at.

    Args:
        kills: how many servers are killed, or started again, at any step.
        stops: how many are stopped for a while.
        cuts: how many the driver does not reach for a while.
        mute: the share of the driver's calls that are done and never answered.
        late: the share of those that arrive late, or whose answers do.
        learnt: tasks start the servers.
        fault_at: the step of the first fault; None for any.
        kill_driver_at: its call before which the driver's process ends.
    """

    def __init__(
        self,
        seed: int,
        *,
        servers: int = 4,
        tasks: int = 4,
        partitions: int = 3,
        kills: int = 0,
        stops: int = 0,
        cuts: int = 0,
        mute: float = 0.0,
        late: float = 0.0,
        learnt: bool = False,
        lease_seconds: float = 30.0,
        fault_at: int | None = None,
        kill_driver_at: int | None = None,
        changes: int = 5,
    ) -> None:
        self.random = Random(seed)
        self.schedule = Schedule(self.random, changes, steps=1500)
        self.threads = SimulatedThreads(self.schedule)
        self.storage = Storage()
        self.tasks, self.partitions, self.lease_seconds, self.learnt = (
            tasks,
            partitions,
            lease_seconds,
            learnt,
        )
        self.servers: dict[str, SimulatedServer] = {}
        """The last start at each location."""
        self.all_servers: list[SimulatedServer] = []
        # Of the servers that are given.
        self.locations = () if learnt else tuple(f"grpc://host{number}:1" for number in range(servers))
        self.executors: list[str | None] = [None] * servers
        """The location of the server that a task on the executor has started."""
        self._starts = count()
        for location in self.locations or (DRIVERS,):
            self._start(location)
        self.servers_known = SimulatedServerList(self)
        self.calls = Counter[str]()
        """How often the driver has called each verb of its machine."""
        self.accepted: dict[tuple[str, str], dict[int, str]] = {}
        """By dataset and generation, the attempt of each producer that Spark has accepted; of jobs that ended well."""
        self.faults = 0
        self.undropped: set[tuple[str, str, str]] = set()
        """The drops that failed, by dataset, generation and location."""
        self.loop: DriverLoop
        self.machine: DatasetMachine
        self._unreached: dict[str, list[tuple[float, float]]] = {}
        """When the driver's calls to a location were not answered."""
        self._unanswered: dict[str, float] = {}
        """When the last call that a job needed was not."""
        self._host_is_gone: set[str] = set()
        self._cut: Counter[str] = Counter()
        self._attempts = count(1)
        self._ports = count(1)
        self.network_calls = 0
        self._kill_driver_at = kill_driver_at
        self._violation: Exception | None = None
        self._losses_seen = 0
        self._failures = 0
        """Calls that a job needed and a living server did not answer, and leases that have ended."""
        self._mute, self._late = mute, late
        self.loses_answers = mute > 0 or late > 0
        for number in range(kills):
            self.schedule.interrupt(self._killing(), None if number else fault_at)
        for _ in range(stops):
            self.schedule.interrupt(self._stopping())
        for _ in range(cuts):
            self.schedule.interrupt(self._cutting())

    def run(self, program: Callable[[], None]) -> None:
        """The program, in a thread of the driver, until nothing more happens."""
        names: dict[str, Any] = {
            **self.threads.names,
            "secrets": SimpleNamespace(token_hex=lambda size: self.random.randbytes(size).hex()),
            "refuses": lambda locations: all(map(self._refuses, locations)),
            "store_of": self.storage.store_of,
            "DatasetMachine": lambda table: observed(table, self),
        }
        with mock.patch.multiple(driver_loop, **names):
            self.loop = SimulatedLoop(self)
            with self.loop.machine() as self.machine:
                pass
            main = self.threads.begin(lambda: self._main(program), "main")
            try:
                self.schedule.run()
                assert self.threads.is_killed or not main.is_alive(), "it waits for ever"
            finally:
                self.threads.close()
            if self._violation is not None:
                raise self._violation
            if main.error is not None:
                raise main.error

    def _main(self, program: Callable[[], None]) -> None:
        try:
            program()
        except BaseException:
            self.kill_driver()  # or its other threads would go on for ever
            raise

    @property
    def is_driver_alive(self) -> bool:
        return not self.threads.is_killed

    def kill_driver(self) -> None:
        self.threads.kill()

    # Servers.

    def _start(self, location: str) -> SimulatedServer:
        start = ServerStart(location, f"start{next(self._starts)}")
        server = SimulatedServer(start, self.schedule, self.storage, self.lease_seconds, self._lease_ended)
        self.servers[location] = server
        self.all_servers.append(server)
        return server

    def _refuses(self, location: str) -> bool:
        server = self.servers.get(location)
        is_reached = location not in self._host_is_gone and not self._cut[location]
        return is_reached and (server is None or not server.is_alive)

    def process_of(self, server: ServerStart) -> SimulatedServer | None:
        """The process, if this very start lives."""
        process = self.servers.get(server.location)
        return process if process is not None and process.start == server and process.is_alive else None

    # The driver's network.

    def action(
        self, location: str, name: str, body: bytes, seconds: float | None, *, once: bool
    ) -> dict[str, Any]:
        """Called in a thread of the driver."""
        self.threads.check()
        self.network_calls += 1
        if self.network_calls == self._kill_driver_at:
            self.kill_driver()
            raise Killed
        is_needed = name == "seal" or seconds is None
        until = self.schedule.now_seconds + (CALL_SECONDS if seconds is None else seconds)
        while True:
            began = self.schedule.now_seconds
            try:
                return self._asked(location, name, body, until - began)
            except (Unreachable, TimedOut):
                now = self.schedule.now_seconds
                self._unreached.setdefault(location, []).append((began, now))
                if once or now + 1.0 > until:
                    if is_needed:
                        self._failures += self._refuses(location) is False
                        self._unanswered[location] = now
                    raise
            self.threads.wait_seconds(1.0)

    def _asked(self, location: str, name: str, body: bytes, seconds: float) -> dict[str, Any]:
        ended, answers = self.schedule.gate(), list[dict[str, Any] | FlightShuffleError]()
        assert self.threads.current is not None
        delivery = self._delivery((location, name, body, seconds), ended, answers)
        self.schedule.begin(delivery, self.threads.current.priority)
        self.schedule.after(seconds, ended.open)
        self.threads.wait(ended)
        if not answers:
            raise TimedOut("no answer")
        if isinstance(answers[0], FlightShuffleError):
            raise answers[0]
        return answers[0]

    def _delivery(self, call: _Call, ended: Gate, answers: list[Any]) -> Chain:
        location, name, body, seconds = call
        yield f"{name} to {location}: {body.decode()}"
        if self._cut[location]:
            return
        if self.random.random() < self._late:
            yield self.schedule.pause(self.random.uniform(0.0, 1.5 * seconds))
        server = self.servers.get(location)
        answer: dict[str, Any] | FlightShuffleError
        while server is not None and server.stopped is not None and server.is_alive:
            yield server.stopped
        if server is None or not server.is_alive:
            if location in self._host_is_gone:
                return
            answer = Unreachable("connection refused")
        else:
            try:
                answer = server.answer(name, body)
            except FlightShuffleError as error:
                answer = error
            if self.random.random() < self._mute:
                return
        yield f"{location} answers {name}: {answer}"
        if self.random.random() < self._late:
            yield self.schedule.pause(self.random.uniform(0.0, seconds))
        if not self._cut[location]:
            answers.append(answer)
            ended.open()

    # Spark.

    def run_job(
        self, call: RunJob, datasets: tuple[str, ...], reads: Sequence[Source] = (), *, alone: bool = False
    ) -> list[Report]:
        """Called in a thread of the driver. Raises the error of a task."""
        job = RunningJob(call, datasets, reads, alone, self.schedule.gate())
        for dataset in datasets:
            for producer in range(self.tasks):
                for _ in range(1 + (self.random.random() < 0.1)):  # speculation
                    self.schedule.begin(self._task(job, dataset, producer))
        try:
            self.threads.wait(job.over)
        finally:
            job.is_cancelled = True
        if job.error is not None:
            raise job.error
        for dataset in datasets:
            self.accepted[dataset, call.generations[dataset]] = {
                producer: report.attempt
                for (name, producer), report in job.accepted.items()
                if name == dataset
            }
        return [*job.accepted.values()]

    def rows(self, producer: int) -> dict[int, int]:
        """What the task puts, by partition."""
        return dict.fromkeys(range(producer % 2, self.partitions, 2), 1 + producer)

    def _task(self, job: RunningJob, dataset: str, producer: int) -> Chain:
        error: FlightShuffleError = Unreachable("no server")
        for tries in range(TASK_TRIES):
            if job.is_cancelled and self.random.random() < 0.5:
                return  # the others are zombies
            attempt = str(next(self._attempts))
            yield f"{dataset} {producer} attempt {attempt}"
            try:
                for source in job.reads:
                    yield from self._read(source, Counter(), producer % self.partitions)
                server = yield from self._target(job, dataset, producer, tries)
                yield from self._reached(server)
                size = sum(self.rows(producer).values())
                report = Report(dataset, producer, attempt, server.start, server.locations, size, size)
                least = UNSEEN_LEASES * self.lease_seconds if self.learnt and not job.alone else 0.0
                server.put(report, job.call.generations[dataset], self.rows(producer), least)
            except FlightShuffleError as failure:
                error = failure
                continue
            yield f"{dataset} {producer} attempt {attempt} is committed at {server.start.location}"
            if self.random.random() < 0.05 and tries < TASK_TRIES - 1:
                continue  # it dies before its report
            job.accepted.setdefault((dataset, producer), report)  # Spark never accepts two
            if len(job.accepted) == self.tasks * len(job.datasets):
                yield "the job ends"
                job.over.open()
            return
        if (dataset, producer) not in job.accepted:
            job.error = job.error or error
            job.over.open()

    def _target(self, job: RunningJob, dataset: str, producer: int, tries: int) -> Any:
        if job.alone:
            return self.servers[owner_of(dataset, job.call.locations)]
        if not self.learnt:
            host = f"host{producer}" if self.random.random() < 0.7 else None
            return self.servers[place(dataset, producer, job.call.locations, host=host, tries=tries)]
        executor = (producer + tries) % len(self.executors)
        location = self.executors[executor]
        if location is None or not self.servers[location].is_alive:
            yield f"executor {executor} starts a server"
            location = self.executors[executor] = f"grpc://host{executor}:{next(self._ports)}"
            return self._start(location)
        return self.servers[location]

    def _reached(self, server: SimulatedServer) -> Chain:
        """Raises Unreachable."""
        for _ in range(3):
            if server.is_alive and server.stopped is None:
                return
            yield self.schedule.pause(1.0)
        raise Unreachable("a task does not reach the server")

    def _read(
        self, source: Source, rows: Counter[tuple[int, str, int]], partition: int | None = None
    ) -> Chain:
        """Add the rows by producer, attempt and partition; of one partition, or of all. They must be those of the
        accepted attempts, each once. Raises NotFound, Unreachable.
        """
        for server, stored in source.portions:
            yield f"read {source.dataset} of {server.location}"
            if stored in self.storage.objects:
                portion: Rows = self.storage.objects[stored]
            else:
                process = self.servers[server.location]
                yield from self._reached(process)
                portion = process.read(source.dataset, source.generation, server.start)
            for attempt, sizes in portion.items():
                rows.update({(*attempt, number): size for number, size in sizes.items()})
        if partition is not None:
            for each in [each for each in rows if each[2] != partition]:
                del rows[each]
        accepted = self.accepted[source.dataset, source.generation]
        assert accepted.keys() == {*range(self.tasks)}
        assert rows == {
            (producer, attempt, number): size
            for producer, attempt in accepted.items()
            for number, size in self.rows(producer).items()
            if partition in (None, number)
        }

    def read(self, source: Source) -> Counter[tuple[int, str, int]]:
        """All rows of the dataset, for a thread of the driver. Raises NotFound, Unreachable."""
        rows = Counter[tuple[int, str, int]]()
        reading = self._read(source, rows)
        for event in reading:
            if isinstance(event, Gate):
                self.threads.wait(event)
            else:
                self.threads.step(event)
        return rows

    def source(self, dataset: str) -> Source:
        with self.loop.machine() as machine:
            portions = tuple((each.server, each.stored) for each in machine.portions(dataset))
            totals, generation = machine.totals(dataset), machine.generation(dataset)
        sizes = Counter[int]()
        for producer in range(self.tasks):
            sizes.update(self.rows(producer))
        assert (totals.rows, totals.frames) == (sizes.total(), self.tasks)
        assert totals.sizes().tolist() == [sizes[each] for each in range(self.partitions)]
        return Source(dataset, generation, portions)

    # Faults.

    def _killing(self) -> Chain:
        location = self.random.choice([each for each in self.servers if each != DRIVERS] or [DRIVERS])
        if location == DRIVERS:
            return
        self.faults += 1
        self.servers[location].kill()
        is_host_gone = self.random.random() < 0.2
        if is_host_gone:
            self._host_is_gone.add(location)
        yield f"{location} is killed{', with its host' if is_host_gone else ''}"
        if not self.learnt and self.random.random() < 0.7:
            yield self.schedule.pause(self.random.choice([0.0, 1.0, 30.0]))
            self._host_is_gone.discard(location)
            if not self.servers[location].is_alive:
                self._start(location)
                yield f"{location} is started again"

    def _stopping(self) -> Chain:
        server = self.random.choice([*self.servers.values()])
        if server.stopped is not None or not server.is_alive:
            return
        self.faults += 1
        began = self.schedule.now_seconds
        server.stopped = self.schedule.gate()
        yield f"{server.start.location} is stopped"
        yield self.schedule.pause(self.random.choice([0.5, 5.0, 15.0, 60.0]))
        stopped, server.stopped = server.stopped, None
        stopped.open()
        self._unreached.setdefault(server.start.location, []).append((began, self.schedule.now_seconds))
        yield f"{server.start.location} goes on"

    def _cutting(self) -> Chain:
        location = self.random.choice([*self.servers])
        self.faults += 1
        began = self.schedule.now_seconds
        self._cut[location] += 1
        yield f"the driver does not reach {location}"
        yield self.schedule.pause(self.random.choice([0.5, 5.0, 15.0, 60.0]))
        self._cut[location] -= 1
        self._unreached.setdefault(location, []).append((began, self.schedule.now_seconds))
        yield f"the driver reaches {location}"

    # What must hold at any time.

    @contextmanager
    def noted(self) -> Iterator[None]:
        """The first failure of the test, or of the machine, ends the driver, whose own code would go on, and is raised
        at the end.
        """
        try:
            yield
        except FlightShuffleError:
            raise
        except Exception as error:
            self._violation = self._violation or error
            self.kill_driver()
            raise Killed from error

    def _lease_ended(self, server: SimulatedServer, dataset: str, held: HeldDataset) -> None:
        if not self.is_driver_alive or self.machine.datasets.get(dataset) != held.generation:
            return
        self._failures += 1
        state, now = self.machine.state(dataset), self.schedule.now_seconds
        if state in (HeldState.SEALED, HeldState.HANDED_OUT):
            portion = next(
                (each for each in self.machine.portions(dataset) if each.server == server.start), None
            )
            if portion is None or (portion.is_lost and portion.stored is None):
                return
        elif state is not HeldState.WRITING or self.learnt:
            return
        location = server.start.location
        recently = now - self.lease_seconds / 3 - 1.5
        is_unreached = server.stopped is not None or self._cut[location] > 0
        is_unreached |= any(end >= recently for _, end in self._unreached.get(location, ()))
        with suppress(Killed), self.noted():
            assert is_unreached, f"the lease of {dataset} has ended on {location}, which answers"

    def observe(self, machine: DatasetMachine, verb: str, calls: object) -> None:
        """After each event of the driver."""
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Renew):
                assert machine.datasets.get(call.dataset) == call.generation, f"{verb}: {call}"
            elif isinstance(call, RunJob):
                assert call.run <= 1 + RERUNS
                assert call.run <= 1 + self.faults + self._failures, "one loss costs one rerun"
        for server in machine.servers.lost_since(self._losses_seen):
            assert self.process_of(server) is None or self._was_unanswered(server), f"{verb}: {server} lives"
        self._losses_seen = machine.servers.losses
        for dataset, generation in machine.datasets.items():
            if machine.state(dataset) is HeldState.LOST:
                gone = [each for each in machine.portions(dataset) if each.is_gone]
                assert all(self._has_lost(each.server, dataset, generation) for each in gone), (
                    f"{verb}: {gone}"
                )

    def _was_unanswered(self, server: ServerStart) -> bool:
        return (
            self.schedule.now_seconds - self._unanswered.get(server.location, float("-inf"))
            < 2 * SEAL_SECONDS
        )

    def _has_lost(self, server: ServerStart, dataset: str, generation: str) -> bool:
        process = self.process_of(server)
        held = None if process is None else process.datasets.get(dataset)
        return held is None or held.generation != generation or self.machine.servers.is_lost(server)

    def left(self, server: SimulatedServer) -> list[str]:
        """What a living server still has of what Spark has accepted, and the driver has not failed to drop."""
        lost = self.machine.servers.is_lost(server.start)
        return [
            name
            for name, held in server.datasets.items()
            if server.is_alive
            and not lost
            and self.accepted.get((name, held.generation), {}).items() & held.committed.keys()
            and (name, held.generation, server.start.location) not in self.undropped
        ]


class SimulatedServerList:
    """What ``DriverLoop`` takes of a ``ServerList``, and of the servers in it."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.table = ServerTable(cluster.locations)

    def at(self, location: str) -> Any:
        def action(name: str, body: bytes, seconds: float | None = None, *, once: bool = False) -> Any:
            return self._cluster.action(location, name, body, seconds, once=once)

        return SimpleNamespace(action=action, timeouts=SimpleNamespace(stream_seconds=SEAL_SECONDS))


class SimulatedLoop(DriverLoop):
    """Notes which drops have failed."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        servers: Any = cluster.servers_known
        super().__init__(servers, cluster.lease_seconds)
        self._cluster = cluster

    def _made(self, calls: Any, later: Any) -> list[End]:
        for call in calls:
            if isinstance(call, Drop):
                self._cluster.undropped.add((call.dataset, call.generation, call.location))
        ends = super()._made(calls, later)
        for call, _, _, error, _ in ends:
            if isinstance(call, Drop) and (error is None or isinstance(error, NotFound)):
                self._cluster.undropped.discard((call.dataset, call.generation, call.location))
        return ends


def observed(table: ServerTable, cluster: SimulatedCluster) -> DatasetMachine:
    """A machine whose events the cluster counts and observes."""
    depth = 0

    def observing(verb: str) -> Callable[..., Any]:
        event = getattr(DatasetMachine, verb)

        def call(machine: DatasetMachine, *args: Any, **how: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                with cluster.noted():
                    calls = event(machine, *args, **how)
            finally:
                depth -= 1
            if not depth:
                cluster.calls[verb] += 1
                with cluster.noted():
                    cluster.observe(machine, verb, calls)
            return calls

        return call

    kind = type("ObservedMachine", (DatasetMachine,), {verb: observing(verb) for verb in EVENTS})
    machine: DatasetMachine = kind(table)
    return machine
