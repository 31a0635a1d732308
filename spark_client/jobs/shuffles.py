"""The driver's shuffle datasets, and the jobs that write them.

Guarantee: a dataset that :meth:`Shuffles.write` returns is sealed with exactly the attempts whose reports reached the
driver, one for each task of the job. If the job, the seal or the driver fails, the dataset is dropped at once, or by
the server when its lease ends. Leases are renewed until the drop.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
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
from spark_client.connection import LeaseKeeper, Server
from spark_client.executors import Portable, check_interpreter
from spark_client.hosts import Copies, HostFiles

from .cancelling import cancelled_by_ctrl_c
from .progress import watch
from .readable import Readable
from .results import Results
from .tasks import REPORT_DDL, WriteTask

_log = logging.getLogger(__name__)


class Shuffles:
    """The shuffle datasets of one driver.

    Args:
        lease_seconds: how long they outlive a driver that died.
        host: an object that must live as long as the datasets, such as an embedded server.
    """

    def __init__(
        self, server: Server, lease_seconds: float, copies: Copies | None = None, host: object = None
    ) -> None:
        self.server = server
        # The lease-renewal thread refers to ``self``, so the host lives while results outlive their client.
        self._host = host
        self.lease_seconds = lease_seconds
        self.copies = copies or Copies()
        self._application: str | None = None
        self._end_application: Callable[[], None] = lambda: None
        self._keeper = LeaseKeeper(self._renew, lease_seconds)
        self.results = Results(self.drop, self.discard)
        self._at_close: list[Callable[[], object]] = []
        self._closed = False
        self._lock = threading.Lock()

    def create(self, dataset: str, schema: pa.Schema, partitions: int) -> tuple[str, tuple[str, ...]]:
        """Create a shuffle dataset whose lease is renewed from now on; its generation, and the server's places for
        puts on the bulk lane.

        Raises:
            InvalidRequest: the client is closed.
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
    ) -> tuple[Readable, dict[str, Any]]:
        """Make exactly these attempts readable, atomically; the dataset, and its ``rows``, ``bytes`` and
        ``partition_bytes``, the latter of partitions with rows, by their numbers as text. Twice is fine.
        """
        answer = self.server.action("seal", SealRequest(dataset, generation, attempts).encode())
        return Readable.sealed(self.server, dataset, generation, answer), answer

    def write(
        self,
        dataset: str,
        partitions: int,
        schema: pa.Schema,
        rows: DataFrame,
        task: Callable[[str], WriteTask],
        *,
        label: str,
    ) -> tuple[Readable, dict[str, Any]]:
        """Run the job that writes ``rows`` to a new dataset, and seal it; the dataset and its totals.

        ``task`` makes the job's :class:`WriteTask` from the generation; ``label`` is for the progress bar. Raises as
        ``Pipeline.toDF``.
        """
        check_interpreter(rows.sparkSession)
        generation, places = self.create(dataset, schema, partitions)
        try:
            # So that no task asks the server.
            job = replace(task(generation), places=places)
            spark = rows.sparkSession
            with watch(self.server, dataset, label, spark), cancelled_by_ctrl_c(spark):
                reports = rows.mapInArrow(Portable(job.run), REPORT_DDL).collect()
            return self.seal(dataset, generation, accepted(reports))
        except BaseException:
            self.discard(dataset)
            raise

    def drop(self, dataset: str) -> None:
        """Drop a dataset of this driver. Twice is fine."""
        generation = self._keeper.datasets().get(dataset)
        if generation is not None:
            self._keeper.remove(dataset)
            with contextlib.suppress(NotFound):
                self.server.action("drop", DatasetRequest(dataset, generation).encode())

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

    def at_close(self, call: Callable[[], object]) -> None:
        """Add a call, which must not raise, for before the close drops the datasets."""
        with self._lock:
            self._at_close.append(call)

    def close(self) -> None:
        """Drop all datasets and stop renewing. Twice is fine."""
        with self._lock:
            self._closed = True
            calls, self._at_close = self._at_close, []
            self.results.clear()
        for call in calls:
            call()
        self._end_application()
        for dataset in self._keeper.datasets():
            self.discard(dataset)
        self._keeper.close()

    def _renew(self, dataset: str, generation: str) -> None:
        body = DatasetRequest(dataset, generation).encode()
        self.server.action("renew", body, timeout_seconds=self.lease_seconds / 6)


def accepted(reports: Iterable[Any]) -> dict[int, str]:
    """The accepted attempt of each producer, from the tasks' reports.

    Raises:
        FlightShuffleError: two attempts of one producer; Spark never accepts two.
    """
    attempts: dict[int, str] = {}
    for report in reports:
        if report["producer"] in attempts:
            raise FlightShuffleError(
                f"Spark reported producer {report['producer']} twice; nothing was sealed"
            )
        attempts[report["producer"]] = report["attempt"]
    return attempts
