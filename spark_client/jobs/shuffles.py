"""The driver's shuffle datasets, and the jobs that write them.

Guarantee: a dataset that :meth:`Shuffles.write` returns is sealed with exactly the attempts whose reports reached the
driver, one for each task of the job. If the job, the seal or the driver fails, the dataset is dropped at once, or by
the server when its lease ends. Leases are renewed until the drop. ``servers.dataset_machine`` decides all of it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from flight_server.protocol import (
    REUSE_CONNECTION,
    InvalidRequest,
    PutCommand,
    ServerLost,
    Unavailable,
    check_allowed,
    check_prefix,
)
from spark_client.connection import RemoteServer
from spark_client.executors import ExecutorServers, check_interpreter, reason_of
from spark_client.hosts import Copies, HostFiles
from spark_client.lanes import PutStream
from spark_client.merge import DatasetRef, Portion
from spark_client.servers import (
    DriverLoop,
    Holder,
    PlannedDataset,
    Report,
    RunJob,
    ServerList,
    ServerStart,
    WrittenPortion,
    owner_of,
)

from .job import Job, Target
from .persisting import Persisted
from .progress import watch
from .results import Results
from .runner import run
from .sealed import SealedDataset, TaskWork, work_of
from .session_facts import Sessions
from .spark_types import check_names_apart
from .tasks import Destination, Sides

_log = logging.getLogger(__name__)
_FROM_DRIVER = "driver"
"""The attempt of a put of the driver's own."""


