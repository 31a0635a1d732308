"""``python -m tests.benchmarks [suite …] [-- options of the suite]``: all suites in turn, or those named.

The modules of the packages are compiled, as those of an installed wheel are, also where ``PYTHONDONTWRITEBYTECODE`` is
set: each fresh Python worker would compile them for 0.6 CPU seconds.
"""

from __future__ import annotations

import compileall
import importlib
import sys
from pathlib import Path

import flight_server
import spark_client

SUITES = {
    "fan_out": "one dataset, many readers, both lanes, against pyarrow's C++ server and raw TCP",
    "puts": "many producers, against pyarrow's C++ server",
    "joining": "time to the first batch, a thousand readers",
    "memory": "bounded memory: readers that are fast, slow, leave, crash or never come",
    "large_partition": "peak memory of a task that groups a partition of 1.5 GB, within the budget and far over it",
    "idle": "what one, two and four idle workers take: resident size, anonymous and file-backed, CPU time, wake-ups",
    "trees": "a broadcast of 1 GiB to 50 hosts, simulated by the real tree; no server runs",
    "floods": "the longest of a small client's calls while others flood the server, of nine kinds",
    "on_spark.pipelines": "input -> Python -> exchange -> Python, against Spark's own shuffle, and where the time goes",
    "on_spark.writes": "the same, and then Parquet files, against Spark's own writer",
    "on_spark.small_jobs": "the same for 1,000 rows",
    "on_spark.first_runs": "the first runs of a fresh session against its later ones, and where their time goes",
    "on_spark.groups": "a function for each of 20,000 groups, of one input and of two, against applyInArrow",
    "on_spark.joins": "Python -> join of 10 M with 2 M rows -> Python, against Spark's join",
    "on_spark.several_servers": "an exchange over 1, 2 and 4 servers of this machine: seconds and CPU",
    "on_spark.wire_bytes": "bytes that cross between 1, 2 and 4 hosts for each byte of an exchange; needs root",
    "on_spark.skew": "half of all rows in one key: seconds, and the largest task",
    "on_spark.many_partitions": "2,000 partitions x 200 tasks of small data",
    "on_spark.tpch": "the 22 queries of TPC-H at any scale factor, with Spark SQL and DuckDB, in a limit of memory",
    "on_spark.collects": "10 M rows in the driver, against toArrow and toPandas",
    "changelogs.open_loop": "updates for ever, compacted: latency, memory and disk of each second",
    "changelogs.sizes": "rows, disk and memory under bursts, holds, change data and four writers",
    "changelogs.change_data": "the server's CPU for updates that retract the old row, against the same without",
    "changelogs.ingest": "10 M updates over 1 M keys, against DuckDB, which computes it at once",
    "changelogs.micro_batch": "a stream joined to 100 k to 10 M rows: Spark's broadcast join against lookup",
    "changelogs.feedback": "a query of Spark takes back the bids that lost: bids in, rows needed and stored over time",
    "on_spark.other_engines": "the same from Parquet on Daft, which it installs under build/",
}


def main() -> int:
    """Run the suites."""
    arguments = sys.argv[1:]
    options: list[str] = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, options = arguments[:cut], arguments[cut + 1 :]
    unknown = [name for name in arguments if name not in SUITES]
    if unknown:
        print(f"unknown suite {', '.join(unknown)}; there are:", file=sys.stderr)
        for name, text in SUITES.items():
            print(f"  {name:22} {text}", file=sys.stderr)
        return 2
    for package in (flight_server, spark_client):
        compileall.compile_dir(Path(str(package.__file__)).parent, quiet=1)
    for name in arguments or SUITES:
        importlib.import_module(f"tests.benchmarks.{name}").main(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
