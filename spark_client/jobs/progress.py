"""Shows on the driver how far a job is: its tasks, and how much of its datasets has arrived.

Rows and bytes are the servers' statistics, tasks are Spark's: those of the job's stages that have begun, of Spark
Classic by a tag of the job, of Spark Connect by what its client is told while it waits. Without an answer the last
numbers stay. At the end they are those of the seal: the rows that readers get, and the tasks that sent them.

A notebook (an IPython kernel) shows it in one output that is replaced, and stays with the totals. Elsewhere Spark draws
bars of its own: there is no thread and no call.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pyspark import SparkContext
from pyspark.sql import SparkSession

from flight_server.protocol import FlightShuffleError, dump_json
from spark_client.arrow import readable_size
from spark_client.connection import RemoteServer
from spark_client.pyspark_parts import jobs_with_tag
from spark_client.servers import ServerList

from .session_facts import is_pinned, job_tag

_INTERVAL_SECONDS = 0.25


class Tasks(NamedTuple):
    """Those of a job; none if the driver runs it itself, or Spark has not said anything of it yet."""

    done: int = 0
    running: int = 0
    total: int = 0

    def __str__(self) -> str:
        if self.done == self.total:
            return f"{self.total:,} task{'s' if self.total > 1 else ''}"
        return f"{self.done:,} of {self.total:,} tasks, {self.running:,} running"


class Progress:
    """The progress of a job. Thread-safe."""

    def __init__(self, label: str) -> None:
        self.text = label
        self._label = label
        self._began = time.monotonic()
        self._arrived = (0, 0)
        self._tasks = Tasks()
        self._totals = False
        self._lock = threading.Lock()

    def reached(self, arrived: tuple[int, int] | None, tasks: Tasks | None) -> None:
        """So many rows and bytes have arrived, and the tasks are so far; None: as before. After :meth:`ended` nothing
        changes.
        """
        with self._lock:
            if self._totals:
                return
            self._arrived, self._tasks = arrived or self._arrived, tasks or self._tasks
            (rows, size_bytes), seconds = self._arrived, time.monotonic() - self._began
            parts = [self._label, *([str(self._tasks)] if self._tasks.total else []), f"{rows:,} rows"]
            self.text = "  ".join([*parts, readable_size(size_bytes), f"{seconds:.0f} s"])

    def ended(self, rows: int, size_bytes: int, tasks: int) -> None:
        """So many rows and bytes have been sealed, which so many tasks have sent."""
        self.reached((rows, size_bytes), Tasks(tasks, 0, tasks))
        with self._lock:
            self._totals = True


@contextlib.contextmanager
def watch(
    servers: ServerList, datasets: Sequence[str], label: str, spark: SparkSession
) -> Iterator[Progress]:
    """Show progress under ``label`` while the block writes and seals the datasets, by a job of this thread."""
    progress = Progress(label)
    if not _in_notebook():
        yield progress
        return
    display, drawing, ended = _Notebook(), threading.Lock(), threading.Event()

    def follow(tasks: Callable[[], Tasks | None]) -> None:
        while not ended.wait(_INTERVAL_SECONDS):
            answers = [_arrived(servers, dataset) for dataset in datasets]
            arrived = [each for each in answers if each is not None]
            sums = sum(rows for rows, _ in arrived), sum(size for _, size in arrived)
            progress.reached(sums if len(arrived) == len(answers) else None, tasks())
            with drawing:
                # The server may have taken longer than the job.
                if not ended.is_set():
                    display.show(progress.text)

    with _tasks_of(spark) as tasks:
        thread = threading.Thread(target=follow, args=(tasks,), name="progress", daemon=True)
        thread.start()
        try:
            yield progress
        finally:
            with drawing:
                ended.set()
            thread.join(2 * _INTERVAL_SECONDS)
            display.show(progress.text)


def _in_notebook() -> bool:
    # Not imported: in a kernel it is loaded already.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class _Notebook:
    def __init__(self) -> None:
        from IPython.display import display  # type: ignore[import-not-found]  # noqa: PLC0415  # loaded already

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def show(self, text: str) -> None:
        self._handle.update({"text/plain": text}, raw=True)


def _arrived(servers: ServerList, dataset: str) -> tuple[int, int] | None:
    """Rows and bytes of all attempts, also of those that Spark will not accept; None without an answer."""
    body = dump_json({"dataset": dataset, "limit": 1})

    def ask(server: RemoteServer) -> tuple[int, int] | None:
        try:
            numbers = server.action("statistics", body, 2.0, once=True)["datasets"][dataset]
            arrived: tuple[int, int] = numbers["attempt_rows"], numbers["attempt_bytes"]
        except (FlightShuffleError, KeyError):
            return None
        return arrived

    answers = [each for each in servers.each(ask, servers.all_locations) if each is not None]
    return (sum(rows for rows, _ in answers), sum(size for _, size in answers)) if answers else None


@contextlib.contextmanager
def _tasks_of(spark: Any) -> Iterator[Callable[[], Tasks | None]]:
    """Gives the tasks of the jobs that this thread starts in the block; None where Spark does not say."""
    if "connect" in type(spark).__module__:
        waiting, last = threading.get_ident(), [Tasks()]

        # Spark Connect gives the arguments by these names, in the thread that waits for the operation.
        def tell(stages: Iterable[Any], inflight_tasks: int, **_: Any) -> None:
            if threading.get_ident() == waiting:
                numbers = [(each.num_completed_tasks, each.num_tasks) for each in stages]
                last[0] = Tasks(
                    sum(done for done, _ in numbers), inflight_tasks, sum(of for _, of in numbers)
                )

        spark.registerProgressHandler(tell)
        try:
            yield lambda: last[0]
        finally:
            spark.removeProgressHandler(tell)
    elif is_pinned(spark):
        context, tag = spark.sparkContext, f"progress-{uuid.uuid4().hex}"
        with job_tag(context, tag):
            yield lambda: _tasks_with(context, tag)
    else:
        yield lambda: None


def _tasks_with(context: SparkContext, tag: str) -> Tasks | None:
    """The tasks of the jobs with a tag; None without an answer, as of a session that has ended."""
    try:
        status = context.statusTracker()
        jobs = filter(None, map(status.getJobInfo, jobs_with_tag(context, tag)))
        ids = {stage for job in jobs for stage in job.stageIds}
        stages = [stage for stage in map(status.getStageInfo, sorted(ids)) if stage is not None]
    except Exception:  # noqa: BLE001 - a line for people ends no job
        return None
    # Not those that only may come: Spark skips a stage whose rows it has.
    begun = [stage for stage in stages if stage.numActiveTasks or stage.numCompletedTasks]
    return Tasks(
        sum(stage.numCompletedTasks for stage in begun),
        sum(stage.numActiveTasks for stage in begun),
        sum(stage.numTasks for stage in begun),
    )