class Shuffles:
    """The shuffle datasets of one driver. Thread-safe.

    Args:
        server: its credentials and options are used for all.
        lease_seconds: how long the datasets outlive a driver that died.
        host: an object that must live as long as the datasets, such as an embedded server.
        servers: None for ``server`` alone.
        executors: of a client whose tasks start the servers that they write to.
    """

    def __init__(
        self,
        server: RemoteServer,
        lease_seconds: float,
        copies: Copies | None = None,
        host: object = None,
        servers: ServerList | None = None,
        *,
        executors: ExecutorServers | None = None,
    ) -> None:
        self.server = server
        self.servers = servers or ServerList(server)
        self.lease_seconds = lease_seconds
        self.executors = executors
        self.copies = copies or Copies()
        self.sessions = Sessions()
        self.loop = DriverLoop(self.servers, lease_seconds, host)
        self.results = Results(self.loop)
        self.persisted = Persisted(self.loop, self.results)
        self._application: str | None = None
        self._end_application: Callable[[], None] = lambda: None
        self._at_close: dict[object, Callable[[], object]] = {}
        self._lock = threading.Lock()

    # Writing.

    def write(self, targets: Sequence[Target], holder: Holder, *, here: bool = False) -> list[SealedDataset]:
        """Run one job that writes all these datasets, and seal them, for ``holder``; if anything fails, all are
        dropped. ``here``: the driver runs it, where it can (``runner``).

        Raises as ``Pipeline.toDF``.
        """
        job = Job(targets, in_driver=here)
        for target in targets:
            for frame, _ in target.writes:
                check_names_apart(frame, target.label)
        if not here:
            check_interpreter(job.spark)
        self._check_offloads(targets)
        began_seconds = time.monotonic()
        rows: list[Any] = []

        def run_tasks(call: RunJob) -> list[Report]:
            rows[:] = self._run(job, call)
            return [*map(_report, rows)]

        planned = {each.task.dataset: PlannedDataset(each.task.partitions, each.offload) for each in targets}
        alone = all(target.alone for target in targets)
        with watch(self.servers, [*planned], job.label, job.spark) as progress:
            try:
                self.loop.write(
                    planned,
                    run_tasks,
                    holder,
                    candidates=self._candidates(alone=alone),
                    reads=_reads(targets),
                )
            except ServerLost as error:
                self._check_reached(error)
                raise
            seconds = time.monotonic() - began_seconds
            sealed = [
                self.sealed(
                    name,
                    target.task.declared.schema,
                    work_of(row for row in rows if row["dataset"] == name),
                    seconds,
                )
                for name, target in zip(planned, targets, strict=True)
            ]
            progress.ended(
                sum(each.rows for each in sealed),
                sum(each.size_bytes for each in sealed),
                sum(each.work.tasks for each in sealed),
            )
        return sealed

    def write_table(self, dataset: str, table: pa.Table, holder: Holder) -> SealedDataset:
        """Write a table from the driver, the only partition of a dataset, for ``holder``. Errors as :meth:`write`."""

        def put(call: RunJob) -> list[Report]:
            destination = self.destination(dataset, call, alone=True)
            (location,) = destination.servers
            server, places = self.servers.at(location), destination.places.get(location)
            command = PutCommand(
                dataset,
                producer=0,
                attempt=_FROM_DRIVER,
                generation=destination.generation,
                create=destination.create(1),
            )
            with PutStream(server, command, table.schema, places, server.writing.compression) as stream:
                for batch in table.to_batches():
                    stream.write(batch, 0)
                answer = stream.commit()
            start = ServerStart(server.location, answer["start"])
            locations = tuple(answer["locations"])
            return [Report(dataset, 0, _FROM_DRIVER, start, locations, answer["rows"], answer["bytes"])]

        self.loop.write({dataset: PlannedDataset(1)}, put, holder, candidates=self._candidates(alone=True))
        return self.sealed(dataset, table.schema)

    def _candidates(self, *, alone: bool) -> tuple[str, ...]:
        """The servers that tasks choose from; none if they start them. A dataset that one server holds, ``alone``, is
        not on those that tasks start.
        """
        if self.executors is None:
            return self.servers.locations
        return (self.servers.main.location,) if alone else ()

    def _run(self, job: Job, call: RunJob) -> list[Any]:
        if call.run > 1:
            _log.warning("the job runs again, for a server was lost: %s", job.label)
        destinations = {
            each.task.dataset: self.destination(each.task.dataset, call, alone=each.alone)
            for each in job.targets
        }
        try:
            return run(job, destinations, self.loop.keep_alive)
        except Exception as error:
            if (reason := reason_of(error)) is not None:
                raise InvalidRequest(reason) from error
            raise

    def destination(self, dataset: str, call: RunJob, *, alone: bool = False) -> Destination:
        """With all that the tasks need, so that none asks the server. ``alone``: one server holds the dataset."""
        executors, left = self.executors, call.left
        locations = call.locations or self.servers.locations
        if alone:
            locations = (owner_of(dataset, call.locations or [self.servers.main.location]),)
            executors, left = None, ()
        places = {
            each: self.loop.put_locations[each] for each in locations if each in self.loop.put_locations
        }
        generation = call.generations[dataset]
        return Destination(self.server, generation, locations, self.lease_seconds, places, executors, left)

    def _check_offloads(self, targets: Sequence[Target]) -> None:
        """Raise Forbidden if a server may not write to one of the prefixes: its seal would, after the job."""
        prefixes = [each.offload for each in targets if each.offload is not None]
        if prefixes and self.executors is not None:
            options = self.executors.options.get("offload_to") or ()
            options = options if isinstance(options, list | tuple) else (options,)
            allowed = [check_prefix(str(each), "offload_to") for each in options]
        elif prefixes:
            answers, _ = self.servers.answers(lambda server, **how: server.action("locations", **how))
            allowed = next(iter(answers.values())).get("offload_to", [])
        for prefix in prefixes:
            check_allowed(prefix, allowed)

    def _check_reached(self, error: ServerLost) -> None:
        """Raise Unavailable if the driver reaches none of the servers in executors."""
        if self.executors is not None and not self.servers.table.answering(self.servers.locations):
            raise Unavailable(
                "the driver reaches none of the servers that tasks have started: let it reach executors at all TCP "
                f"ports from 1024 on, or name a server that all reach ({error})"
            ) from error

    def sealed(
        self, dataset: str, schema: pa.Schema, work: TaskWork | None = None, seconds: float = 0.0
    ) -> SealedDataset:
        with self.loop.machine() as machine:
            generation, totals = machine.generation(dataset), machine.totals(dataset)
            portions, losses = machine.portions(dataset), machine.losses(dataset)
        on_servers = Counter[str]()
        for portion in portions:
            on_servers[portion.server.location] += portion.size_bytes
        server = self.servers.at(portions[0].server.location) if portions else self.server
        return SealedDataset(
            DatasetRef(server, dataset, generation, tuple(map(_portion, portions))),
            schema,
            tuple(totals.sizes().tolist()),
            totals.rows,
            totals.frames,
            work or TaskWork(tasks=0),
            seconds,
            tuple(error.message for error in losses),
            on_servers,
        )

    # Life.

    def application(self) -> str:
        """The driver's name in its host's files. The first call marks it as alive there, until the close."""
        with self._lock:
            if self._application is None:
                self._application = uuid.uuid4().hex if self.executors is None else self.executors.application
                try:
                    self._end_application = HostFiles(self.copies).own(self._application)
                except (OSError, Unavailable) as error:
                    # Its files here are then removed after ``host.IDLE_SECONDS``.
                    _log.warning("this host cannot be told that the driver lives: %s", error)
            return self._application

    def at_close(self, call: Callable[[], object]) -> Callable[[], object]:
        """Add a call for before the close drops the datasets; the returned function takes it back."""
        key = object()
        with self._lock:
            self._at_close[key] = call
        return partial(self._at_close.pop, key, None)

    def close(self) -> None:
        """Drop all datasets and stop renewing; a step that fails stops no other one. Twice is fine."""
        with contextlib.ExitStack() as ending:
            ending.callback(self.loop.close)
            ending.callback(_logged, self._end_application)
            with self._lock:
                calls = [*self._at_close.values()]
                self._at_close.clear()
            for call in calls:
                ending.callback(_logged, call)


def _logged(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 - the close goes on
        _log.exception("a call at the close of a client failed, and the close goes on")


def _reads(targets: Sequence[Target]) -> list[str]:
    sources: list[Any] = [task.reading.source for target in targets for _, task in target.writes]
    return [
        each.dataset
        for source in sources
        for each in ([source.left, source.right] if isinstance(source, Sides) else [source])
        if isinstance(each, DatasetRef)
    ]


def _portion(written: WrittenPortion) -> Portion:
    # A proxy, or a name that only containers know, may be between the server and the location that it says.
    reached = written.server.location
    locations = dict.fromkeys(
        reached if each == REUSE_CONNECTION else each for each in written.read_locations
    )
    return Portion(tuple(locations), written.filled, written.server.start)


def _report(row: Any) -> Report:
    location, start, locations = row["server"]
    return Report(
        row["dataset"],
        row["producer"],
        row["attempt"],
        ServerStart(location, start),
        tuple(locations),
        row["rows"],
        row["bytes"],
    )
