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
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from flight_server.protocol import (
    CreateRequest,
    InvalidRequest,
    Kind,
    SealRequest,
    Unavailable,
)
from spark_client.connection import RemoteServer
from spark_client.executors import ExecutorServers, Portable, ShownFromUsers, check_interpreter
from spark_client.hosts import Copies, HostFiles
from spark_client.merge import DatasetRef
from spark_client.pyspark_parts import interrupts_kept
from spark_client.servers import ServerList

from .after_collection import AfterCollection
from .driver_tasks import reports_of_driver
from .held_datasets import HeldDatasets
from .local_properties import local_property
from .numbered_tasks import numbered
from .persisting import Persisted
from .progress import watch
from .results import Results
from .sealed import SealedDataset
from .session_facts import is_on
from .sessions import Sessions
from .size_checks import without_needless_checks
from .spark_types import check_names_apart
from .task_reports import REPORT
from .write_job import Target, WriteJob

_log = logging.getLogger(__name__)
_DESCRIPTION = "spark.job.description"


class Shuffles:
    """The shuffle datasets of one driver.

    Args:
        lease_seconds: how long they outlive a driver that died.
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
        self.executors = executors
        self.servers = servers or ServerList(server)
        self._held = HeldDatasets(server, self.servers, lease_seconds, host)
        self.lease_seconds = lease_seconds
        self.copies = copies or Copies()
        self._application: str | None = None
        self._end_application: Callable[[], None] = lambda: None
        self._report_frames: dict[str, DataFrame] = {}
        self.sessions = Sessions()
        self.results = Results(self.drop, self.discard)
        self.after_collection = AfterCollection()
        self.persisted = Persisted(self._is_there, self._forget, self.results.unshare, self.after_collection)
        self._at_close: dict[object, Callable[[], object]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def place(self, dataset: str) -> RemoteServer:
        """The server that holds, or is to hold, a dataset that one server holds."""
        return self._held.place(dataset)

    def create(self, dataset: str, schema: pa.Schema, partitions: int) -> tuple[str, tuple[str, ...]]:
        """Create a shuffle dataset whose lease is renewed from now on; its generation, and the server's places for puts
        on the bulk lane. Raises InvalidRequest: the client is closed.
        """
        self._check_open()
        request = CreateRequest(
            dataset,
            Kind.SHUFFLE,
            schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
            partitions=partitions,
            lease_seconds=self.lease_seconds,
        )
        answer = self.place(dataset).action("create", request.encode())
        generation = str(answer["generation"])
        self._held.created(dataset, generation)
        return generation, tuple(answer.get("put_locations", ()))

    def seal(
        self, dataset: str, generation: str, attempts: dict[int, str]
    ) -> tuple[DatasetRef, dict[str, Any]]:
        """Make exactly these attempts readable, atomically; the dataset, and its ``rows``, ``bytes``, ``frames`` and
        ``partition_bytes``, the latter of partitions with rows, by their numbers as text. Twice is fine.
        """
        server = self.place(dataset)
        answer = server.action("seal", SealRequest(dataset, generation, attempts).encode())
        return DatasetRef.sealed(server, dataset, generation, answer), answer

    def begin_spread(self, dataset: str, generation: str, offload: str | None = None) -> None:
        """A dataset over several servers is written under this generation from now on, which the puts create; the one
        of an earlier run is dropped. ``offload``: the prefix below which the seal keeps it, too.

        Raises:
            InvalidRequest: the client is closed.
        """
        self._check_open()
        self.discard(dataset)
        self._held.begin_spread(dataset, generation, offload)

    def written_on(self, dataset: str, locations: Sequence[str]) -> None:
        """At most these servers hold the dataset."""
        self._held.written_on(dataset, locations)

    def sealed_on(self, dataset: str, portions: Mapping[str, str]) -> None:
        """The dataset is sealed: each portion, by its start, on this server."""
        self._held.sealed_on(dataset, portions)

    def write(self, targets: Sequence[Target], *, here: bool = False) -> list[SealedDataset]:
        """Run one job that writes all these datasets, and seal them; if anything fails, all are dropped. ``here``: the
        driver runs it, where it can (``driver_tasks``).

        Raises as ``Pipeline.toDF``.
        """
        spark = targets[0].writes[0][0].sparkSession
        for target in targets:
            for rows, _ in target.writes:
                check_names_apart(rows, target.label)
        if not here:
            check_interpreter(spark)
        datasets = [target.task.dataset for target in targets]
        label = ", ".join(target.label for target in targets)
        name = ", ".join(target.name for target in targets if target.name is not None) or None
        try:
            with watch(self.servers, datasets, label) as progress:

                def collect(filled: Sequence[Target]) -> list[Any]:
                    if here and (found := reports_of_driver(spark, filled, label)) is not None:
                        return found
                    check_interpreter(spark)
                    naming, cancelling = _naming_jobs(spark, name), _cancelled_by_ctrl_c(spark)
                    if (run := numbered(spark, filled)) is not None:
                        with naming, cancelling:
                            return run()
                    parts = [
                        rows.mapInArrow(Portable(ShownFromUsers(task.run)), REPORT)
                        for target in filled
                        for rows, task in target.writes
                    ]
                    reports = self._keeping_executors(spark, reduce(DataFrame.unionAll, parts), filled)
                    inputs = [
                        rows for target in filled for rows, task in target.writes if task.source is None
                    ]
                    unchecked = without_needless_checks(reports, len(parts), inputs)
                    with naming, cancelling, unchecked:
                        return reports.collect()

                written = WriteJob(self, targets, collect).run()
                progress.ended(sum(each.rows for each in written), sum(each.size_bytes for each in written))
        except BaseException:
            for dataset in datasets:
                self.discard(dataset)
            raise
        else:
            return written

    def _keeping_executors(
        self, spark: SparkSession, reports: DataFrame, targets: Sequence[Target]
    ) -> DataFrame:
        """The reports of tasks, by way of a shuffle of Spark's where it takes idle executors away: it keeps those whose
        shuffled rows a DataFrame may still read, here until the datasets are dropped and the driver's JVM has collected
        its garbage.
        """
        if not any(each.task.executors for each in targets) or not is_on(
            spark, "spark.dynamicAllocation.enabled"
        ):
            return reports
        reports = reports.repartition(1)
        self._report_frames.update((each.task.dataset, reports) for each in targets)
        return reports

    def drop(self, dataset: str) -> None:
        """See :meth:`HeldDatasets.drop`."""
        self._report_frames.pop(dataset, None)
        self._held.drop(dataset)

    def drop_at(self, location: str, dataset: str, generation: str) -> None:
        """See :meth:`HeldDatasets.drop_at`."""
        self._held.drop_at(location, dataset, generation)

    def discard(self, dataset: str) -> None:
        """As :meth:`drop`; a dataset of a server that cannot be reached ends with its lease."""
        self._report_frames.pop(dataset, None)
        self._held.discard(dataset)

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
        self._report_frames.clear()
        self._held.close()

    def _is_there(self, sealed: SealedDataset) -> bool:
        whole = self.is_whole(sealed)
        if not whole:
            self._forget(sealed.source.dataset)
        return whole

    def _forget(self, dataset: str) -> None:
        self.results.forget(dataset)
        self.discard(dataset)

    def has_lost(self, datasets: Iterable[SealedDataset]) -> bool:
        """Whether there are several servers, and one has lost a part of any of these datasets."""
        return self.servers.several and not all(map(self.is_whole, datasets))

    def is_whole(self, sealed: SealedDataset) -> bool:
        """See :meth:`HeldDatasets.is_whole`."""
        return self._held.is_whole(sealed)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("the ShuffleClient of this pipeline is closed; make a new one")


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
        with local_property(spark.sparkContext, _DESCRIPTION, name):
            yield


@contextlib.contextmanager
def _cancelled_by_ctrl_c(spark: Any) -> Iterator[None]:
    """A ``KeyboardInterrupt`` in the block cancels the session's jobs, as PySpark's handler would. Their tasks may run
    for some seconds more.
    """
    try:
        with interrupts_kept():
            yield
    except KeyboardInterrupt:
        # Not by a tag of the job: a new connection, which Spark Classic needs now, does not know the old one's tags.
        if "connect" not in type(spark).__module__:
            # A session that has ended cannot be asked, and has no jobs.
            with contextlib.suppress(Exception):
                spark.interruptAll()
        raise
