"""One Spark job that writes datasets: carries out the calls that ``servers.SpreadWrite`` asks for.

Guarantee: as ``shuffles`` says of :meth:`Shuffles.write`. With one server: create, job, seal. With several,
tasks choose theirs (``WriteTask``), their puts create the datasets, and each server that an accepted attempt names
is sealed with its own attempts and the list of all. When a server is lost the job runs again, at most twice, unless it
reads from that server: then the caller must write what it reads first.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from flight_server.protocol import (
    FlightShuffleError,
    InvalidRequest,
    SealRequest,
    ServerLost,
    ServerPortion,
    Unavailable,
)
from spark_client.connection import AWAY, RemoteServer, TimedOut
from spark_client.executors import ExecutorServers, reason_of
from spark_client.merge import DatasetRef
from spark_client.servers import (
    Create,
    DriverCall,
    Drop,
    Fail,
    Report,
    RunJob,
    Seal,
    ServerList,
    ServerStart,
    SpreadWrite,
    server_lost,
)

from .sealed import SealedDataset
from .task_reports import accepted, server_of, work_of
from .tasks import Sides, WriteTask

_log = logging.getLogger(__name__)
_SEALS_AT_ONCE = 32
_LOST = re.compile("has lost the server[^\\n]*")
"""In the error of a task that could not read (``lanes.PortionStream``)."""


@dataclass(frozen=True)
class Target:
    """A dataset that a job writes: ``writes`` are DataFrames, each with the task over each of its partitions, in which
    the generation is filled in. ``label`` is for the progress bar, ``name`` for Spark (``shuffles``). ``alone``: one
    server holds it, which its name chooses.
    """

    writes: Sequence[tuple[DataFrame, WriteTask]]
    label: str
    name: str | None = None
    alone: bool = False

    @property
    def task(self) -> WriteTask:
        """The first one; dataset, partitions and schema are the same in all."""
        return self.writes[0][1]


class DatasetKeeper(Protocol):
    """The driver's datasets (``shuffles.Shuffles``), which begin, are sealed and end."""

    server: RemoteServer
    servers: ServerList
    executors: ExecutorServers | None
    lease_seconds: float

    def place(self, dataset: str) -> RemoteServer: ...

    def create(self, dataset: str, schema: pa.Schema, partitions: int) -> tuple[str, tuple[str, ...]]: ...

    def begin_spread(self, dataset: str, generation: str) -> None: ...

    def written_on(self, dataset: str, locations: Sequence[str]) -> None: ...

    def sealed_on(self, dataset: str, locations: Sequence[str]) -> None: ...

    def drop_at(self, location: str, dataset: str, generation: str) -> None: ...


