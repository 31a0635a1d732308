"""Steps over 8,000 columns: seconds of the driver's CPU that planning takes.

``process_time`` is of this process: what Spark's analyzer takes is in the JVM, and is the rest of the elapsed time.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_client import ShuffleClient
from tests.benchmarks.measure import conditions, console, table
from tests.support.server_process import ServerProcess
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ["step", "driver's CPU seconds", "elapsed seconds"]


def main(arguments: list[str]) -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(prog="wide")
    parser.add_argument("--columns", type=int, default=8000)
    parser.add_argument("--only", default="", help="steps whose names have this text")
    parser.add_argument("--profile", action="store_true", help="print where each step's time goes")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as scratch,
        ServerProcess.start(http_port=0) as server,
        local_session() as spark,
        ShuffleClient(server.location) as client,
    ):
        names = [f"c{number}" for number in range(options.columns)]
        pq.write_table(pa.table({name: [1, 2] for name in names}), Path(scratch) / "wide.parquet")
        client.scan(str(Path(scratch) / "wide.parquet")).filter(pc.field("c0") > 0)
        client.pipeline(spark.range(1)).exchange(2, "id").toDF().collect()
        rows = []
        for name, step in _steps(client, scratch, names, spark.read.parquet(scratch)).items():
            profile = cProfile.Profile() if options.profile and options.only in name else None
            began, began_cpu = time.monotonic(), time.process_time()
            if profile is None:
                step()
            else:
                profile.runcall(step)
            took = [time.process_time() - began_cpu, time.monotonic() - began]
            rows.append([name, *(f"{seconds:.2f}" for seconds in took)])
            console.print("  ".join(rows[-1]))
            if profile is not None:
                pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    table(f"Planning with {options.columns:,} columns", COLUMNS, rows)
    console.print(conditions(1))


def _steps(
    client: ShuffleClient, folder: str, names: list[str], frame: DataFrame
) -> dict[str, Callable[[], Any]]:
    """Each step alone, over what those before it made."""
    made: dict[str, Any] = {}

    def kept(name: str, make: Callable[[], Any]) -> Callable[[], Any]:
        def step() -> None:
            made[name] = make()

        return step

    half = len(names) // 2
    other = {f"d{number}": pc.field(name) for number, name in enumerate(names)}
    return {
        "frame's schema": lambda: frame.schema,
        "scan, first": lambda: client.scan(folder),
        "scan": kept("scan", lambda: client.scan(folder)),
        "pipeline": kept("pipeline", lambda: client.pipeline(frame)),
        "distinct": kept("distinct", lambda: made["scan"].distinct(partitions=2)),
        "distinct by one": lambda: made["scan"].distinct("c0", partitions=2),
        "aggregate, a function of each": lambda: made["scan"].aggregate(
            dict.fromkeys(names[1:], "sum"), by="c0", partitions=2
        ),
        "exchange": kept("exchange", lambda: made["scan"].exchange(2, "c0")),
        "exchange by half of the columns": lambda: made["scan"].exchange(2, names[:half]),
        "exchange, sorted": lambda: made["scan"].exchange(2, "c0", sort="c1"),
        "filter": lambda: made["scan"].filter(pc.field("c0") > 0),
        "select": kept("select", lambda: made["scan"].select(*names)),
        "select, expressions": kept("renamed", lambda: made["scan"].select(k=pc.field("c0"), **other)),
        "mapInArrow": lambda: made["scan"].mapInArrow(lambda batches: batches, frame.schema),
        "join": lambda: made["scan"].join(made["renamed"].select("d1", c0="k"), "c0"),
        "join of as many": lambda: made["scan"].join(
            made["renamed"].select(*list(other)[:half], c0="k"), "c0", "left"
        ),
        "union": lambda: made["scan"].union(made["scan"]),
        "toDF": kept("df", lambda: made["exchange"].toDF().schema),
        "collect": lambda: made["exchange"].collect().read_all(),
        "collect of distinct": lambda: made["distinct"].collect().read_all(),
    }
