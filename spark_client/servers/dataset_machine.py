"""DatasetMachine: the life of each dataset of one driver, from the plan of its job to its release. It does no I/O.

Each method is an event: it changes all state, and returns the calls that the driver makes next, in order. What each
call ends with is the next event (:meth:`DatasetMachine.answered`, :meth:`~DatasetMachine.failed`). The states, and the
verbs that change them, stand in ``_AFTER``. ``server_table`` has those of servers.

Writing
    A job writes one or more datasets. First the machine looks which servers answer; then Spark runs the tasks, whose
    puts create the datasets wherever they write; then each server that an accepted attempt names seals exactly the
    accepted attempts that it has, with the list of all portions. So the portions together are the rows of each task
    once. One server is a list of one.

    What a server loses before all is sealed is written again: the job runs again, whole and under new generations, at
    most ``RERUNS`` times; then it fails with :class:`ServerLost`. A generation ends in the number of its run, so that a
    server knows the newer one: a put under it replaces the older one, and a put under the older one is refused. A
    job that reads what is lost fails at once, because what it reads must be written first. So does a job whose tasks
    were sent by a server to another one (:class:`InvalidRequest`): they would be again.

Losing
    A sealed dataset is LOST when one of its portions is gone, which no object in shared storage has. Only its holders
    can write it again (``may_run_again``): one to whom no row was handed out. A server that does not know a dataset any
    more, because its lease has ended, has lost that one. A loss changes no other job at once: each job finds what it
    has lost at its own next event, in the thread that runs it.

Holders
    A dataset is held by the run that writes it, and then by what reads it: DataFrames, a persisted pipeline, a reader,
    a broadcast. When the last one ends, it is released: each server that may have a part of it, and that is not lost,
    is asked to drop it. The end of the scope in which it was written releases it in any case, and so does the client's
    close. What no call drops ends with its lease, which is renewed for as long as the dataset is held.

    Tasks that start their servers may have written to one that no report has named yet. What a job that failed has left
    there is dropped by the tasks of the next job in that executor, and so is what a server there did not drop when it
    was asked: it would stay for ``UNSEEN_LEASE_SECONDS``. So would what the other attempt of a speculated task has
    committed: each such server that answers is asked to drop the dataset, whether it has a portion or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from flight_server.protocol import (
    Conflict,
    FlightShuffleError,
    InvalidRequest,
    NotFound,
    ServerLost,
    ServerPortion,
    Unavailable,
    is_object,
    transitions,
)
from spark_client.connection import AWAY, TimedOut, sent_elsewhere

from .driver_calls import (
    DriverCall,
    Drop,
    Fail,
    FindObject,
    Look,
    Patience,
    PlannedDataset,
    RemoveObjects,
    Renew,
    Report,
    RunJob,
    Seal,
    ServerCall,
)
from .partition_sizes import SealTotals, filled_bits, largest_sizes
from .server_table import Presence, ServerStart, ServerTable

RERUNS = 2
MAX_LEFT = 100
"""More released datasets that servers which tasks start may still have end with their leases."""
_AWAY = (*AWAY, TimedOut)
"""What the calls to a server end with that is gone for longer than they are made again."""


class HolderKind(StrEnum):
    """What holds a dataset."""

    RUN = "run"
    """Of the plan that writes it."""
    FRAME = "frame"
    """A DataFrame that reads it."""
    PERSISTED = "persisted"
    """A pipeline's node, for all plans that use it."""
    READER = "reader"
    """Of the driver."""
    BROADCAST = "broadcast"


@dataclass(frozen=True, eq=False)
class Holder:
    """One of them; equal to itself only."""

    kind: HolderKind


class Scope:
    """The datasets that are released together at its end."""

    def __init__(self) -> None:
        self.datasets: dict[str, None] = {}


