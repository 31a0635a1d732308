"""Readers with pyarrow's own client, many in one process, that all begin in the same moment.

    python -m tests.load.crowd grpc://127.0.0.1:8815 d 100

says ``ready`` when its threads stand waiting, begins at the first line of standard input, and answers with
one JSON list: for each reader when it began (its first message had come), when it ended, how many batches
it got, and its error or null. Times are those of the machine's monotonic clock, the same for all processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from pyarrow import flight

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Read:
    """What became of one reader; ``began`` is None when nothing came."""

    began: float | None
    ended: float
    batches: int
    error: str | None


def put(location: str, batches: int, rows: int = 1 << 17) -> None:
    """Dataset ``d`` of as many batches, of 1 MiB unless another number of rows is given."""
    batch = pa.record_batch({"x": np.zeros(rows)})
    with flight.connect(location) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("d"), batch.schema)
        for _ in range(batches):
            writer.write_batch(batch)
        writer.close()


def read(location: str, dataset: str) -> Read:
    """One reader, from its own connection to its end."""
    began, batches, error = None, 0, None
    try:
        with flight.connect(location) as client:
            stream = client.do_get(flight.Ticket(dataset.encode()))
            began = time.monotonic()
            for _ in stream:
                batches += 1
    except Exception as problem:  # noqa: BLE001  # the test reports any error
        error = f"{type(problem).__name__}: {problem}"
    return Read(began, time.monotonic(), batches, error)


class CrowdProcess:
    """One process of readers; also a context manager that makes sure it is gone."""

    def __init__(self, location: str, dataset: str, readers: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.load.crowd", location, dataset, str(readers)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """Return when all its threads wait for the start."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def begin(self) -> None:
        """Let them begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("begin\n")
        self._process.stdin.flush()

    def reads(self) -> list[Read]:
        """What became of them, when all have ended."""
        assert self._process.stdout is not None
        return [Read(**each) for each in json.loads(self._process.stdout.readline())]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """See the module's text."""
    location, dataset, readers = sys.argv[1:]
    begin = threading.Event()
    reads: list[Read] = []

    def one() -> None:
        begin.wait()
        reads.append(read(location, dataset))

    threads = [threading.Thread(target=one) for _ in range(int(readers))]
    for thread in threads:
        thread.start()
    print("ready", flush=True)  # what the parent waits for
    sys.stdin.readline()
    begin.set()
    for thread in threads:
        thread.join()
    print(json.dumps([vars(each) for each in reads]), flush=True)  # the answer


if __name__ == "__main__":
    main()
