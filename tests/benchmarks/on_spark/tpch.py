"""The 22 queries of TPC-H from Parquet files to the answer, with Spark SQL and DuckDB beside the pipelines.

Scale factor 1, times ``--scale``. Spark and the pipelines have ``local[2]``, DuckDB as many threads as there are cores.
Spark SQL reads the files as views and does all in the JVM: nothing of these queries needs Python. Each answer is
compared with DuckDB's, as in the tests.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import duckdb

from tests.benchmarks.measure import Subject, measure, table
from tests.benchmarks.on_spark.data import tpch_parquet
from tests.benchmarks.on_spark.engines import Engines, Options, seconds
from tests.tpch.answers import QUERIES, Query, database, differences
from tests.tpch.data import TABLES
from tests.tpch.tables import Tables

ROUNDS = 3


def main(arguments: list[str]) -> None:
    """Print the table."""
    options = Options.parse("tpch", arguments, rounds=ROUNDS)
    options.announce(f"TPC-H, scale factor {options.scale:g}", f"local[2], DuckDB {duckdb.__version__}")
    folder = tpch_parquet(options.scale)
    measured: dict[str, list[Subject]] = {}
    with Engines() as engines, database(folder) as duck:
        for name in TABLES:
            engines.spark.read.parquet(f"{folder}/{name}.parquet").createOrReplaceTempView(name)
        tables = Tables(engines.shuffle, folder, options.scale)
        for query in QUERIES:
            if options.wants(query.name):
                measured[query.name] = _subjects(engines, duck, tables, query)
                measure(measured[query.name], options.rounds)
    medians = {name: [subject.median(seconds) for subject in subjects] for name, subjects in measured.items()}
    medians["all"] = [sum(column) for column in zip(*medians.values(), strict=True)]
    table(
        f"TPC-H, scale factor {options.scale:g}: seconds",
        ["query", "Spark SQL", "pipeline", "DuckDB", "pipeline x Spark SQL"],
        [
            [name, *(f"{value:.2f}" for value in found), f"{found[0] / found[1]:.2f}"]
            for name, found in medians.items()
        ],
    )


def _subjects(engines: Engines, duck: Any, tables: Tables, query: Query) -> list[Subject]:
    text = query.sql(tables.scale)
    expected = duck.sql(text).to_arrow_table()

    def pipeline() -> Any:
        with tables.shuffle.scope():
            return query.pipeline(tables).collect().read_all()

    def checked(run: Any) -> int:
        wrong = differences(run(), expected)
        if wrong:
            raise AssertionError(f"{query.name}: {wrong[:3]}")
        return 1

    runs = {
        "Spark SQL": lambda: engines.spark.sql(text).toArrow(),
        "pipeline": pipeline,
        "DuckDB": lambda: duck.sql(text).to_arrow_table(),
    }
    return [engines.subject(name, partial(checked, run)) for name, run in runs.items()]
