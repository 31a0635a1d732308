"""The longest time that another client's small put and get took while clients flooded the server
(``tests.load.floods``): a broken program in a loop, a scanner, an attacker with and without a token.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import pyarrow as pa

from tests.benchmarks.measure import MIB, conditions, console, table
from tests.load.floods import FLOODS, FloodProcess
from tests.support.bulk import get
from tests.support.raw_flight import RawFlight, path, put_messages
from tests.support.server_process import ServerProcess

TOKEN = "a-token-of-the-benchmark"
MEMORY_LIMIT = "256MiB"
SECONDS = 10.0
BATCH = pa.record_batch({"n": [1, 2, 3]})


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="floods")
    parser.add_argument("--only", nargs="+", choices=FLOODS, default=list(FLOODS))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args(arguments)
    console.print(f"[bold]Floods[/bold] · {options.seconds:g} s each · {conditions(1)}")
    rows = [_row(None, options.seconds), *(_row(name, options.seconds) for name in options.only)]
    table(
        f"the longest of another client's calls, --memory-limit {MEMORY_LIMIT}",
        [
            "flood",
            "sent",
            "calls",
            "put s",
            "get s",
            "new connection, HTTP s",
            "gRPC s",
            "failed",
            "peak MiB",
        ],
        rows,
    )


def _row(name: str | None, seconds: float) -> list[str]:
    console.print(f"  {name or 'none'} …")
    with ServerProcess.start(memory_limit=MEMORY_LIMIT, environment={"FLIGHT_SERVER_TOKEN": TOKEN}) as server:
        assert server.http is not None
        calls = _Calls(server)
        if name is None:
            calls.make(seconds)
            sent = 0
        else:
            with FloodProcess(name, server.location, server.http, TOKEN) as flood:
                calls.make(seconds)
                flood.end()
                sent = flood.sent
        peak = server.peak_rss_bytes() / MIB
        longest = [f"{each:.3f}" for each in calls.longest.values()]
        return [name or "none", str(sent), str(calls.made), *longest, str(calls.failed), f"{peak:.0f}"]


class _Calls:
    """A client beside the flood."""

    def __init__(self, server: ServerProcess) -> None:
        self.longest = dict.fromkeys(("put", "get", "http", "grpc"), 0.0)
        self.made = self.failed = 0
        self._server = server

    def make(self, seconds: float) -> None:
        """Put, get and drop a small dataset, over and over."""
        end = time.perf_counter() + seconds
        url = f"{self._server.http}/v1/datasets/small"
        with RawFlight(self._server.location, token=TOKEN) as raw:
            while time.perf_counter() < end:
                self._call("put", lambda: raw.put(put_messages(path("small"), [BATCH])))
                self._call("get", lambda: raw.get(b"small"))
                self._call("http", lambda: get(url, Authorization=f"Bearer {TOKEN}").table())
                self._call("grpc", self._on_new_connection)
                self._call("drop", lambda: raw.action("drop", {"dataset": "small"}))

    def _on_new_connection(self) -> None:
        with RawFlight(self._server.location, token=TOKEN) as other:
            other.get(b"small")

    def _call(self, name: str, call: Callable[[], object]) -> None:
        begun = time.perf_counter()
        self.made += 1
        try:
            call()
        except Exception as error:  # noqa: BLE001  # the table says how many
            self.failed += 1
            console.print(f"  {name}: {error}"[:200])
        if name in self.longest:
            self.longest[name] = max(self.longest[name], time.perf_counter() - begun)
