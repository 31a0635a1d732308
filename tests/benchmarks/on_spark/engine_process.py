"""Daft, in a process and an environment of its own.

It answers each line of its input, ``[path, partitions]`` in JSON, with a line ``answer [rows, total, elements]``, as
``functions.second`` counts them over the result of the same job. Its first answer are its versions.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import daft
import pyarrow as pa
import pyarrow.compute as pc
import ray
from daft import DataType, col

WORKERS = 2


def main() -> None:
    """Start Ray on this machine, without a dashboard, and answer until the input ends."""
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    daft.set_runner_ray()
    daft.set_execution_config(shuffle_algorithm="flight_shuffle")
    _answer(f"daft {daft.__version__}, ray {ray.__version__}, pyarrow {pa.__version__}")
    for line in sys.stdin:
        _answer(job(*json.loads(line)))


def _answer(body: Any) -> None:
    # Ray prints, too: the word tells the lines apart.
    print(f"\nanswer {json.dumps(body)}", flush=True)


batch, int64 = daft.func.batch, DataType.int64()
twice = batch(return_dtype=int64)(lambda quantity: pc.multiply(quantity.to_arrow(), 2))
gross = batch(return_dtype=DataType.float64())(lambda amount: pc.multiply(amount.to_arrow(), 1.19))
length = batch(return_dtype=int64)(lambda name: pc.cast(pc.binary_length(name.to_arrow()), pa.int64()))


def job(path: str, partitions: int) -> list[int]:
    """Rows, the sum of the keys, and how many bytes the texts have."""
    staged = daft.read_parquet(f"{path}/*.parquet").select(
        col("id").alias("key"),
        twice(col("quantity")).alias("twice"),
        gross(col("amount")).alias("gross"),
        col("name"),
    )
    # The columns that the counts do not need are counted as well, or its optimizer would not send them.
    counted = staged.repartition(partitions, "key").select(
        col("key"), col("twice"), col("gross"), length(col("name")).alias("length")
    )
    found = counted.agg(
        col("key").count().alias("rows"),
        col("key").sum().alias("total"),
        col("length").sum().alias("elements"),
        col("twice").max(),
        col("gross").max(),
    ).to_pydict()
    return [found["rows"][0], found["total"][0], found["elements"][0]]


if __name__ == "__main__":
    main()
