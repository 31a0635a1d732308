"""One Spark job that writes datasets: carries out the calls that ``servers.SpreadWrite`` asks for.

Guarantee: as ``shuffles`` says. With one server: create, job, seal. With several, tasks choose theirs (``WriteTask``),
their puts create the datasets, and each server that an accepted attempt names is sealed with its own attempts and the
list of all. When a server is lost the job runs again, at most twice, unless it reads from that server: then the caller
must write what it reads first.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from flight_server.protocol import (
    FlightShuffleError,
    InvalidRequest,
    SealRequest,
    ServerLost,
    ServerPortion,
    Unavailable,
    check_allowed,
    check_prefix,
)
from spark_client.connection import AWAY, TimedOut, refuses
from spark_client.executors import reason_of
from spark_client.merge import DatasetRef, Portion
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
    owner_of,
    server_lost,
)

from .held_datasets import HeldDatasets
from .job import Target
from .sealed import SealedDataset, accepted, server_of, work_of
from .tasks import Destination, Sides

_log = logging.getLogger(__name__)
_SEALS_AT_ONCE = 32
_LOST = re.compile("has lost the server[^\\n]*")
"""In the error of a task that could not read (``lanes.ReadStream``)."""


class WriteJob:
    """See :meth:`run`.

    Args:
        collect: runs the tasks, given the destination of each dataset; their reports.
    """

    def __init__(
        self,
        held: HeldDatasets,
        targets: Sequence[Target],
        collect: Callable[[dict[str, Destination]], list[Any]],
    ) -> None:
        self._held = held
        self._targets = targets
        self._collect = collect
        # The partitions of one dataset on one server are numbered and ordered as if there were no other server.
        alone = len(targets) == 1 and targets[0].alone
        self._offloads = {target.task.dataset: target.offload for target in targets}
        self._spread = (held.servers.several and not alone) or any(self._offloads.values())
        self._executors = held.executors if self._spread else None
        # To learn which server has a name may start it.
        self._server = held.server if self._spread else held.place(targets[0].task.dataset)
        only = None if self._spread else ServerStart(self._server.location)
        partitions = {target.task.dataset: target.task.partitions for target in targets}
        self._write = SpreadWrite(partitions, secrets.token_hex(7), only)
        self._places: tuple[str, ...] = ()
        self._starts: dict[str, str] = {}  # of the servers, when the job began
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
        self._check_offloads()
        calls = deque(self._write.begin())
        while calls:
            seals: list[Seal] = []
            while calls and isinstance(calls[0], Seal):
                seals.append(calls.popleft())  # type: ignore[arg-type] # as just looked at
            calls.extend(self._sealed(seals) if seals else self._done(calls.popleft()))
        return [
            self._found(target, reports) for target, reports in zip(self._targets, self._reports, strict=True)
        ]

    def _check_offloads(self) -> None:
        """Raise Forbidden if a server may not write to one of the prefixes: its seal would, after the job."""
        wanted = [each for each in self._offloads.values() if each is not None]
        if wanted and self._executors is not None:
            given = self._executors.options.get("offload_to") or ()
            given = given if isinstance(given, list | tuple) else (given,)
            allowed = [check_prefix(str(each), "offload_to") for each in given]
        elif wanted:
            servers = self._held.servers
            allowed = servers.at(servers.reachable()[0]).action("locations").get("offload_to", [])
        for each in wanted:
            check_allowed(each, allowed)

    def _done(self, call: DriverCall) -> Iterable[DriverCall]:
        match call:
            case Create():
                task = next(each.task for each in self._targets if each.task.dataset == call.dataset)
                generation, self._places = self._held.create(
                    call.dataset, task.declared.schema, task.partitions
                )
                return self._write.created(call, generation)
            case RunJob():
                return self._run(call)
            case Drop():
                self._held.drop_at(call.server.location, call.dataset, call.generation)
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
        destinations = {
            target.task.dataset: self._destination(target, call, locations) for target in self._targets
        }
        try:
            reports = self._collect(destinations)
        except Exception as error:  # noqa: BLE001 - raised, unless a server was lost
            return self._job_failed(call, error)
        self._reports = [
            [row for row in reports if row["dataset"] == target.task.dataset] for target in self._targets
        ]
        if self._executors is not None:
            self._learn(call, reports)
        calls: list[DriverCall] = []
        for target, rows in zip(self._targets, self._reports, strict=True):
            dataset = target.task.dataset
            self._answers[dataset] = []
            for row in rows:
                start = self._chosen(row) if self._spread else ServerStart(self._server.location)
                report = Report(dataset, call.generations[dataset], row["producer"], row["attempt"], start)
                calls += self._write.reported(report)
        chosen = {
            target.task.dataset: accepted(rows)
            for target, rows in zip(self._targets, self._reports, strict=True)
        }
        return [*calls, *self._write.job_ended(call, chosen)]

    def _begun(self, call: RunJob) -> tuple[str, ...]:
        """The servers that tasks choose from, or that are known of those that tasks start. Raises ServerLost: the job
        reads from one that is gone, for which tasks would wait.
        """
        if self._write.losses:
            _log.warning("the job runs again: %s", self._write.losses[-1].message)
        servers = self._held.servers
        if self._executors is not None:
            servers.lost()
            if (lost := self._lost_source()) is not None:
                raise lost
        for dataset, generation in call.generations.items():
            self._held.begin_spread(dataset, generation, self._offloads[dataset])
        locations = servers.locations if self._executors is not None else servers.reachable()
        self._starts = servers.starts
        return locations

    def _job_failed(self, call: RunJob, error: Exception) -> Iterable[DriverCall]:
        if (reason := reason_of(error)) is not None:
            raise InvalidRequest(reason) from error
        servers, executors = self._held.servers, self._held.executors
        asks = servers.several and (self._spread or executors is not None)
        lost = servers.lost(self._starts or None) if asks else []
        if asks and self._lost_source() is not None:
            raise error
        if executors is not None and (said := _LOST.search(str(error))):
            raise Unavailable(
                "tasks do not reach the servers in other executors, which the driver does reach: let executors reach "
                f"each other at all TCP ports from 1024 on, or name a server that all reach ({said[0]})"
            ) from error
        calls = [each for server in lost if self._spread for each in self._write.lost(server)]
        return [*calls, *self._write.job_failed(call, error)]

    @staticmethod
    def _chosen(row: Any) -> ServerStart:
        """The server that the task of a report has chosen."""
        return ServerStart(*server_of(row)[:2])

    def _learn(self, call: RunJob, reports: Sequence[Any]) -> None:
        """The servers that the tasks have started, and so hold what they wrote."""
        self._held.servers.learn([*dict.fromkeys(map(self._chosen, reports))])
        for dataset in call.generations:
            self._held.written_on(dataset, self._held.servers.locations)

    def _destination(self, target: Target, call: RunJob, locations: tuple[str, ...]) -> Destination:
        """With all that the tasks need, so that none asks the server."""
        dataset, executors, places = target.task.dataset, self._executors, dict[str, tuple[str, ...]]()
        if not self._spread:
            locations = (self._server.location,)
            places = {self._server.location: self._places}
        elif target.alone:
            servers = self._held.servers
            locations = (owner_of(dataset, locations) if executors is None else servers.owner(dataset),)
            executors = None
        generation, seconds = call.generations[dataset], self._held.lease_seconds
        return Destination(self._server, generation, locations, seconds, places, executors)

    def _sources(self) -> list[tuple[str, Portion]]:
        """The portions that the job reads and servers alone have, of datasets over several."""
        sources: list[Any] = [task.reading.source for target in self._targets for _, task in target.writes]
        refs = [
            ref
            for source in sources
            for ref in ([source.left, source.right] if isinstance(source, Sides) else [source])
            if isinstance(ref, DatasetRef)
        ]
        return [
            (ref.dataset, portion)
            for ref in refs
            for portion in ref.portions
            if portion.start is not None and portion.stored is None
        ]

    def _lost_source(self) -> ServerLost | None:
        """The error of a portion that the job reads and whose servers did not answer when they were asked last."""
        for dataset, portion in self._sources():
            start = portion.start or ""
            if not self._held.servers.knows(start):
                return server_lost(ServerStart(portion.locations[0], start), dataset, self._write.run)
        return None

    # The seals.

    def _sealed(self, seals: Sequence[Seal]) -> Iterable[DriverCall]:
        lists = {each: self._servers_of(each) for each in {seal.dataset for seal in seals} if self._spread}

        def seal(call: Seal) -> dict[str, Any] | FlightShuffleError:
            return self._seal(call, lists.get(call.dataset))

        if len(seals) == 1:
            answers = [seal(seals[0])]
        else:
            with ThreadPoolExecutor(min(_SEALS_AT_ONCE, len(seals)), "seal") as threads:
                answers = list(threads.map(seal, seals))
        self._all_away = all(isinstance(answer, (*AWAY, TimedOut)) for answer in answers)
        if self._spread and any(isinstance(answer, (*AWAY, TimedOut, ServerLost)) for answer in answers):
            self._held.servers.lost()  # no task is to choose them
        calls: list[DriverCall] = []
        for call, answer in zip(seals, answers, strict=True):
            if isinstance(answer, FlightShuffleError):
                calls += self._write.refused(call, answer)
                continue
            self._answers[call.dataset].append(answer)
            by = ServerStart(call.server.location, answer["start"]) if self._spread else None
            calls += self._write.sealed(call, answer, by)
        return calls

    def _seal(
        self, seal: Seal, servers: tuple[ServerPortion, ...] | None
    ) -> dict[str, Any] | FlightShuffleError:
        server, offload = self._held.servers.at(seal.server.location), self._offloads[seal.dataset]
        request = SealRequest(
            seal.dataset, seal.generation, dict(seal.attempts), offload=offload, largest=seal.largest
        )
        if servers is not None:
            request = replace(request, start=seal.server.start, servers=servers)
        # The answer comes when the object is written; the server has a deadline for each part of it.
        seconds = None if offload is None else server.timeouts.stream_seconds
        # A start that refuses connections does not come back.
        once = self._spread and refuses([seal.server.location])
        try:
            return server.action("seal", request.encode(), seconds, once=once)
        except FlightShuffleError as error:
            return error

    def _servers_of(self, dataset: str) -> tuple[ServerPortion, ...]:
        """All portions of the dataset, each with its locations and the sums of its accepted attempts."""
        (reports,) = (
            rows
            for each, rows in zip(self._targets, self._reports, strict=True)
            if each.task.dataset == dataset
        )
        sums: dict[str, tuple[int, int]] = {}
        where: dict[str, tuple[str, ...]] = {}
        for row in reports:
            _, start, where[start] = server_of(row)
            rows, size_bytes = sums.get(start, (0, 0))
            sums[start] = rows + row["rows"], size_bytes + row["bytes"]
        return tuple(
            ServerPortion(start, where[start], *sums[start])
            for portion in self._write.portions(dataset)
            for start in [portion.server.start]
        )

    def _found(self, target: Target, reports: list[Any]) -> SealedDataset:
        task, dataset = target.task, target.task.dataset
        generation, answers = self._write.generation(dataset), self._answers[dataset]
        totals, server = self._write.totals(dataset), self._server
        held = Counter[str]()  # bytes, by location
        if self._spread:
            written = self._write.portions(dataset)
            if written and self._executors is not None:
                server = self._held.servers.at(written[0].server.location)
            source = DatasetRef.spread(server, dataset, generation, answers)
            self._held.sealed_on(dataset, {each.server.start: each.server.location for each in written})
            for each, portion in zip(written, self._servers_of(dataset), strict=True):
                held[each.server.location] += portion.bytes
        else:
            source = DatasetRef.sealed(server, dataset, generation, answers[0])
            held[server.location] = totals.size_bytes
        return SealedDataset(
            source,
            task.declared.schema,
            tuple(totals.sizes.sizes().tolist()),
            totals.rows,
            totals.frames,
            work_of(reports),
            time.monotonic() - self._began,
            tuple(error.message for error in self._write.losses),
            held,
        )
