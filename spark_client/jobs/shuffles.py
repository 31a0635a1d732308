"""The driver's shuffle datasets, and the jobs that write them.

Guarantee: a dataset that :meth:`Shuffles.write` returns is sealed with exactly the attempts whose reports reached the
driver, one for each task of the job. If the job, the seal or the driver fails, the dataset is dropped at once, or by
the server when its lease ends. Leases are renewed until the drop.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from flight_server.protocol import Unavailable
from spark_client.connection import RemoteServer
from spark_client.executors import ExecutorServers, check_interpreter
from spark_client.hosts import Copies, HostFiles
from spark_client.servers import ServerList

from .held_datasets import HeldDatasets
from .job import Job, Target
from .persisting import AfterCollection, Persisted
from .progress import watch
from .results import Results
from .runner import run
from .sealed import SealedDataset
from .session_facts import Sessions
from .spark_types import check_names_apart
from .write_job import WriteJob

_log = logging.getLogger(__name__)


class Shuffles(HeldDatasets):
    """The shuffle datasets of one driver. ``servers`` None is for ``server`` alone."""

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
        super().__init__(server, servers or ServerList(server), lease_seconds, host, executors=executors)
        self.copies = copies or Copies()
        self._application: str | None = None
        self._end_application: Callable[[], None] = lambda: None
        self.sessions = Sessions()
        self.results = Results(self.drop, self.discard)
        self.after_collection = AfterCollection()
        self.persisted = Persisted(self._is_there, self._forget, self.results.unshare, self.after_collection)
        self._at_close: dict[object, Callable[[], object]] = {}
        self._lock = threading.Lock()

    def write(self, targets: Sequence[Target], *, here: bool = False) -> list[SealedDataset]:
        """Run one job that writes all these datasets, and seal them; if anything fails, all are dropped. ``here``: the
        driver runs it, where it can (``runner``).

        Raises as ``Pipeline.toDF``.
        """
        job = Job(targets, in_driver=here)
        for target in targets:
            for rows, _ in target.writes:
                check_names_apart(rows, target.label)
        if not here:
            check_interpreter(job.spark)
        datasets = [target.task.dataset for target in targets]
        try:
            with watch(self.servers, datasets, job.label) as progress:
                written = WriteJob(self, targets, partial(run, job, keep=self.keep_alive)).run()
                progress.ended(sum(each.rows for each in written), sum(each.size_bytes for each in written))
        except BaseException:
            for dataset in datasets:
                self.discard(dataset)
            raise
        else:
            return written

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
        super().close()

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
