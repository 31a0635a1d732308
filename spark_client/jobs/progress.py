"""Shows on the driver how much of a dataset has arrived while tasks write it.

While tasks write, the numbers are the server's statistics, the only source on both Spark Classic and Spark Connect.
Without an answer the last ones stay. The last numbers are those of the seal: the rows that readers get.

Where
    ==============================================  =======================================================
    a notebook (an IPython kernel)                  one output that is replaced, and stays with the totals
    a terminal, with rich                           a bar, gone at the end
    a terminal where Spark draws a bar of its own   one line at the end: two bars would overwrite each other
    (``spark.ui.showConsoleProgress``), or no rich
    anywhere else, as in Spark's tasks              nothing: no thread and no call
    ==============================================  =======================================================
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from flight_server.protocol import DatasetRequest, FlightShuffleError
from spark_client.arrow import readable_size
from spark_client.connection import RemoteServer
from spark_client.servers import ServerList

from .session_facts import is_on

_INTERVAL_SECONDS = 0.25


class _Display(Protocol):
    """An output. ``live`` says whether ``show`` replaces the last text."""

    live: bool

    def show(self, text: str) -> None: ...

    def close(self, text: str) -> None: ...


class Progress:
    """The progress of a job. Thread-safe."""

    def __init__(self, label: str) -> None:
        self.text = label
        self._label = label
        self._began = time.monotonic()
        self._totals = False
        self._lock = threading.Lock()

    def arrived(self, rows: int, size_bytes: int) -> None:
        """So much has arrived; ignored after :meth:`ended`."""
        with self._lock:
            if not self._totals:
                seconds = time.monotonic() - self._began
                self.text = f"{self._label}  {rows:,} rows  {readable_size(size_bytes)}  {seconds:.0f} s"

    def ended(self, rows: int, size_bytes: int) -> None:
        """So much has been sealed."""
        self.arrived(rows, size_bytes)
        with self._lock:
            self._totals = True


@contextlib.contextmanager
def watch(servers: ServerList, datasets: Sequence[str], label: str, spark: Any = None) -> Iterator[Progress]:
    """Show progress under ``label`` while the block writes and seals the datasets; ``spark`` is the job's session."""
    progress, display = Progress(label), _display(spark)
    if display is None:
        yield progress
        return
    drawing, ended = threading.Lock(), threading.Event()

    def follow() -> None:
        while not ended.wait(_INTERVAL_SECONDS):
            found = [_arrived(servers, dataset) for dataset in datasets]
            arrived = [each for each in found if each is not None]
            if len(arrived) == len(found):
                size_bytes, rows = (sum(each) for each in zip(*arrived, strict=True))
                progress.arrived(rows, size_bytes)
            with drawing:
                # The server may have taken longer than the job.
                if not ended.is_set():
                    display.show(progress.text)

    thread = threading.Thread(target=follow, name="progress", daemon=True) if display.live else None
    if thread is not None:
        thread.start()
    try:
        yield progress
    finally:
        with drawing:
            ended.set()
        if thread is not None:
            thread.join(2 * _INTERVAL_SECONDS)
        display.close(progress.text)


def _display(spark: Any) -> _Display | None:
    # Not imported: in a kernel it is loaded already.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        return _Notebook()
    if not sys.stdout.isatty():
        return None
    spark_draws = spark is not None and is_on(spark, "spark.ui.showConsoleProgress")
    return _Line() if spark_draws or importlib.util.find_spec("rich") is None else _Bar()


class _Bar:
    """rich's bar without a total, because the final size is not known."""

    live = True

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415  # optional

        columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
        self._progress = Progress(*columns, transient=True)
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def show(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def close(self, text: str) -> None:  # noqa: ARG002  # the bar disappears
        self._progress.stop()


class _Line:
    live = False

    def show(self, text: str) -> None:
        """Show nothing before the end."""

    def close(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


class _Notebook:
    live = True

    def __init__(self) -> None:
        from IPython.display import display  # type: ignore[import-not-found]  # noqa: PLC0415  # loaded already

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def show(self, text: str) -> None:
        self._handle.update({"text/plain": text}, raw=True)

    close = show


def _arrived(servers: ServerList, dataset: str) -> tuple[int, int] | None:
    """Bytes and rows of all attempts, also of those that Spark will not accept; None without an answer."""
    body = DatasetRequest(dataset).encode()

    def ask(server: RemoteServer) -> tuple[int, int] | None:
        try:
            attempts = server.action("statistics", body, 2.0, once=True)["datasets"][dataset]["attempts"]
        except (FlightShuffleError, KeyError):
            return None
        return sum(each["bytes"] for each in attempts), sum(each["rows"] for each in attempts)

    answers = [each for each in servers.each(ask, servers.asked) if each is not None]
    return (sum(size for size, _ in answers), sum(rows for _, rows in answers)) if answers else None
