"""The client's merge of 1, 16 and 256 streams, with a fast, a slow and an idle consumer.

Each case runs in a client process of its own, so that its peak resident size is its own. A slow consumer
pauses 1 ms after each batch; an idle one takes nothing until every stream has been drained. The budget is
64 MiB of decoded bytes for 256 MiB of data: what does not fit goes to a scratch file, and the streams are
drained all the same.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

from pyarrow import flight

from flight_server.memory.pool import MemoryPool
from flight_server.protocol import CreateRequest
from spark_client.connection import RemoteServer
from spark_client.lanes.partition_stream import partition_streams
from spark_client.merge.merged import MergedStream, merge
from tests.benchmarks.measure import MIB, conditions, console, table
from tests.benchmarks.peers import batch_of
from tests.support.server_process import ServerProcess

TOTAL_BYTES = 256 * MIB
BUDGET_BYTES = 64 * MIB
STREAMS = (1, 16, 256)
CONSUMERS = ("fast", "slow", "idle")
DEADLINE_SECONDS = 300.0


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="merging")
    parser.add_argument("--streams", type=int, nargs="*", default=STREAMS)
    options = parser.parse_args(arguments)
    console.print(f"[bold]Merging[/bold] · {conditions(1)}; budget {BUDGET_BYTES // MIB} MiB")
    rows = []
    with ServerProcess.start(memory_limit="2GiB") as server:
        for streams in options.streams:
            _put(server.location, f"merge-{streams}", streams)
            for consumer in CONSUMERS:
                output = subprocess.run(
                    [
                        sys.executable,
                        "-m",
                        "tests.benchmarks.merging",
                        server.location,
                        str(streams),
                        consumer,
                    ],
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=DEADLINE_SECONDS,
                ).stdout
                seen = json.loads(output)
                rows.append(
                    [
                        str(streams),
                        consumer,
                        f"{TOTAL_BYTES / 1e9 / seen['seconds']:.2f}",
                        f"{seen['pool_peak_bytes'] / MIB:.0f}",
                        f"{seen['rss_peak_bytes'] / MIB:.0f}",
                        f"{seen['rss_before_bytes'] / MIB:.0f}",
                        f"{seen['spilled_bytes'] / MIB:.0f}",
                    ]
                )
    columns = ["streams", "consumer", "GB/s", "pool peak", "RSS peak", "RSS before", "spilled"]
    table(f"merge of {TOTAL_BYTES // MIB} MiB; sizes in MiB", columns, rows)


def _put(location: str, dataset: str, streams: int) -> None:
    per_stream = TOTAL_BYTES // streams
    batch = batch_of(min(MIB, per_stream))
    with flight.connect(location) as client:
        list(client.do_action(("create", CreateRequest(dataset, partitions=streams).encode())))
        for index in range(streams):
            writer, _ = client.do_put(flight.FlightDescriptor.for_path(dataset, str(index)), batch.schema)
            for _ in range(per_stream // batch.nbytes):
                writer.write_batch(batch)
            writer.close()


def _drained(merged: MergedStream) -> None:
    """Wait until the merge holds all that the streams send; no consumer takes any of it."""
    before = -1
    while True:
        held_bytes = merged._threads.pool.used_bytes + merged.spilled_bytes
        if held_bytes == before and held_bytes:
            return
        before = held_bytes
        time.sleep(0.5)


def _consume(location: str, streams: int, consumer: str) -> None:
    server = RemoteServer(location)
    endpoints = server.flight_info(f"merge-{streams}").endpoints
    rss_before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    pool = MemoryPool(BUDGET_BYTES, "merge")
    started = time.perf_counter()
    got_bytes = 0
    with merge(partition_streams(server, endpoints), pool=pool) as merged:
        if consumer == "idle":
            _drained(merged)
        for batch in merged:
            got_bytes += batch.nbytes
            if consumer == "slow":
                time.sleep(0.001)
        spilled_bytes = merged.spilled_bytes
    seconds = time.perf_counter() - started
    server.close()
    assert got_bytes == TOTAL_BYTES, got_bytes
    seen = {
        "seconds": seconds,
        "pool_peak_bytes": pool.peak_bytes,
        "rss_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "rss_before_bytes": rss_before_bytes,
        "spilled_bytes": spilled_bytes,
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    _consume(sys.argv[1], int(sys.argv[2]), sys.argv[3])
