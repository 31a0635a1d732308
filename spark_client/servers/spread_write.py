"""SpreadWrite: the driver's state machine for the datasets of one job, over one server or many. It does no I/O.

Each method is an event: it changes all state and returns the calls that the driver makes next, in order. The states,
and the verbs that change them, stand in ``_AFTER``.

Guarantee: a dataset is SEALED when every server that an accepted attempt names has sealed exactly the accepted attempts
that it has, so that the portions together are the rows of each task once. The job runs again, whole and under new
generations, when a server is lost with a portion that no object in shared storage has, too: at most ``reruns`` times,
then, and once the rows were handed out, the write fails with :class:`ServerLost`. Each server that a report names, and
that lives, is asked to drop each generation that is not needed any more. What no report names ends with its lease.

Losing
    A server is lost if it cannot be reached, or answers under another start. Its calls are not made any more. A server
    that does not know a dataset any more, because its lease has ended, has lost it, and still gets the drops of others.
    A report of a later run names only servers that lived then. So it counts, even from a server that an earlier run has
    lost, as when the network of one reader failed.

Late answers
    Answers to calls of an earlier generation change nothing. A report of an earlier generation, by a task that a cancel
    has not reached, is answered by a drop. A generation that the driver draws ends in the number of the run, so that a
    server knows the newer one: a put under it replaces the older one, and a put under the older one is refused.

Memory
    For each task its report, until the job has ended; for each portion the accepted attempts; for each partition 8
    bytes.

Sizes
    Where servers times partitions are more than ``EXACT_SIZES``, each server names its ``LARGEST_SIZES`` largest
    partitions and gives the sum of the others, which is spread evenly: large partitions are known, small ones on
    average, and the total is exact. Spark's map outputs do the same: exact sizes of huge blocks, and the average of the
    others (``HighlyCompressedMapStatus`` in its ``core/src/main/scala/org/apache/spark/scheduler/MapStatus.scala``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from flight_server.protocol import Conflict, FlightShuffleError, NotFound, ServerLost, is_object, transitions
from spark_client.connection import AWAY, TimedOut

EXACT_SIZES = 10_000_000
"""Sizes that the driver takes from the servers' answers for one dataset: about 150 MB of JSON, one after the other."""
LARGEST_SIZES = 1_000
RERUNS = 2
_GONE = (*AWAY, TimedOut)
"""What the calls to a server end with that is gone for longer than they are made again."""


class PartitionSizes:
    """The stored bytes of each partition, over all servers so far. Holds 8 bytes for each partition."""

    def __init__(self, partitions: int) -> None:
        self._bytes = np.zeros(partitions, np.int64)
        self._rest_bytes = 0

    @staticmethod
    def largest(partitions: int, answers: int) -> int | None:
        """How many sizes each of the answers names; None: all."""
        return None if partitions * answers <= EXACT_SIZES else LARGEST_SIZES

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add a server's answer to the seal: ``partition_bytes``, by the partitions' numbers as text, and
        ``rest_bytes``, of all partitions that it does not name.
        """
        sizes = answer["partition_bytes"]
        at = np.fromiter(map(int, sizes), np.int64, len(sizes))
        self._bytes[at] += np.fromiter(sizes.values(), np.int64, len(sizes))
        self._rest_bytes += answer.get("rest_bytes", 0)

    def sizes(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """For each partition. Where a server named only its largest ones, an empty partition may have a size, too."""
        if not self._rest_bytes or not len(self._bytes):
            return self._bytes
        each, left = divmod(self._rest_bytes, len(self._bytes))
        found = self._bytes + each
        found[:left] += 1
        return found


class ServerStart(NamedTuple):
    """One start of a server: a process that was started again at the same location is another one."""

    location: str
    start: str = ""


class Report(NamedTuple):
    """A task's: this server has committed its attempt."""

    dataset: str
    generation: str
    producer: int
    attempt: str
    server: ServerStart


@dataclass(frozen=True, slots=True)
class Create:
    """Create the dataset, and hand its generation to ``SpreadWrite.created``."""

    server: ServerStart
    dataset: str
    run: int


@dataclass(frozen=True, slots=True)
class RunJob:
    """Run the job's tasks. They write under these generations, by dataset, and to none of the servers ``without``."""

    run: int
    generations: Mapping[str, str]
    without: frozenset[ServerStart] = frozenset()


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Cancel this run of the job. Its tasks may go on for some time; what they report then is dropped."""

    run: int


@dataclass(frozen=True, slots=True)
class Seal:
    """Make exactly these attempts readable on the server. Twice is fine.

    Args:
        attempts: by producer.
        largest: the answer names the sizes of so many partitions, the largest, and the others' sum
            (``PartitionSizes``); None: all sizes.
    """

    server: ServerStart
    dataset: str
    generation: str
    attempts: Mapping[int, str] = field(repr=False)
    largest: int | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease of the dataset on the server."""

    server: ServerStart
    dataset: str
    generation: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop this generation of the dataset on the server. Its refusal changes nothing: the lease ends."""

    server: ServerStart
    dataset: str
    generation: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise the error where the datasets are waited for. Nothing of them is kept."""

    error: Exception


