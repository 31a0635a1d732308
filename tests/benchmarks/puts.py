"""DoPut from 1, 4 and 16 producers at once, against pyarrow's own server taking in the same stream."""

from __future__ import annotations

import argparse
import itertools
import threading
from collections.abc import Callable
from functools import partial

from pyarrow import flight

from tests.benchmarks.measure import MIB, Subject, conditions, console, measure, ratio, table
from tests.benchmarks.peers import PeerProcess, batch_of
from tests.support.server_process import ServerProcess

SIZE_BYTES = MIB
TOTAL_BYTES = 256 * MIB
PRODUCERS = (1, 4, 16)


def _put(location: str, dataset: str, count: int) -> None:
    batch = batch_of(SIZE_BYTES)
    with flight.connect(location) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path(dataset), batch.schema)
        for _ in range(count):
            writer.write_batch(batch)
        writer.close()


def _producers(location: str, count: int, producers: int, names: Callable[[], str]) -> int:
    threads = [
        threading.Thread(target=_put, args=(location, names(), count // producers)) for _ in range(producers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count * SIZE_BYTES


def _put_and_drop(
    location: str, control: flight.FlightClient, count: int, producers: int, names: Callable[[], str]
) -> int:
    written_bytes = _producers(location, count, producers, names)
    for info in control.list_flights():
        list(control.do_action(("drop", b'{"dataset":"%s"}' % info.descriptor.path[0])))
    return written_bytes


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="puts")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    console.print(
        f"[bold]Puts[/bold] · {conditions(options.rounds)}; frames of 1 MiB; ours checks each frame, and keeps it"
    )
    count = TOTAL_BYTES // SIZE_BYTES
    serial = itertools.count()

    def name() -> str:
        return f"put-{next(serial)}"

    rows = []
    for producers in PRODUCERS:
        with (
            PeerProcess("flight", SIZE_BYTES, 1) as cpp,
            ServerProcess.start(memory_limit="2GiB") as ours,
            flight.connect(ours.location) as control,
        ):
            peer = Subject("peer", partial(_producers, cpp.location, count, producers, name), cpp.pid)
            mine = Subject(
                "gRPC lane", partial(_put_and_drop, ours.location, control, count, producers, name), ours.pid
            )
            measure([peer, mine], options.rounds)
            rows += [
                [
                    str(producers),
                    subject.name,
                    f"{subject.median(lambda sample: sample.gb_per_second):.2f}",
                    f"{ratio(subject, peer):.2f}",
                    f"{subject.median(lambda sample: sample.server_cpu_seconds_per_gb):.2f}",
                ]
                for subject in (peer, mine)
            ]
    table("DoPut, 256 MiB", ["producers", "subject", "GB/s", "x peer", "server CPU s/GB"], rows)
