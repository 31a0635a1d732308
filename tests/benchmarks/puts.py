"""Puts from 1, 4 and 16 producers at once, against pyarrow's own server taking in the same streams.

``peer`` is pyarrow's server written to by pyarrow's client; ``gRPC lane`` is ours written to by the same
client, with DoPut; ``bulk lane`` is ours written to by the public client (``ShuffleClient.put``). The producers are
processes, as Spark's tasks are, and put 256 MiB together, or 64 MiB each where that is more.
"""

from __future__ import annotations

import argparse
from functools import partial

from pyarrow import flight

from tests.benchmarks.crowd import (
    PUT_FRAME_BYTES,
    Crowd,
    Work,
    put_with_client,
    put_with_pyarrow,
)
from tests.benchmarks.measure import MIB, Subject, conditions, console, measure, ratio, table
from tests.benchmarks.peers import PeerProcess
from tests.support.server_process import ServerProcess

TOTAL_BYTES = 256 * MIB
LEAST_BYTES = 64 * MIB  # of one producer: less would be about opening connections
PRODUCERS = (1, 4, 16)


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="puts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--producers", type=int, nargs="*", default=PRODUCERS)
    options = parser.parse_args(arguments)
    console.print(
        f"[bold]Puts[/bold] · {conditions(options.rounds)}; frames of 1 MiB; ours checks each frame, and keeps it"
    )
    rows: list[list[str]] = []
    for producers in options.producers:
        rows += _rows(producers, options.rounds)
    table(
        "Puts",
        ["producers", "subject", "GB/s", "x peer", "server CPU s/GB", "client CPU s/GB"],
        rows,
    )


def _rows(producers: int, rounds: int) -> list[list[str]]:
    with (
        PeerProcess("flight", PUT_FRAME_BYTES, 1) as cpp,
        ServerProcess.start(memory_limit="4GiB") as ours,
        flight.connect(ours.location) as control,
        Crowd(producers) as crowd,
    ):

        def put(work: Work, location: str) -> int:
            return crowd.run(work, location, "put", max(TOTAL_BYTES // producers, LEAST_BYTES))

        def drop_all() -> None:
            for info in control.list_flights():
                list(control.do_action(("drop", b'{"dataset":"%s"}' % info.descriptor.path[0])))

        def ours_by(name: str, work: Work) -> Subject:
            return Subject(name, partial(put, work, ours.location), ours.pid, crowd.cpu_seconds, drop_all)

        peer = Subject("peer", partial(put, put_with_pyarrow, cpp.location), cpp.pid, crowd.cpu_seconds)
        subjects = [
            peer,
            ours_by("gRPC lane", put_with_pyarrow),
            ours_by("bulk lane", put_with_client),
        ]
        measure(subjects, rounds)
        return [
            [
                str(producers),
                subject.name,
                f"{subject.median(lambda sample: sample.gb_per_second):.2f}",
                f"{ratio(subject, peer):.2f}",
                f"{subject.median(lambda sample: sample.server_cpu_seconds_per_gb):.2f}",
                f"{subject.median(lambda sample: sample.client_cpu_seconds_per_gb):.2f}",
            ]
            for subject in subjects
        ]
