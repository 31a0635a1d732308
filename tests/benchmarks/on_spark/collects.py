"""A result of 10 M rows x 4 columns, one a string, in the driver: ``collect`` against ``toArrow`` and ``toPandas``.

    table      collect(…).read_all(), against toArrow()
    streamed   the batches of collect(…), each looked at and dropped
    pandas     collect(…).read_pandas(), against toPandas()

``driver MiB`` is by how much the driver's Python process grew at most over its size before the run, in the largest of
the rounds; ``streamed`` has a budget of ``BUDGET_BYTES`` for it (``Reading``). Spark's own ways hold the result in the
JVM besides.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_client.connection import Reading
from tests.benchmarks.measure import MIB, peak_resident_bytes, ratio, table
from tests.benchmarks.on_spark import data
from tests.benchmarks.on_spark import functions as of
from tests.benchmarks.on_spark.engines import COLUMNS, Engines, Options, compared, rows_of, same

NAME = "Parquet, Python stage"
ROWS = 10_000_000
ROW_BYTES = 40
BUDGET_BYTES = Reading().budget_bytes


@dataclass
class Memory:
    """The most by which this process grows in a run."""

    grown_bytes: int = 0
    _before: int = field(default=0, repr=False)

    def begin(self) -> None:
        """Have the kernel forget the peak."""
        Path("/proc/self/clear_refs").write_text("5")
        self._before = peak_resident_bytes("self")

    def end(self) -> None:
        self.grown_bytes = max(self.grown_bytes, peak_resident_bytes("self") - self._before)


def give_back() -> None:
    """Return what is free to the kernel."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


def _frame(engines: Engines, rows: int) -> Any:
    return engines.spark.read.parquet(str(data.named_parquet(rows))).mapInArrow(of.named, of.NAMED)


def _pipeline(engines: Engines, rows: int) -> Any:
    scan = engines.shuffle.scan(data.named_parquet(rows), spark=engines.spark)
    return scan.mapInArrow(of.named, of.NAMED)


def main(arguments: list[str]) -> None:
    """Print the table."""
    options = Options.parse("collects", arguments)
    options.announce("Collect to the driver")
    with Engines() as engines:
        rows = _measured(engines, max(1000, int(ROWS * options.scale)), options)
    budget = f"driver MiB (budget {BUDGET_BYTES // MIB})"
    table("Collect", [*COLUMNS[:5], "x toPandas", *COLUMNS[5:], budget], rows)


def _measured(engines: Engines, rows: int, options: Options) -> list[list[str]]:
    def counted(count: int, total: int) -> int:
        if (count, total) != (rows, rows * (rows - 1) // 2):
            raise AssertionError(f"{count} rows and a sum of {total}")
        return rows * ROW_BYTES

    def arrow(of_engine: Callable[[], Any]) -> int:
        result = of_engine()
        return counted(result.num_rows, pc.sum(result["key"]).as_py())

    def pandas(of_engine: Callable[[], Any]) -> int:
        result = of_engine()
        return counted(len(result), int(result["key"].sum()))

    def streamed() -> int:
        count = total = 0
        for batch in collected():
            count, total = count + batch.num_rows, total + pc.sum(batch.column("key")).as_py()
        return counted(count, total)

    def collected() -> pa.RecordBatchReader:
        return engines.shuffle.collect(_pipeline(engines, rows))

    def pipelined() -> Any:
        with engines.pipelined():
            return _frame(engines, rows).toArrow()

    runs: dict[str, Callable[[], int]] = {
        "toArrow": partial(arrow, lambda: _frame(engines, rows).toArrow()),
        "toArrow, pipelined": partial(arrow, pipelined),
        "toPandas": partial(pandas, lambda: _frame(engines, rows).toPandas()),
        "collect, table": partial(arrow, lambda: collected().read_all()),
        "collect, streamed": streamed,
        "collect, pandas": partial(pandas, lambda: collected().read_pandas()),
    }
    _check(engines, rows // 10)
    memory = {name: Memory() for name in runs}

    def remembered(name: str) -> int:
        memory[name].begin()
        size_bytes = runs[name]()
        memory[name].end()
        return size_bytes

    subjects = [
        engines.subject(name, partial(remembered, name), give_back, ours=name.startswith("collect"))
        for name in runs
    ]
    compared(engines, subjects, options)
    to_pandas = next(subject for subject in subjects if subject.name == "toPandas")
    return [
        [*row[:5], f"{ratio(subject, to_pandas):.2f}", *row[5:], f"{memory[row[1]].grown_bytes / MIB:.0f}"]
        for row, subject in zip(rows_of(NAME, subjects), subjects, strict=True)
    ]


def _check(engines: Engines, rows: int) -> None:
    """Raise unless both have the same rows."""

    def digest(result: pa.Table) -> Any:
        return next(of.digest(iter(result.to_batches()))).to_pylist()

    ours = engines.shuffle.collect(_pipeline(engines, rows)).read_all()
    same({"toArrow": digest(_frame(engines, rows).toArrow()), "collect": digest(ours)})
