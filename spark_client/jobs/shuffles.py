"""The driver's shuffle datasets: creates them, runs the job that writes them, seals the accepted attempts, drops them.

Guarantee: a dataset that :meth:`Shuffles.write` returns is sealed with exactly the attempts whose reports reached the
driver, one for each task of the job. If the job, the seal or the driver fails, the dataset is dropped at once, or by
the server when its lease ends.

The leases are renewed until the drop (see :mod:`spark_client.connection.leases`).
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
from spark_client.lanes import places_of

from .progress import watch
from .readable import Readable
from .results import Results
from .tasks import REPORT_DDL, WriteTask

_log = logging.getLogger(__name__)


class Shuffles:
    """The shuffle datasets of one driver.

    Args:
        server: the server that holds them.
        lease_seconds: how long they outlive a driver that died.
        copies: how hosts keep copies of broadcasts.
        host: an object that must live as long as the datasets, such as an embedded server; referenced from here.
    """

    def __init__(
        self, server: Server, lease_seconds: float, copies: Copies | None = None, host: object = None
    ) -> None:
        self.server = server
        # The lease-renewal thread refers to this object: so the host also lives while results outlive their client.
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

    def create(self, dataset: str, schema: pa.Schema, partitions: int) -> str:
        """Create a shuffle dataset whose lease is renewed from now on; its generation.

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
        generation = str(self.server.action("create", request.encode())["generation"])
        self._keeper.add(dataset, generation)
        return generation

    def seal(self, dataset: str, generation: str, attempts: dict[int, str]) -> dict[str, Any]:
        """Make exactly these attempts readable, atomically; ``rows`` and ``bytes`` of the whole dataset.

        Twice with the same attempts is fine.
        """
        return self.server.action("seal", SealRequest(dataset, generation, attempts).encode())

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
        """Run the job that writes ``rows`` to a new dataset, and seal it; its :class:`Readable` and its totals.

        ``task`` makes the job's :class:`WriteTask` from the generation; ``label`` is for the progress bar.

        Raises:
            InvalidRequest: Spark would start its tasks with an interpreter that cannot run them.
            FlightShuffleError: the server refused, or could not be reached.
            pyspark.errors.PySparkException: the job failed.
        """
        check_interpreter(rows.sparkSession)
        generation = self.create(dataset, schema, partitions)
        try:
            # So that no task asks the server.
            job = replace(task(generation), places=places_of(self.server))
            with watch(self.server, dataset, label, rows.sparkSession):
                reports = rows.mapInArrow(Portable(job.run), REPORT_DDL).collect()
            totals = self.seal(dataset, generation, accepted(reports))
            return Readable.find(self.server, dataset, generation), totals
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
        """As :meth:`drop`, but a server that cannot be reached raises nothing: the dataset then ends with its lease."""
        try:
            self.drop(dataset)
        except FlightShuffleError as error:
            _log.info("%s stays until its lease ends: %s", dataset, error.message)

    def application(self) -> str:
        """The driver's name in its host's files. The first call marks it there as alive until the close."""
        with self._lock:
            if self._application is None:
                self._application = uuid.uuid4().hex
                try:
                    self._end_application = HostFiles(self.copies).own(self._application)
                except (OSError, Unavailable) as error:
                    # Its files on this host are then removed after they have been idle, see ``Copies.idle_seconds``.
                    _log.warning("this host cannot be told that the driver lives: %s", error)
            return self._application

    def at_close(self, call: Callable[[], object]) -> None:
        """Call ``call`` when this is closed, before the datasets are dropped; it must not raise."""
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
    """The accepted attempt of each producer, from the rows that the tasks reported.

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