class WriteJob:
    """See :meth:`run`.

    Args:
        collect: runs the tasks, given the targets with the servers and generations filled in; their reports.
    """

    def __init__(
        self, shuffles: DatasetKeeper, targets: Sequence[Target], collect: Callable[[list[Target]], list[Any]]
    ) -> None:
        self._shuffles = shuffles
        self._targets = targets
        self._collect = collect
        # The partitions of one dataset on one server are numbered and ordered as if there were no other server.
        self._spread = shuffles.servers.several and not (len(targets) == 1 and targets[0].alone)
        self._executors = shuffles.executors if self._spread else None
        # To learn which server has a name may start it.
        self._server = shuffles.server if self._spread else shuffles.place(targets[0].task.dataset)
        only = None if self._spread else ServerStart(self._server.location)
        partitions = {target.task.dataset: target.task.partitions for target in targets}
        self._write = SpreadWrite(partitions, secrets.token_hex(7), only)
        self._places: tuple[str, ...] = ()
        self._all_away = False  # the servers that were to seal last
        self._reports: list[list[Any]] = []
        self._answers: dict[str, list[dict[str, Any]]] = {}
        self._began = time.monotonic()

    def run(self) -> list[SealedDataset]:
        """The datasets, sealed. After an error the caller discards them.

        Raises:
            FlightShuffleError: a server refused; or one was lost, and the job has run three times, or has read from it.
            pyspark.errors.PySparkException: the job has failed.
        """
        calls = deque(self._write.begin())
        while calls:
            seals: list[Seal] = []
            while calls and isinstance(calls[0], Seal):
                seals.append(calls.popleft())  # type: ignore[arg-type] # as just looked at
            calls.extend(self._sealed(seals) if seals else self._done(calls.popleft()))
        return [
            self._found(target, reports) for target, reports in zip(self._targets, self._reports, strict=True)
        ]

    def _done(self, call: DriverCall) -> Iterable[DriverCall]:
        match call:
            case Create():
                task = next(each.task for each in self._targets if each.task.dataset == call.dataset)
                generation, self._places = self._shuffles.create(
                    call.dataset, task.declared.schema, task.partitions
                )
                return self._write.created(call, generation)
            case RunJob():
                return self._run(call)
            case Drop():
                self._shuffles.drop_at(call.server.location, call.dataset, call.generation)
            case Fail():
                if self._executors is not None and self._all_away and isinstance(call.error, ServerLost):
                    raise Unavailable(
                        "the driver reaches none of the servers that tasks have started: let it reach executors at all "
                        f"TCP ports from 1024 on, or name a server that all reach ({call.error})"
                    ) from call.error
                raise call.error
        return ()

    # The job.

    def _run(self, call: RunJob) -> Iterable[DriverCall]:
        locations = self._begun(call) if self._spread else ()
        targets = [
            self._filled(number, target, call, locations) for number, target in enumerate(self._targets)
        ]
        try:
            reports = self._collect(targets)
        except Exception as error:  # noqa: BLE001 - raised, unless a server was lost
            return self._job_failed(call, error)
        self._reports = [
            [row for row in reports if row["target"] == number] for number in range(len(targets))
        ]
        if self._executors is not None:
            self._learn(call, reports)
        calls: list[DriverCall] = []
        for target, rows in zip(targets, self._reports, strict=True):
            dataset = target.task.dataset
            self._answers[dataset] = []
            for row in rows:
                server = server_of(row)
                start = ServerStart(self._server.location) if server is None else ServerStart(*server[:2])
                report = Report(dataset, call.generations[dataset], row["producer"], row["attempt"], (start,))
                calls += self._write.reported(report)
        chosen = {
            target.task.dataset: accepted(rows) for target, rows in zip(targets, self._reports, strict=True)
        }
        return [*calls, *self._write.job_ended(call, chosen)]

    def _begun(self, call: RunJob) -> tuple[str, ...]:
        """The servers that tasks choose from; none if they start them. Raises ServerLost: the job reads from one that
        is gone, for which tasks would wait.
        """
        if self._write.losses:
            _log.warning("the job runs again: %s", self._write.losses[-1].message)
        servers = self._shuffles.servers
        if self._executors is not None:
            servers.lost()
            if (lost := self._lost_source()) is not None:
                raise lost
        for dataset, generation in call.generations.items():
            self._shuffles.begin_spread(dataset, generation)
        if self._executors is not None:
            return ()
        return servers.reachable()

    def _job_failed(self, call: RunJob, error: Exception) -> Iterable[DriverCall]:
        if (reason := reason_of(error)) is not None:
            raise InvalidRequest(reason) from error
        executors = self._shuffles.executors
        lost = self._shuffles.servers.lost() if self._spread or executors is not None else []
        starts = {server.start for server in lost}
        if any(server.start in starts for _, server in self._sources()) or self._lost_source() is not None:
            raise error
        if executors is not None and (said := _LOST.search(str(error))):
            raise Unavailable(
                "tasks do not reach the servers in other executors, which the driver does reach: let executors reach "
                f"each other at all TCP ports from 1024 on, or name a server that all reach ({said[0]})"
            ) from error
        calls = [each for server in lost if self._spread for each in self._write.lost(server)]
        return [*calls, *self._write.job_failed(call, error)]

    def _learn(self, call: RunJob, reports: Sequence[Any]) -> None:
        """The servers that the tasks have started, and so hold what they wrote."""
        named = [each for each in map(server_of, reports) if each is not None]
        self._shuffles.servers.learn([*dict.fromkeys(ServerStart(*each[:2]) for each in named)])
        for dataset in call.generations:
            self._shuffles.written_on(dataset, self._shuffles.servers.locations)

    def _filled(self, number: int, target: Target, call: RunJob, locations: tuple[str, ...]) -> Target:
        """With all that the tasks need, so that none asks the server."""
        writes = [
            (
                rows,
                replace(
                    task,
                    server=self._server,
                    generation=call.generations[task.dataset],
                    places=None if self._spread else self._places,
                    servers=(self._shuffles.servers.owner(task.dataset),)
                    if target.alone and self._spread
                    else locations,
                    executors=None if target.alone else self._executors,
                    lease_seconds=self._shuffles.lease_seconds,
                    target=number,
                    part=part,
                    parts=len(target.writes),
                ),
            )
            for part, (rows, task) in enumerate(target.writes)
        ]
        return replace(target, writes=writes)

    def _sources(self) -> list[tuple[str, ServerStart]]:
        """The datasets over several servers that the job reads, with each of their servers."""
        sources: list[Any] = [task.source for target in self._targets for _, task in target.writes]
        refs = [
            ref
            for source in sources
            for ref in ([source.left, source.right] if isinstance(source, Sides) else [source])
            if isinstance(ref, DatasetRef)
        ]
        return [
            (ref.dataset, ServerStart(portion.locations[0], portion.start))
            for ref in refs
            for portion in ref.portions
            if portion.start is not None
        ]

    def _lost_source(self) -> ServerLost | None:
        """The error of a server that the job reads and that has ended, of those that tasks have started."""
        for dataset, server in self._sources() if self._shuffles.executors is not None else ():
            if not self._shuffles.servers.knows(server.start):
                return server_lost(server, dataset, self._write.run)
        return None

    # The seals.

    def _sealed(self, seals: Sequence[Seal]) -> Iterable[DriverCall]:
        if len(seals) == 1:
            answers: list[dict[str, Any] | FlightShuffleError] = [self._seal(seals[0])]
        else:
            with ThreadPoolExecutor(min(_SEALS_AT_ONCE, len(seals)), "seal") as threads:
                answers = list(threads.map(self._seal, seals))
        self._all_away = all(isinstance(answer, (*AWAY, TimedOut)) for answer in answers)
        calls: list[DriverCall] = []
        for seal, answer in zip(seals, answers, strict=True):
            if isinstance(answer, FlightShuffleError):
                calls += self._write.refused(seal, answer)
                continue
            self._answers[seal.dataset].append(answer)
            by = ServerStart(seal.server.location, answer["start"]) if self._spread else None
            calls += self._write.sealed(seal, answer, by)
        return calls

    def _seal(self, seal: Seal) -> dict[str, Any] | FlightShuffleError:
        request = SealRequest(seal.dataset, seal.generation, dict(seal.attempts))
        if self._spread:
            request = replace(request, start=seal.server.start, servers=self._servers_of(seal.dataset))
        try:
            return self._shuffles.servers.at(seal.server.location).action("seal", request.encode())
        except FlightShuffleError as error:
            return error

    def _servers_of(self, dataset: str) -> tuple[ServerPortion, ...]:
        """All servers that hold the dataset, with the sums of their accepted attempts."""
        (reports,) = (
            rows
            for each, rows in zip(self._targets, self._reports, strict=True)
            if each.task.dataset == dataset
        )
        sums: dict[str, tuple[tuple[str, ...], int, int]] = {}
        for row in reports:
            server = server_of(row)
            assert server is not None
            _, start, locations = server
            _, rows, size_bytes = sums.get(start, ((), 0, 0))
            sums[start] = locations, rows + row["rows"], size_bytes + row["bytes"]
        return tuple(ServerPortion(start, *each) for start, each in sums.items())

    def _found(self, target: Target, reports: list[Any]) -> SealedDataset:
        task, dataset = target.task, target.task.dataset
        generation, answers = self._write.generation(dataset), self._answers[dataset]
        totals, server = self._write.totals(dataset), self._server
        if self._spread:
            locations = [each.name.location for each in self._write.portions(dataset)]
            if locations and self._executors is not None:
                server = self._shuffles.servers.at(locations[0])
            source = DatasetRef.spread(server, dataset, generation, answers)
            self._shuffles.sealed_on(dataset, locations)
        else:
            source = DatasetRef.sealed(server, dataset, generation, answers[0])
        return SealedDataset(
            source,
            task.declared.schema,
            tuple(totals.sizes.sizes().tolist()),
            totals.rows,
            totals.frames,
            work_of(reports),
            time.monotonic() - self._began,
            tuple(error.message for error in self._write.losses),
        )