def server_lost(server: ServerStart, dataset: str, run: int) -> ServerLost:
    """The error of a server that is gone with its data. Its ``detail`` names ``server``, ``start``, ``dataset`` and
    ``run``.
    """
    return ServerLost(
        f"the server {server.location} (start {server.start}) is gone, and with it data of {dataset}; this was run "
        f"{run} of the job that wrote it: run it again, or let the exchange offload it",
        server=server.location,
        start=server.start,
        dataset=dataset,
        run=run,
    )


@dataclass(slots=True)
class WrittenPortion:
    """What is accepted of a dataset on one server.

    Args:
        attempts: by producer.
        is_lost: its server has lost it.
        stored: the address of the object in shared storage that has it, too.
    """

    server: ServerStart
    locations: tuple[str, ...] = ()
    attempts: dict[int, str] = field(default_factory=dict)
    rows: int = 0
    size_bytes: int = 0
    is_lost: bool = False
    stored: str | None = None
    read_locations: tuple[str, ...] = ()
    """As its server says to the seal."""
    filled: bytes | None = None
    """See ``partition_sizes.filled_bits``."""

    @property
    def is_gone(self) -> bool:
        """Nothing has it any more."""
        return self.is_lost and self.stored is None

    def add(self, report: Report) -> None:
        self.locations = report.locations
        self.attempts[report.producer] = report.attempt
        self.rows += report.rows
        self.size_bytes += report.size_bytes


class HeldState(StrEnum):
    """See ``_AFTER``."""

    PLANNED = "planned"
    WRITING = "being written"
    SEALING = "being sealed"
    SEALED = "sealed"
    HANDED_OUT = "handed out"
    LOST = "lost"
    RELEASED = "released"


_AFTER = transitions(
    HeldState,
    """
    state       run      end      run_again  seal    hand_out    lose   release
    PLANNED     WRITING  error    error      error   error       error  RELEASED
    WRITING     error    SEALING  PLANNED    error   error       error  RELEASED
    SEALING     error    error    PLANNED    SEALED  error       error  RELEASED
    SEALED      error    error    error      error   HANDED_OUT  LOST   RELEASED
    HANDED_OUT  error    error    error      error   HANDED_OUT  LOST   RELEASED
    LOST        error    error    error      error   LOST        LOST   RELEASED
    """,
)
_SEALED = (HeldState.SEALED, HeldState.HANDED_OUT, HeldState.LOST)


@dataclass(slots=True)
class _Dataset:
    name: str
    plan: PlannedDataset
    state: HeldState = HeldState.PLANNED
    run: int = 0
    generation: str = ""
    locations: tuple[str, ...] = ()
    """Of the servers that may have a part of it; empty for all."""
    portions: dict[ServerStart, WrittenPortion] = field(default_factory=dict)
    totals: SealTotals | None = None
    losses: tuple[ServerLost, ...] = ()
    """After which its job ran again."""
    holders: dict[Holder, bool] = field(default_factory=dict)
    """Whether rows were handed out to each."""
    is_kept: bool = False
    """It has, or had, a holder other than the run that wrote it."""

    def step(self, verb: str) -> None:
        after = _AFTER.get((self.state, verb))
        if after is None:
            raise Conflict(f"dataset {self.name!r} is {self.state}: it cannot {verb.replace('_', ' ')}")
        self.state = after


@dataclass(slots=True)
class _Job:
    number: int
    datasets: tuple[str, ...]
    candidates: tuple[str, ...]
    reads: tuple[str, ...]
    token: str
    run: int = 0
    losses_before: int = 0
    """Of starts, when the present run began."""
    began_seconds: float = 0.0
    """When it did."""
    starts: dict[str, str | None] = field(default_factory=dict)
    """Those of the servers, by location, when it did."""
    looks: dict[str, None] = field(default_factory=dict)
    """The locations that were asked and have not answered."""
    seals: dict[tuple[str, ServerStart], None] = field(default_factory=dict)
    """Those without an answer."""
    has_insisted: bool = False
    """It needs a server, and asked all of them."""
    error: Exception | None = None
    """Of the last run."""
    unreached: Exception | None = None
    """Of the last server that did not answer."""
    losses: list[ServerLost] = field(default_factory=list)
    """After which it ran again."""


