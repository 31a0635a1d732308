"""A progress bar on the driver's terminal while tasks write a dataset.

Shows what has arrived at the server, from the server's own statistics; nothing else is known of a job on
Spark Classic and Spark Connect alike. There is no bar, no thread and no call unless standard output is a
terminal and rich is installed. A server that does not answer leaves the bar as it was.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Iterator

from flight_server.errors import FlightShuffleError
from flight_server.protocol import DatasetRequest
from spark_client.transport import Server

_INTERVAL_SECONDS = 0.25


@contextlib.contextmanager
def watch(server: Server, dataset: str, label: str) -> Iterator[None]:
    """A bar called ``label`` for as long as the block runs."""
    if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
        yield
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415  # optional

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeElapsedColumn(),
    )
    ended = threading.Event()
    with Progress(*columns, transient=True) as bar:
        line = bar.add_task(label, total=None, rows=0)

        def follow() -> None:
            while not ended.wait(_INTERVAL_SECONDS):
                if (arrived := _arrived(server, dataset)) is not None:
                    bar.update(line, completed=arrived[0], rows=arrived[1])

        thread = threading.Thread(target=follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(2 * _INTERVAL_SECONDS)


def _arrived(server: Server, dataset: str) -> tuple[int, int] | None:
    """Bytes and rows of all attempts so far, those that will not be accepted included."""
    try:
        body = DatasetRequest(dataset).encode()
        arrived = server.action("statistics", body, timeout_seconds=2.0)["datasets"][dataset]
        return arrived["attempts_bytes"], arrived["attempts_rows"]
    except (FlightShuffleError, KeyError):
        return None
