"""The driver's shuffle datasets, and the jobs that write them.

Guarantee: a dataset that :meth:`Shuffles.write` returns is sealed with exactly the attempts whose reports reached the
driver, one for each task of the job. If the job, the seal or the driver fails, the dataset is dropped at once, or by
the server when its lease ends. Leases are renewed until the drop.

Names of jobs
    On Spark Classic a name is the job's description in the web UI, in the place of the user's own, which is set again
    afterwards. Spark Connect has no descriptions: there it is a tag of the operation, for ``interruptTag`` and the
    UI's page of sessions.

Ctrl-C
    PySpark means to cancel the job that the driver waits for. But on Spark Classic its handler asks over the connection
    on which the main thread waits, which fails, and notebooks replace the handler. A job that goes on keeps its tasks'
    cores and writes to a dataset that is gone. Spark Connect's client cancels its operation itself.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from flight_server.protocol import (
    CreateRequest,
    DatasetRequest,
    FlightShuffleError,
    InvalidRequest,
    Kind,
    NotFound,
    SealRequest,
    Unavailable,
)
from spark_client.connection import LeaseKeeper, RemoteServer
from spark_client.executors import Portable, ShownFromUsers, check_interpreter
from spark_client.hosts import Copies, HostFiles
from spark_client.merge import DatasetRef

from .after_collection import AfterCollection
from .persisting import Persisted
from .progress import watch
from .results import Results
from .sealed import SealedDataset
from .sessions import Sessions
from .task_reports import REPORT_DDL, accepted, work_of
from .tasks import WriteTask

_log = logging.getLogger(__name__)
_DESCRIPTION = "spark.job.description"


@dataclass(frozen=True)
class Target:
    """A dataset that a job writes: ``writes`` are DataFrames, each with the task over each of its partitions, in which
    the generation is filled in. ``label`` is for the progress bar, ``name`` for Spark (*Names of jobs*).
    """

    writes: Sequence[tuple[DataFrame, WriteTask]]
    label: str
    name: str | None = None

    @property
    def task(self) -> WriteTask:
        """The first one; dataset, partitions and schema are the same in all."""
        return self.writes[0][1]


class Shuffles:
    """The shuffle datasets of one driver.

    Args:
        lease_seconds: how long they outlive a driver that died.
        host: an object that must live as long as the datasets, such as an embedded server.
    """

    def __init__(
        self, server: RemoteServer, lease_seconds: float, copies: Copies | None = None, host: object = None
    ) -> None:
        self.server = server
        # The lease-renewal thread refers to ``self``, so the host lives while results outlive their client.
        self._host = host
        self.lease_seconds = lease_seconds
        self.copies = copies or Copies()
        self._application: str | None = None
        self._end_application: Callable[[], None] = lambda: None
        self._keeper = LeaseKeeper(self._renew, lease_seconds)
        self.sessions = Sessions()
        self.results = Results(self.drop, self.discard)
        self.after_collection = AfterCollection()
        self.persisted = Persisted(self._is_there, self._forget, self.results.unshare, self.after_collection)
        self._at_close: dict[object, Callable[[], object]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def create(self, dataset: str, schema: pa.Schema, partitions: int) -> tuple[str, tuple[str, ...]]:
        """Create a shuffle dataset whose lease is renewed from now on; its generation, and the server's places for puts
        on the bulk lane. Raises InvalidRequest: the client is closed.
        """
        if self._closed:
            raise InvalidRequest("the ShuffleClient of this pipeline is closed; make a new one")
        request = CreateRequest(
            dataset,
            Kind.SHUFFLE,
            schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
            partitions=partitions,
            lease_seconds=self.lease_seconds,
        )
        answer = self.server.action("create", request.encode())
        generation = str(answer["generation"])
        self._keeper.add(dataset, generation)
        return generation, tuple(answer.get("put_locations", ()))

    def seal(
        self, dataset: str, generation: str, attempts: dict[int, str]
    ) -> tuple[DatasetRef, dict[str, Any]]:
        """Make exactly these attempts readable, atomically; the dataset, and its ``rows``, ``bytes``, ``frames`` and
        ``partition_bytes``, the latter of partitions with rows, by their numbers as text. Twice is fine.
        """
        answer = self.server.action("seal", SealRequest(dataset, generation, attempts).encode())
        return DatasetRef.sealed(self.server, dataset, generation, answer), answer

    def write(self, targets: Sequence[Target]) -> list[SealedDataset]:
        """Run one job that writes all these datasets, and seal them; if anything fails, all are dropped.

        Raises as ``Pipeline.toDF``.
        """
        began = time.monotonic()
        spark = targets[0].writes[0][0].sparkSession
        check_interpreter(spark)
        generations: dict[str, str] = {}
        try:
            parts = [part for target in targets for part in self._begun(target, generations)]
            label = ", ".join(target.label for target in targets)
            name = ", ".join(target.name for target in targets if target.name is not None) or None
            with watch(self.server, [*generations], label, spark) as progress:
                with _naming_jobs(spark, name), _cancelled_by_ctrl_c(spark):
                    reports = reduce(DataFrame.unionAll, parts).collect()
                written = [
                    self._ended(
                        target, generations, [row for row in reports if row["target"] == number], began
                    )
                    for number, target in enumerate(targets)
                ]
                progress.ended(sum(each.rows for each in written), sum(each.size_bytes for each in written))
        except BaseException:
            for dataset in generations:
                self.discard(dataset)
            raise
        else:
            return written

    def _begun(self, target: Target, generations: dict[str, str]) -> list[DataFrame]:
        first = target.task
        generation, places = self.create(first.dataset, first.declared.schema, first.partitions)
        number, parts = len(generations), len(target.writes)
        generations[first.dataset] = generation
        found = []
        for part, (rows, task) in enumerate(target.writes):
            # With the places, so that no task asks the server.
            filled = replace(
                task, generation=generation, places=places, target=number, part=part, parts=parts
            )
            found.append(rows.mapInArrow(Portable(ShownFromUsers(filled.run)), REPORT_DDL))
        return found

    def _ended(
        self, target: Target, generations: dict[str, str], reports: list[Any], began: float
    ) -> SealedDataset:
        task = target.task
        found = self.seal(task.dataset, generations[task.dataset], accepted(reports))
        seconds = time.monotonic() - began
        return SealedDataset.of(
            *found, task.declared.schema, task.partitions, work=work_of(reports), seconds=seconds
        )

    def drop(self, dataset: str) -> None:
        """Drop a dataset of this driver. Twice is fine."""
        generation = self._keeper.datasets().get(dataset)
        if generation is not None:
            self._keeper.remove(dataset)
            with contextlib.suppress(NotFound):
                self.server.action("drop", DatasetRequest(dataset, generation).encode(), once=True)

    def discard(self, dataset: str) -> None:
        """As :meth:`drop`; a dataset of a server that cannot be reached ends with its lease."""
        try:
            self.drop(dataset)
        except FlightShuffleError as error:
            _log.info("%s stays until its lease ends: %s", dataset, error.message)

    def application(self) -> str:
        """The driver's name in its host's files. The first call marks it as alive there, until the close."""
        with self._lock:
            if self._application is None:
                self._application = uuid.uuid4().hex
                try:
                    self._end_application = HostFiles(self.copies).own(self._application)
                except (OSError, Unavailable) as error:
                    # Its files here are then removed after ``Copies.idle_seconds``.
                    _log.warning("this host cannot be told that the driver lives: %s", error)
            return self._application

    def at_close(self, call: Callable[[], object]) -> Callable[[], object]:
        """Add a call, which must not raise, for before the close drops the datasets; the returned function takes it
        back.
        """
        key = object()
        with self._lock:
            self._at_close[key] = call
        return partial(self._at_close.pop, key, None)

    def close(self) -> None:
        """Drop all datasets and stop renewing. Twice is fine."""
        with self._lock:
            self._closed = True
            calls = [*self._at_close.values()]
            self._at_close.clear()
            self.results.clear()
        for call in calls:
            call()
        self.after_collection.close()
        self._end_application()
        for dataset in self._keeper.datasets():
            self.discard(dataset)
        self._keeper.close()

    def _is_there(self, sealed: SealedDataset) -> bool:
        source = sealed.source
        try:
            self._renew(source.dataset, source.generation)
        except NotFound:
            self._forget(source.dataset)
            return False
        return True

    def _forget(self, dataset: str) -> None:
        self.results.forget(dataset)
        self.discard(dataset)

    def _renew(self, dataset: str, generation: str) -> None:
        body = DatasetRequest(dataset, generation).encode()
        self.server.action("renew", body, timeout_seconds=self.lease_seconds / 6, once=True)


@contextlib.contextmanager
def _naming_jobs(spark: Any, name: str | None) -> Iterator[None]:
    """The jobs that this thread starts in the block have the name; None leaves them as they are."""
    if name is None:
        yield
    elif "connect" in type(spark).__module__:
        tag = name.replace(",", " ")  # which separates tags
        theirs = tag in spark.getTags()
        spark.addTag(tag)
        try:
            yield
        finally:
            if not theirs:
                spark.removeTag(tag)
    else:
        context = spark.sparkContext
        before = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, name)
        try:
            yield
        finally:
            context.setLocalProperty(_DESCRIPTION, before)


@contextlib.contextmanager
def _cancelled_by_ctrl_c(spark: Any) -> Iterator[None]:
    """A ``KeyboardInterrupt`` in the block cancels the session's jobs, as PySpark's handler would. Their tasks may run
    for some seconds more.
    """
    try:
        yield
    except KeyboardInterrupt:
        # Not by a tag of the job: a new connection, which Spark Classic needs now, does not know the old one's tags.
        if "connect" not in type(spark).__module__:
            # A session that has ended cannot be asked, and has no jobs.
            with contextlib.suppress(Exception):
                spark.interruptAll()
        raise
