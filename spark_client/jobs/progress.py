"""Shows on the driver how much of a dataset has arrived while tasks write it.

While tasks write, the numbers are the server's statistics, the only source on both Spark Classic and Spark Connect.
Without an answer the last ones stay. The last numbers are those of the seal: the rows that readers get.

A notebook (an IPython kernel) shows it in one output that is replaced, and stays with the totals. Elsewhere Spark draws
bars of its own: there is no thread and no call.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from flight_server.protocol import DatasetRequest, FlightShuffleError
from spark_client.arrow import readable_size
from spark_client.connection import RemoteServer
from spark_client.servers import ServerList

_INTERVAL_SECONDS = 0.25


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
def watch(servers: ServerList, datasets: Sequence[str], label: str) -> Iterator[Progress]:
    """Show progress under ``label`` while the block writes and seals the datasets."""
    progress = Progress(label)
    if not _in_notebook():
        yield progress
        return
    display, drawing, ended = _Notebook(), threading.Lock(), threading.Event()

    def follow() -> None:
        while not ended.wait(_INTERVAL_SECONDS):
            answers = [_arrived(servers, dataset) for dataset in datasets]
            arrived = [each for each in answers if each is not None]
            if len(arrived) == len(answers):
                size_bytes, rows = (sum(each) for each in zip(*arrived, strict=True))
                progress.arrived(rows, size_bytes)
            with drawing:
                # The server may have taken longer than the job.
                if not ended.is_set():
                    display.show(progress.text)

    thread = threading.Thread(target=follow, name="progress", daemon=True)
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
