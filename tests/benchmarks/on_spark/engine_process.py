"""One other engine, in a process and an environment of its own: ``python -m …engine_process dask|daft|plain``.

It answers each line of its input, ``{"path": …, "rows": n, "partitions": n}`` in JSON, with a line ``answer {…}``:
rows, total and elements of ``functions.second`` over the result of the same job. Its first answer are its versions.

    dask     the P2P shuffle of two worker processes; the input is made in them, as ``spark.range`` makes it
    daft     its Ray runner with two CPUs and its Flight shuffle; the input are the Parquet files
    plain    two processes that read the Parquet files and call both functions, without any exchange: the floor
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.benchmarks.on_spark import functions as of

WORKERS = 2
TASKS = 8
Job = Callable[[dict[str, Any]], tuple[int, int, int]]


def main(engine: str) -> None:
    """Start the engine, and answer until the input ends."""
    versions, job = ENGINES[engine]()
    _answer({"versions": versions})
    for line in sys.stdin:
        rows, total, elements = job(json.loads(line))
        _answer({"rows": rows, "total": total, "elements": elements})


def _answer(body: dict[str, Any]) -> None:
    # The engines print, too: the word tells the lines apart.
    print(f"\nanswer {json.dumps(body)}", flush=True)


def _second(batches: of.Batches) -> tuple[int, int, int]:
    (row,) = next(of.second(batches)).to_pylist()
    return row["rows"], row["total"], row["elements"]


def plain() -> tuple[str, Job]:
    """Processes of a pool, each with a part of the files."""
    pool = multiprocessing.get_context("spawn").Pool(WORKERS)

    def job(asked: dict[str, Any]) -> tuple[int, int, int]:
        files = sorted(map(str, Path(asked["path"]).glob("*.parquet")))
        return _sum(pool.map(_plain_file, files, chunksize=1))

    return f"pyarrow {pa.__version__}", job


def _plain_file(path: str) -> tuple[int, int, int]:
    return _second(of.named(pq.ParquetFile(path).iter_batches(64 * 1024)))


def _sum(counted: Any) -> tuple[int, int, int]:
    rows, total, elements = (int(sum(column)) for column in zip(*counted, strict=True))
    return rows, total, elements


def dask() -> tuple[str, Job]:
    """A local cluster of two processes with a thread each."""
    import dask as library
    import dask.dataframe as dd
    import distributed
    import pandas as pd

    library.config.set({"dataframe.shuffle.method": "p2p"})
    cluster = distributed.LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None
    )
    distributed.Client(cluster)

    def of_arrow(table: Any) -> Any:
        return table.to_pandas(types_mapper=pd.ArrowDtype)

    def part(first: int, last: int) -> Any:
        ids = np.arange(first, last)
        digits = pc.utf8_lpad(pc.cast(pa.array(ids), pa.string()), 11, "0")
        columns = [ids, ids % 100, ids * 0.5, pc.binary_join_element_wise("user-", digits, "")]
        return of_arrow(pa.table(columns, names=["id", "quantity", "amount", "name"]))

    def first(frame: Any) -> Any:
        table = pa.Table.from_pandas(frame, preserve_index=False)
        return of_arrow(pa.Table.from_batches(of.named(iter(table.to_batches()))))

    def second(frame: Any) -> Any:
        table = pa.Table.from_pandas(frame, preserve_index=False)
        return pd.DataFrame([_second(iter(table.to_batches()))], columns=["rows", "total", "elements"])

    def job(asked: dict[str, Any]) -> tuple[int, int, int]:
        bounds = [number * asked["rows"] // TASKS for number in range(TASKS + 1)]
        made = dd.from_map(part, bounds[:-1], bounds[1:], meta=part(0, 1).iloc[:0])
        staged = made.map_partitions(first, meta=first(part(0, 1)).iloc[:0])
        moved = staged.shuffle("key", npartitions=asked["partitions"])
        found = moved.map_partitions(second, meta=second(first(part(0, 1))).iloc[:0]).compute()
        return _sum(found.itertuples(index=False))

    return f"dask {library.__version__}, pandas {pd.__version__}, pyarrow {pa.__version__}", job


def daft() -> tuple[str, Job]:
    """Ray on this machine, without a dashboard."""
    import daft as library
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    library.set_runner_ray()
    library.set_execution_config(shuffle_algorithm="flight_shuffle")
    types = library.DataType

    batch, column = library.func.batch, library.col

    def lengths(name: Any) -> Any:
        return pc.cast(pc.binary_length(name.to_arrow()), pa.int64())

    twice = batch(return_dtype=types.int64())(lambda quantity: pc.multiply(quantity.to_arrow(), 2))
    gross = batch(return_dtype=types.float64())(lambda amount: pc.multiply(amount.to_arrow(), 1.19))
    length = batch(return_dtype=types.int64())(lengths)

    def job(asked: dict[str, Any]) -> tuple[int, int, int]:
        read = library.read_parquet(f"{asked['path']}/*.parquet")
        staged = read.select(
            column("id").alias("key"),
            twice(column("quantity")).alias("twice"),
            gross(column("amount")).alias("gross"),
            column("name"),
        )
        moved = staged.repartition(asked["partitions"], "key")
        # The columns that the counts do not need are counted as well, or its optimizer would not send them.
        counted = moved.select(
            column("key"), column("twice"), column("gross"), length(column("name")).alias("length")
        )
        found = counted.agg(
            column("key").count().alias("rows"),
            column("key").sum().alias("total"),
            column("length").sum().alias("elements"),
            column("twice").max(),
            column("gross").max(),
        ).to_pydict()
        return found["rows"][0], found["total"][0], found["elements"][0]

    return f"daft {library.__version__}, ray {ray.__version__}, pyarrow {pa.__version__}", job


ENGINES: dict[str, Callable[[], tuple[str, Job]]] = {"plain": plain, "dask": dask, "daft": daft}

if __name__ == "__main__":
    main(sys.argv[1])