class DatasetMachine:
    """See the module's text. Not thread-safe: its caller holds a lock during each event. ``now_seconds`` are those of
    one monotonic clock.
    """

    def __init__(self, servers: ServerTable) -> None:
        self.servers = servers
        self._datasets: dict[str, _Dataset] = {}
        self._jobs: dict[int, _Job] = {}
        self._left: dict[tuple[str, str], None] = {}
        """The generations of released datasets that servers which tasks start may still have."""
        self._planned = 0
        self._is_closed = False

    # What the caller reads.

    @property
    def datasets(self) -> dict[str, str]:
        """The generation of each dataset that is not released."""
        return {name: each.generation for name, each in self._datasets.items()}

    def state(self, dataset: str) -> HeldState:
        known = self._datasets.get(dataset)
        return HeldState.RELEASED if known is None else known.state

    def generation(self, dataset: str) -> str:
        """Raises InvalidRequest, as those below: it was released meanwhile, as by a close in another thread."""
        return self._unreleased(dataset).generation

    def portions(self, dataset: str) -> list[WrittenPortion]:
        """Of a sealed dataset, in the order of their first producers."""
        return [*self._unreleased(dataset).portions.values()]

    def totals(self, dataset: str) -> SealTotals:
        totals = self._unreleased(dataset).totals
        assert totals is not None
        return totals

    def holds(self, dataset: str) -> set[HolderKind]:
        return {each.kind for each in self._holders(dataset)}

    def _holders(self, dataset: str) -> dict[Holder, bool]:
        known = self._datasets.get(dataset)
        return {} if known is None else known.holders

    def kept(self) -> set[str]:
        """The datasets that something other than a run holds."""
        return {name for name, each in self._datasets.items() if each.is_kept}

    def losses(self, dataset: str) -> tuple[ServerLost, ...]:
        """Of a sealed dataset those after which its job ran again."""
        return self._unreleased(dataset).losses

    def _unreleased(self, dataset: str) -> _Dataset:
        known = self._datasets.get(dataset)
        if known is None:
            raise InvalidRequest(f"{dataset} was released, as by the close of its ShuffleClient")
        return known

    # Writing.

    def plan(
        self,
        datasets: Mapping[str, PlannedDataset],
        token: str,
        holder: Holder,
        now_seconds: float,
        *,
        candidates: Iterable[str] = (),
        reads: Iterable[str] = (),
    ) -> list[DriverCall]:
        """A job is to write these datasets, which ``holder`` holds.

        Args:
            token: 14 hexadecimal digits, with which the generations begin; the last two are the run.
            candidates: the locations that tasks choose from; none if they start their servers.
            reads: the driver's datasets that the tasks read.

        Raises:
            InvalidRequest: the machine is closed.
            Conflict: a dataset of this name is there.
        """
        if self._is_closed:
            raise InvalidRequest("the ShuffleClient of this pipeline is closed; make a new one")
        if not self._datasets.keys().isdisjoint(datasets):
            raise Conflict(f"one of {sorted(datasets)} is written already")
        self._planned += 1
        job = _Job(self._planned, tuple(datasets), tuple(candidates), tuple(reads), token)
        self.servers.add(job.candidates)
        for name, plan in datasets.items():
            self._datasets[name] = _Dataset(name, plan, holders={holder: False})
        # Last: Ctrl-C in a line before leaves none that has no dataset, by which ``abandon`` finds it.
        self._jobs[job.number] = job
        return self._look(job, now_seconds)

    def _look(self, job: _Job, now_seconds: float, written: Sequence[ServerStart] = ()) -> list[DriverCall]:
        """Ask which servers live: those that hold what the tasks read, those where a failed run may have ``written``,
        and those that tasks may choose.
        """
        failed = job.error is not None
        sources = {
            portion.server.location: None
            for name in job.reads
            if name in self._datasets
            for portion in self._datasets[name].portions.values()
            if portion.stored is None and not portion.is_lost
        }
        needed = dict.fromkeys([*sources, *(each.location for each in written)])
        others = [
            each
            for each in job.candidates
            if each not in needed and not self.servers.is_quiet(each, now_seconds)
        ]
        looks = [Look(each, job.number, Patience.ANSWER) for each in needed]
        looks += [Look(each, job.number) for each in others]
        if not failed:
            looks = [each for each in looks if not self.servers.is_fresh(each.location, now_seconds)]
        return self._calls_of_looks(job, looks) or self._looked(job, now_seconds)

    @staticmethod
    def _calls_of_looks(job: _Job, looks: Sequence[Look]) -> list[DriverCall]:
        job.looks = {each.location: None for each in looks}
        return [*looks]

    def _looked(self, job: _Job, now_seconds: float) -> list[DriverCall]:
        """Each server that was asked has answered, or is lost or silent: run the job, or give it up."""
        for name in job.reads:
            source = self._datasets.get(name)
            if source is not None and source.state is HeldState.LOST:
                gone = next(each for each in source.portions.values() if each.is_gone)
                return self._give_up(job, job.error or server_lost(gone.server, name, source.run))
        if job.error is not None:
            lost = self.servers.lost_since(job.losses_before)
            if not lost:
                return self._give_up(job, job.error)
            job.losses.append(server_lost(lost[0], job.datasets[0], job.run))
            job.error = None
        if job.run > RERUNS:
            return self._give_up(job, job.losses[-1])
        locations = self.servers.answering(job.candidates)
        if job.candidates and not locations:
            if not job.has_insisted:
                job.has_insisted = True
                return self._calls_of_looks(
                    job, [Look(each, job.number, Patience.RESTART) for each in job.candidates]
                )
            return self._give_up(
                job, job.unreached or Unavailable("each server that answered was lost again")
            )
        return [self._run(job, locations, now_seconds)]

    def _run(self, job: _Job, locations: tuple[str, ...], now_seconds: float) -> RunJob:
        job.run += 1
        job.has_insisted, job.losses_before, job.began_seconds = False, self.servers.losses, now_seconds
        job.starts = {each: self.servers.start(each) for each in locations}
        generation = f"{job.token}{job.run:02x}"
        for name in job.datasets:
            dataset = self._datasets[name]
            dataset.step("run")
            dataset.run, dataset.generation, dataset.locations = job.run, generation, locations
        left = () if locations else tuple(self._left)
        return RunJob(job.number, job.run, dict.fromkeys(job.datasets, generation), locations, left)

    def ended(self, call: RunJob, reports: Iterable[Report], now_seconds: float) -> list[DriverCall]:
        """Spark's job is over; the reports of the attempts that it has accepted."""
        job = self._jobs[call.job]
        portions: dict[str, dict[ServerStart, WrittenPortion]] = {name: {} for name in job.datasets}
        starts: dict[str, ServerStart] = {}  # a server may have several locations
        producers: set[tuple[str, int]] = set()
        for report in reports:
            server = starts.setdefault(report.server.start, report.server)
            portions[report.dataset].setdefault(server, WrittenPortion(server)).add(report)
            if (report.dataset, report.producer) in producers:
                why = f"{report.dataset}: producer {report.producer} was reported twice; nothing is sealed"
                return [
                    *self._drops_of(portions, call.generations),
                    *self._give_up(job, FlightShuffleError(why)),
                ]
            producers.add((report.dataset, report.producer))
        if self._is_released(job):
            return [*self._drops_of(portions, call.generations), *self._give_up(job, _released_error(job))]
        # Tasks have reached them; a start that was lost meanwhile does not come back.
        for server in starts.values():
            if not self.servers.is_lost(server, job.losses_before):
                self._mark_lost(self.servers.learn(server, now_seconds, job.began_seconds))
        for name in job.datasets:
            dataset = self._datasets[name]
            dataset.step("end")
            dataset.portions = portions[name]
            dataset.totals = SealTotals(dataset.plan.partitions)
            for server, portion in dataset.portions.items():
                portion.is_lost = self.servers.is_lost(server, job.losses_before)
        if any(portion.is_lost for servers in portions.values() for portion in servers.values()):
            return self._sealed(job, now_seconds)
        seals = [seal for name in job.datasets for seal in self._seals(self._datasets[name])]
        job.seals = dict.fromkeys((seal.dataset, seal.server) for seal in seals)
        return [*seals] if seals else self._sealed(job, now_seconds)

    def run_failed(
        self, call: RunJob, error: Exception, now_seconds: float, *, is_final: bool = False
    ) -> list[DriverCall]:
        """Spark's job has failed. It runs again if a server that it needs is lost; not if ``is_final``."""
        job = self._jobs[call.job]
        if is_final or self._is_released(job):
            return self._give_up(job, error)
        job.error = error
        written = self._places(self._datasets[job.datasets[0]])
        drops = self._begin_again(job)
        return [*drops, *self._look(job, now_seconds, written)]

    def _run_again(
        self, job: _Job, lost: WrittenPortion, dataset: str, now_seconds: float
    ) -> list[DriverCall]:
        job.losses.append(server_lost(lost.server, dataset, job.run))
        drops = self._begin_again(job)
        return [*drops, *self._look(job, now_seconds)]

    def _begin_again(self, job: _Job) -> list[DriverCall]:
        drops: list[DriverCall] = []
        for name in job.datasets:
            dataset = self._datasets[name]
            drops += self._drops(dataset)
            dataset.step("run_again")
            dataset.portions, dataset.totals = {}, None
        job.seals.clear()
        return drops

    def _is_released(self, job: _Job) -> bool:
        return not self._datasets.keys() >= {*job.datasets}

    def _give_up(self, job: _Job, error: Exception) -> list[DriverCall]:
        del self._jobs[job.number]
        drops = [call for name in job.datasets for call in self.release(name)]
        return [*drops, Fail(job.number, error)]

    # Sealing.

    @staticmethod
    def _seals(dataset: _Dataset) -> Iterable[Seal]:
        largest = largest_sizes(dataset.plan.partitions, len(dataset.portions))
        servers = tuple(
            ServerPortion(each.server.start, each.locations, each.rows, each.size_bytes)
            for each in dataset.portions.values()
        )
        name, generation, offload = dataset.name, dataset.generation, dataset.plan.offload
        for server, portion in dataset.portions.items():
            yield Seal(server, name, generation, portion.attempts, servers, largest, offload)

    def _sealed(self, job: _Job, now_seconds: float) -> list[DriverCall]:
        """Each seal has ended."""
        if self._is_released(job):
            return self._give_up(job, _released_error(job))
        for name in job.datasets:
            for portion in self._datasets[name].portions.values():
                if portion.is_gone:
                    return self._run_again(job, portion, name, now_seconds)
        for name in job.datasets:
            dataset = self._datasets[name]
            dataset.step("seal")
            dataset.losses = tuple(job.losses)
        del self._jobs[job.number]
        return []

    # What a call ended with.

    def answered(
        self,
        call: ServerCall,
        answer: Mapping[str, Any],
        now_seconds: float,
        asked_seconds: float | None = None,
    ) -> list[DriverCall]:
        """The call was answered. Of a :class:`Look` the answer has the server's ``start``; of a :class:`Seal` its
        ``rows``, ``frames``, ``bytes``, ``partition_bytes`` and ``read_locations``, with ``rest_bytes`` if not all
        partitions are named.

        Args:
            asked_seconds: when the call was made; None for now.
        """
        match call:
            case Seal():
                self._mark_lost(self.servers.learn(call.server, now_seconds, asked_seconds))
                return self._seal_ended(call, answer, now_seconds)
            case Look() | Renew() | Drop():
                start = answer.get("start")
                self._mark_lost(self.servers.answered(call.location, start, now_seconds, asked_seconds))
        return self._look_ended(call, now_seconds) if isinstance(call, Look) else []

    def failed(
        self,
        call: ServerCall,
        error: Exception,
        now_seconds: float,
        asked_seconds: float | None = None,
        *,
        refused: bool = False,
    ) -> list[DriverCall]:
        """The call has failed, in all tries. ``refused``: the server refuses connections now."""
        self._mark_lost(self._lost_by(call, error, now_seconds, asked_seconds, refused=refused))
        match call:
            case Look():
                if (job := self._jobs.get(call.job)) is not None:
                    if not isinstance(error, _AWAY):
                        return self._give_up(job, error)  # such as a wrong token
                    job.unreached = error
                return self._look_ended(call, now_seconds)
            case Seal():
                return self._seal_failed(call, error, now_seconds)
            case Renew() if isinstance(error, NotFound):
                self._lose_portion(call, ServerStart(call.location, call.start))
            case Drop() if self.servers.presence(call.location) is not Presence.LOST:
                self._leave(call.dataset, call.generation)
            case FindObject():
                if (dataset := self._datasets.get(call.dataset)) is not None:
                    for portion in dataset.portions.values():
                        if portion.stored == call.address:
                            portion.stored = None
                    self._lose(dataset)
        return []

    def _lost_by(
        self,
        call: ServerCall,
        error: Exception,
        now_seconds: float,
        asked_seconds: float | None,
        *,
        refused: bool,
    ) -> list[ServerStart]:
        """The starts that are lost by the failure."""
        if not isinstance(call, Look | Seal | Renew | Drop):
            return []
        if refused:
            return self.servers.refused(call.location, now_seconds)
        if isinstance(call, Seal) and isinstance(error, ServerLost):
            return self.servers.restarted(call.server, now_seconds)
        if not isinstance(error, FlightShuffleError):
            return []
        if not isinstance(error, _AWAY):
            return self.servers.answered(call.location, None, now_seconds, asked_seconds)
        is_needed = isinstance(call, Seal) or (
            isinstance(call, Look | Renew) and call.patience is not Patience.BRIEF
        )
        if is_needed:
            return self.servers.unanswered(call.location, now_seconds, asked_seconds)
        self.servers.silent(call.location, now_seconds, asked_seconds)
        return []

    def _look_ended(self, call: Look, now_seconds: float) -> list[DriverCall]:
        job = self._jobs.get(call.job)
        if job is None or call.location not in job.looks:
            return []
        del job.looks[call.location]
        if job.looks:
            return []
        if self._is_released(job):
            return self._give_up(job, _released_error(job))
        return self._looked(job, now_seconds)

    def _seal_ended(
        self, call: Seal, answer: Mapping[str, Any] | None, now_seconds: float
    ) -> list[DriverCall]:
        job = self._job_of(call)
        if job is None:
            return []
        del job.seals[call.dataset, call.server]
        if answer is not None and (dataset := self._datasets.get(call.dataset)) is not None:
            portion = dataset.portions[call.server]
            portion.read_locations = tuple(answer["read_locations"])
            portion.stored = next(filter(is_object, portion.read_locations), None)
            portion.filled = filled_bits(answer)
            assert dataset.totals is not None
            dataset.totals.add(answer)
        return [] if job.seals else self._sealed(job, now_seconds)

    def _seal_failed(self, call: Seal, error: Exception, now_seconds: float) -> list[DriverCall]:
        job = self._job_of(call)
        if job is not None and (wrong := self._misdirected(job, call, error)) is not None:
            return self._give_up(job, wrong)
        if isinstance(error, (NotFound, *_AWAY)):
            self._lose_portion(call, call.server)
        elif job is not None:
            return self._give_up(job, error)
        return self._seal_ended(call, None, now_seconds)

    def _misdirected(self, job: _Job, call: Seal, error: Exception) -> InvalidRequest | None:
        """The error if the server has had one start since before the run, and tasks wrote to another: then they were at
        another server.
        """
        start = job.starts.get(call.location)
        if not isinstance(error, NotFound) or start in (None, call.server.start):
            return None
        if error.detail.get("server_start") != start:
            return None
        locations = self._datasets[call.dataset].portions[call.server].locations
        return sent_elsewhere(call.location, ", ".join(locations))

    def _job_of(self, call: Seal) -> _Job | None:
        """The job that waits for this seal."""
        dataset = self._datasets.get(call.dataset)
        current = None if dataset is None else dataset.generation
        jobs = (each for each in self._jobs.values() if (call.dataset, call.server) in each.seals)
        return next(jobs, None) if current in (None, call.generation) else None

    # Losing.

    def _mark_lost(self, servers: Iterable[ServerStart]) -> None:
        for server in servers:
            for dataset in self._datasets.values():
                if (portion := dataset.portions.get(server)) is not None:
                    portion.is_lost = True
                    self._lose(dataset)

    def _lose_portion(self, call: Seal | Renew, server: ServerStart) -> None:
        """The server has lost this generation."""
        dataset = self._datasets.get(call.dataset)
        if dataset is None or dataset.generation != call.generation or server not in dataset.portions:
            return
        dataset.portions[server].is_lost = True
        self._lose(dataset)

    @staticmethod
    def _lose(dataset: _Dataset) -> None:
        if dataset.state in _SEALED and any(each.is_gone for each in dataset.portions.values()):
            dataset.step("lose")

    def check(self, datasets: Iterable[str]) -> list[DriverCall]:
        """Someone needs these datasets: ask each server that holds a part whether it does, up to the deadline of a job;
        and look for the objects of those that are lost.
        """
        calls: list[DriverCall] = []
        for name in dict.fromkeys(datasets):
            dataset = self._datasets.get(name)
            if dataset is None or dataset.state not in _SEALED:
                continue
            for server, portion in dataset.portions.items():
                if not portion.is_lost:
                    calls.append(
                        Renew(server.location, name, dataset.generation, server.start, Patience.ANSWER)
                    )
                elif portion.stored is not None:
                    calls.append(FindObject(portion.stored, name, dataset.generation, server.start))
        return calls

    # Holding and releasing.

    def renew(self) -> list[DriverCall]:
        """The leases to renew now. A silent server is asked, too, or the lease would end of what it has when it answers
        again; so is one that is lost with what an object has, because it deletes that with its dataset.
        """
        calls: list[DriverCall] = []
        for dataset in self._datasets.values():
            places = self._places(dataset)
            places += [each.server for each in dataset.portions.values() if each.is_lost and not each.is_gone]
            calls += [Renew(each.location, dataset.name, dataset.generation, each.start) for each in places]
        return calls

    def hold(self, dataset: str, holder: Holder, scope: Scope | None = None) -> None:
        """The holder needs the dataset from now on. One that is released stays so: the holder's reads say why.

        Args:
            scope: the innermost that is open: the dataset is its own, if only the run that wrote it held it before.
        """
        known = self._datasets.get(dataset)
        if known is None:
            return
        known.holders.setdefault(holder, False)
        if holder.kind is not HolderKind.RUN and not known.is_kept:
            known.is_kept = True
            if scope is not None:
                scope.datasets[dataset] = None

    def hand_out(self, dataset: str, holder: Holder) -> None:
        """Rows were handed out to the holder, which cannot be taken back. Twice is fine."""
        known = self._datasets.get(dataset)
        if known is not None:
            known.step("hand_out")
            if holder in known.holders:
                known.holders[holder] = True

    def may_run_again(self, dataset: str, holder: Holder) -> bool:
        """Whether the dataset is lost, and the holder has got no row of it, so that another run may take its place."""
        known = self._datasets.get(dataset)
        return known is not None and known.state is HeldState.LOST and known.holders.get(holder) is False

    def end_hold(self, holder: Holder, datasets: Iterable[str] | None = None) -> list[DriverCall]:
        """The holder needs these datasets, or any, no more; those that nothing else holds are released. Twice is
        fine.
        """
        calls: list[DriverCall] = []
        for name in [*(self._datasets if datasets is None else datasets)]:
            known = self._datasets.get(name)
            if known is not None and known.holders.pop(holder, None) is not None and not known.holders:
                calls += self.release(name)
        return calls

    def end_frames(self, datasets: Iterable[str]) -> list[DriverCall]:
        """The DataFrames that read these datasets are released: each dataset is, unless a persisted pipeline holds
        it.
        """
        calls: list[DriverCall] = []
        for name in datasets:
            if HolderKind.PERSISTED not in self.holds(name):
                calls += self.release(name)
                continue
            holders = self._datasets[name].holders
            for frame in [each for each in holders if each.kind is HolderKind.FRAME]:
                del holders[frame]
        return calls

    def end_scope(self, scope: Scope) -> list[DriverCall]:
        """Release its datasets. Twice is fine."""
        return [call for name in scope.datasets for call in self.release(name)]

    def abandon(self, datasets: Iterable[str], holder: Holder) -> list[DriverCall]:
        """The driver gives up the job that writes these for the holder, as at Ctrl-C, and makes no more of its calls.
        What another job has under one of these names stays.
        """
        names = [each for each in datasets if holder in self._holders(each)]
        for number in [
            number for number, each in self._jobs.items() if not set(names).isdisjoint(each.datasets)
        ]:
            del self._jobs[number]
        return [call for name in names for call in self.release(name)]

    def release(self, dataset: str) -> list[DriverCall]:
        """Drop the dataset, also if something holds it. Twice is fine."""
        known = self._datasets.pop(dataset, None)
        if known is None:
            return []
        calls = self._drops(known)
        known.step("release")
        return calls

    def close(self) -> list[DriverCall]:
        """Release all; no job is planned from now on. Twice is fine."""
        self._is_closed = True
        return [call for name in [*self._datasets] for call in self.release(name)]

    def _places(self, dataset: _Dataset) -> list[ServerStart]:
        """The servers that may have a part of it, and are not lost; without a start while it is written."""
        if dataset.state is HeldState.PLANNED:
            return []
        if dataset.state is HeldState.WRITING:
            locations: Iterable[str] = dataset.locations or self.servers.locations
            living = [each for each in locations if self.servers.presence(each) is not Presence.LOST]
            return [ServerStart(each, "") for each in living]
        return [each for each, portion in dataset.portions.items() if not portion.is_lost]

    def _drops(self, dataset: _Dataset) -> list[DriverCall]:
        name, generation, prefix = dataset.name, dataset.generation, dataset.plan.offload
        if dataset.state is HeldState.WRITING and not dataset.locations:
            self._leave(name, generation)
        # Also at a server that has answered since its portion was lost by a deadline.
        places = [each.location for each in (*self._places(dataset), *dataset.portions)]
        if dataset.state is not HeldState.PLANNED and not dataset.locations:
            # A task's other attempt may have committed, too, in an executor that has no accepted one.
            places += self.servers.answering(self.servers.locations)
        locations = dict.fromkeys(each for each in places if self.servers.presence(each) is not Presence.LOST)
        calls: list[DriverCall] = [Drop(location, name, generation) for location in locations]
        if prefix is not None and dataset.state is not HeldState.PLANNED:
            calls.append(RemoveObjects(prefix, name, generation))
        return calls

    def _leave(self, dataset: str, generation: str) -> None:
        self._left[dataset, generation] = None
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]

    @staticmethod
    def _drops_of(
        portions: Mapping[str, Mapping[ServerStart, WrittenPortion]], generations: Mapping[str, str]
    ) -> list[DriverCall]:
        """What tasks have written of datasets that were released meanwhile."""
        return [
            Drop(server.location, name, generations[name])
            for name, servers in portions.items()
            for server in servers
        ]


def _released_error(job: _Job) -> InvalidRequest:
    return InvalidRequest(
        f"{', '.join(job.datasets)}: it was released while its job ran, as by the close of its ShuffleClient"
    )