DriverCall = Create | RunJob | CancelJob | Seal | Renew | Drop | Fail


def server_lost(server: ServerStart, dataset: str, run: int) -> ServerLost:
    """The error of a server that is gone with its data. Its ``detail`` names ``server``, ``start``, ``dataset`` and
    ``run``.
    """
    start = f" (start {server.start})" if server.start else ""
    return ServerLost(
        f"the server {server.location}{start} is gone, and with it data of {dataset}; this was run {run} of the "
        "job that wrote it: run it again, or let the exchange offload it",
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
        lives: the server is not lost.
        stored: an object in shared storage has it, too: it needs no server.
    """

    server: ServerStart
    attempts: dict[int, str] = field(default_factory=dict)
    lives: bool = True
    stored: bool = False


@dataclass(slots=True)
class SealTotals:
    """The sums of the servers' answers to the seals of one dataset."""

    sizes: PartitionSizes
    rows: int = 0
    frames: int = 0
    size_bytes: int = 0

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add what a portion has."""
        self.rows += answer["rows"]
        self.frames += answer["frames"]
        self.size_bytes += answer["bytes"]
        self.sizes.add(answer)


def portions_of(
    accepted: Mapping[tuple[int, str], ServerStart], also: ServerStart | None = None
) -> dict[ServerStart, WrittenPortion]:
    """The portions, by server.

    Args:
        accepted: the server that committed each producer's accepted attempt.
        also: a server that has a portion without attempts, too.
    """
    portions = {} if also is None else {also: WrittenPortion(also)}
    for (producer, attempt), server in accepted.items():
        portions.setdefault(server, WrittenPortion(server)).attempts[producer] = attempt
    return portions


class WriteState(StrEnum):
    """See ``_AFTER``."""

    CREATING = "being created"
    WRITING = "being written"
    SEALING = "being sealed"
    SEALED = "sealed"
    HANDED_OUT = "handed out"
    FAILED = "failed"
    DROPPED = "dropped"


_AFTER = transitions(
    WriteState,
    """
    state       create     end        seal       hand_out    release     run_again   fail       drop
    CREATING    WRITING    error      error      error       error       error       FAILED     DROPPED
    WRITING     error      SEALING    error      error       error       CREATING    FAILED     DROPPED
    SEALING     error      error      SEALED     error       error       CREATING    FAILED     DROPPED
    SEALED      error      error      error      HANDED_OUT  SEALED      CREATING    FAILED     DROPPED
    HANDED_OUT  error      error      error      HANDED_OUT  HANDED_OUT  error       FAILED     DROPPED
    FAILED      error      error      error      error       FAILED      error       error      DROPPED
    DROPPED     error      error      error      error       DROPPED     error       error      DROPPED
    """,
)
_ENDED = (WriteState.FAILED, WriteState.DROPPED)


class SpreadWrite:
    """See the module's text. Not thread-safe: the driver's loop owns it.

    Args:
        partitions: how many there are of each dataset that the job writes.
        token: 14 hexadecimal digits, with which the driver's generations begin; the last two are the run.
        created_on: the only server; it creates the datasets beforehand and draws their generations. None: puts create
            them, wherever tasks write.
    """

    def __init__(
        self,
        partitions: Mapping[str, int],
        token: str,
        created_on: ServerStart | None = None,
        reruns: int = RERUNS,
    ) -> None:
        self.state = WriteState.CREATING
        self.run = 0
        self.losses: list[ServerLost] = []
        self._partitions = dict(partitions)
        self._token = token
        self._created_on = created_on
        self._reruns = reruns
        self._lost: dict[ServerStart, int] = {}  # the run in which it was
        self._forget_run()

    def _forget_run(self) -> None:
        self._generations: dict[str, str] = {}
        # Dicts, not sets, so that calls come in the same order in each process.
        self._held: dict[ServerStart, dict[str, None]] = {}
        self._reports: dict[str, dict[tuple[int, str], ServerStart]] = {}
        self._portions: dict[str, dict[ServerStart, WrittenPortion]] = {}
        self._waiting: dict[tuple[str, ServerStart], None] = {}  # the seals without an answer
        self._totals: dict[str, SealTotals] = {}

    # What the caller reads.

    @property
    def datasets(self) -> tuple[str, ...]:
        """Those that are not released."""
        return tuple(self._partitions)

    def generation(self, dataset: str) -> str:
        """The present one."""
        return self._generations[dataset]

    def portions(self, dataset: str) -> list[WrittenPortion]:
        """Of a sealed dataset, in no order."""
        return [*self._portions[dataset].values()]

    def totals(self, dataset: str) -> SealTotals:
        """Of a sealed dataset."""
        return self._totals[dataset]

    # Writing.

    def begin(self) -> list[DriverCall]:
        """The first calls. Once."""
        self.run += 1
        if self._created_on is not None:
            return [Create(self._created_on, dataset, self.run) for dataset in self._partitions]
        self._generations = dict.fromkeys(self._partitions, f"{self._token}{self.run:02x}")
        return self._write()

    def created(self, call: Create, generation: str) -> list[DriverCall]:
        """The server has created the dataset."""
        if call.run != self.run or self.state is not WriteState.CREATING:
            return [Drop(call.server, call.dataset, generation)]
        self._generations[call.dataset] = generation
        self._held.setdefault(call.server, {})[call.dataset] = None
        return self._write() if self._generations.keys() == self._partitions.keys() else []

    def _write(self) -> list[DriverCall]:
        self._step("create")
        self._reports = {dataset: {} for dataset in self._partitions}
        return [RunJob(self.run, dict(self._generations), frozenset(self._lost))]

    def reported(self, report: Report) -> list[DriverCall]:
        """A task has committed an attempt, which Spark may accept or not. Twice is fine."""
        dataset, server = report.dataset, report.server
        is_old = self._is_old(report)
        if is_old or self.state is not WriteState.WRITING:  # of an attempt that was not accepted
            strange = is_old or dataset not in self._held.get(server, ())
            return [Drop(server, dataset, report.generation)] if strange else []
        self._reports[dataset][report.producer, report.attempt] = server
        if not self._is_living(server):
            return self._run_again(server, dataset)
        self._held.setdefault(server, {})[dataset] = None
        return []

    def job_ended(self, job: RunJob, accepted: Mapping[str, Mapping[int, str]]) -> list[DriverCall]:
        """Spark's job is over. ``accepted``: the attempt of each producer, by dataset; all were reported."""
        if job.run != self.run or self.state is not WriteState.WRITING:
            return []
        for dataset in self._partitions:
            reports = self._reports[dataset]
            missing = accepted[dataset].items() - reports.keys()
            if missing:
                return self._fail(FlightShuffleError(f"no task reported producer, attempt {min(missing)}"))
            committed = {each: reports[each] for each in accepted[dataset].items()}
            self._portions[dataset] = portions_of(committed, self._created_on)
            for server in self._portions[dataset]:
                if not self._is_living(server):
                    return self._run_again(server, dataset)
        self._step("end")
        self._reports.clear()
        seals = [seal for dataset in self._partitions for seal in self._seals(dataset)]
        self._waiting = dict.fromkeys((seal.dataset, seal.server) for seal in seals)
        return [*self._drops_of_unsealed(), *seals, *self._sealed_if_all()]

    def job_failed(self, job: RunJob, error: Exception) -> list[DriverCall]:
        """Spark's job has failed. If a server was lost meanwhile (say so first), the job runs again."""
        if job.run != self.run or self.state is not WriteState.WRITING:
            return []
        lost = [server for server, run in self._lost.items() if run == self.run]
        return self._run_again(lost[0], next(iter(self._partitions))) if lost else self._fail(error)

    # Sealing.

    def _seals(self, dataset: str) -> Iterator[Seal]:
        portions = self._portions[dataset]
        partitions = self._partitions[dataset]
        self._totals[dataset] = SealTotals(PartitionSizes(partitions))
        largest = PartitionSizes.largest(partitions, len(portions))
        for server, portion in portions.items():
            yield Seal(server, dataset, self._generations[dataset], portion.attempts, largest)

    def _drops_of_unsealed(self) -> list[DriverCall]:
        """What only attempts wrote that Spark has not accepted."""
        sealed: dict[ServerStart, dict[str, None]] = {}
        for dataset, server in self._waiting:
            sealed.setdefault(server, {})[dataset] = None
        before, self._held = self._held, sealed
        return [
            Drop(server, dataset, self._generations[dataset])
            for server, datasets in before.items()
            for dataset in datasets
            if dataset not in sealed.get(server, {})
        ]

    def sealed(
        self, call: Seal, answer: Mapping[str, Any], by: ServerStart | None = None
    ) -> list[DriverCall]:
        """A server has sealed what it has. ``answer``: its ``rows``, ``frames``, ``bytes`` and ``partition_bytes``,
        with ``rest_bytes`` if not all partitions are named; ``by``: the start that answered, if it says so. Twice is
        fine.
        """
        if self._is_old(call):
            return []
        if by is not None and by != call.server:
            return self.lost(call.server)
        waits = (call.dataset, call.server)
        if waits not in self._waiting:
            return []
        del self._waiting[waits]
        self._totals[call.dataset].add(answer)
        portion = self._portions[call.dataset][call.server]
        portion.stored = any(map(is_object, answer.get("read_locations", ())))
        return self._sealed_if_all()

    def _sealed_if_all(self) -> list[DriverCall]:
        if self.state is WriteState.SEALING and not self._waiting:
            self._step("seal")
        return []

    # Losing.

    def refused(self, call: Create | Seal | Renew | Drop, error: FlightShuffleError) -> list[DriverCall]:
        """The server has refused a call, or could not be reached in all tries."""
        match call:
            case Create():
                return self._fail(error) if call.run == self.run and self.state not in _ENDED else []
            case Drop():
                return []
            case Seal() | Renew() if self._is_old(call):
                return []
            case Seal() | Renew() if isinstance(error, ServerLost):
                return self.lost(call.server)
            case Seal() | Renew() if isinstance(error, NotFound):
                self._held.get(call.server, {}).pop(call.dataset, None)
                return self._has_lost(call.server, {call.dataset})
            case Renew():
                return []  # the next one may be answered
            case Seal():
                return self.lost(call.server) if isinstance(error, _GONE) else self._fail(error)

    def lost(self, server: ServerStart, generation: str | None = None) -> list[DriverCall]:
        """The server is gone, with all that it had.

        Args:
            generation: of the read that has found it gone; that of an earlier run changes nothing.
        """
        if generation is not None and generation not in self._generations.values():
            return []
        if self.state in _ENDED or self._lost.get(server) == self.run:
            return []
        self._lost[server] = self.run
        self._held.pop(server, None)
        return self._has_lost(server, self._partitions.keys())

    def _has_lost(self, server: ServerStart, datasets: Iterable[str]) -> list[DriverCall]:
        for dataset in datasets:
            if self.state is WriteState.WRITING and server in self._reports[dataset].values():
                return self._run_again(server, dataset)
            portion = self._portions.get(dataset, {}).get(server)
            if portion is not None and portion.lives:
                portion.lives = False
                self._waiting.pop((dataset, server), None)
                if not portion.stored:
                    return self._run_again(server, dataset)
        return self._sealed_if_all()

    def _run_again(self, server: ServerStart, dataset: str) -> list[DriverCall]:
        self.losses.append(server_lost(server, dataset, self.run))
        if (self.state, "run_again") not in _AFTER or self.run > self._reruns:
            return self._fail(self.losses[-1])
        calls = self._given_up()
        self._step("run_again")
        self._forget_run()
        return [*calls, *self.begin()]

    def _fail(self, error: Exception) -> list[DriverCall]:
        calls = self._given_up()
        self._step("fail")
        self._forget_run()
        return [*calls, Fail(error)]

    # Keeping and releasing.

    def hand_out(self) -> None:
        """From now on rows may be used that cannot be taken back: a loss is an error. Twice is fine."""
        self._step("hand_out")

    def renew(self) -> list[DriverCall]:
        """The leases to renew now, of all that is held."""
        return [
            Renew(server, dataset, self._generations[dataset])
            for server, datasets in self._held.items()
            for dataset in datasets
        ]

    def release(self, dataset: str) -> list[DriverCall]:
        """A sealed dataset is not read any more; a loss does not matter to it. Twice is fine."""
        self._step("release")
        if dataset not in self._partitions or self.state in _ENDED:
            return []
        if len(self._partitions) == 1:
            return self.drop()
        del self._partitions[dataset], self._portions[dataset], self._totals[dataset]
        generation = self._generations.pop(dataset)
        holders = [server for server, datasets in self._held.items() if dataset in datasets]
        for server in holders:
            del self._held[server][dataset]
        return [Drop(server, dataset, generation) for server in holders]

    def drop(self) -> list[DriverCall]:
        """Drop everything, in whichever state. Twice is fine."""
        calls = self._given_up()
        self._step("drop")
        self._forget_run()
        return calls

    def _given_up(self) -> list[DriverCall]:
        cancel = [CancelJob(self.run)] if self.state is WriteState.WRITING else []
        drops = [
            Drop(server, dataset, self._generations[dataset])
            for server, datasets in self._held.items()
            for dataset in datasets
        ]
        return [*cancel, *drops]

    def _is_old(self, call: Report | Seal | Renew) -> bool:
        return self._generations.get(call.dataset) != call.generation

    def _is_living(self, server: ServerStart) -> bool:
        return self._lost.get(server) != self.run

    def _step(self, verb: str) -> None:
        self.state = self._check_step(verb)

    def _check_step(self, verb: str) -> WriteState:
        after = _AFTER.get((self.state, verb))
        if after is None:
            raise Conflict(f"a write that is {self.state} cannot {verb.replace('_', ' ')}")
        return after
