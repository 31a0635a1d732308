"""The 22 queries of TPC-H from Parquet files to the answer, with Spark SQL and DuckDB beside the pipelines. ``plain``
are the same pipelines without what a user plans by hand: they scan all columns, filter in steps, and broadcast nothing.

Scale factor 1, times ``--scale``. Spark and the pipelines have ``local[2]``, DuckDB as many threads as there are cores.
Spark SQL reads the files as views and does all in the JVM: nothing of these queries needs Python. Each answer is
compared with DuckDB's, as in the tests.

``--engines`` chooses among them; ``--rounds 0`` runs each query once, cold. Where ``--memory-gib`` is given, it is the
limit of all processes together (``bounded_memory``); Spark's heap has 4 GiB, the server's data ``SERVER_MEMORY`` and
DuckDB ``DUCKDB_MEMORY`` of it at any scale, and what they have no room for goes to disk.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import duckdb

from tests.benchmarks.measure import MIB, Sample, Subject, console, measure, table
from tests.benchmarks.on_spark.bounded_memory import MemoryWatch, limited
from tests.benchmarks.on_spark.data import HOME, tpch_parquet
from tests.benchmarks.on_spark.engines import Engines, Options, seconds
from tests.tpch.answers import QUERIES, Query, database, differences
from tests.tpch.data import TABLES
from tests.tpch.tables import Tables, WholeTables

ROUNDS = 3
ENGINES = ("Spark SQL", "pipeline", "plain", "DuckDB")
SERVER_MEMORY = "1536MiB"
DUCKDB_MEMORY = "1GiB"
SPARK_PARTITIONS = {"sql__shuffle__partitions": "200"}
"""Spark's default, from scale factor 4 on; below, where its tasks would be many and tiny, those of all suites."""


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="tpch", add_help=False)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--memory-gib", type=float, help="of all processes together")
    given, others = parser.parse_known_args(arguments)
    options = Options.parse("tpch", others, rounds=ROUNDS)
    folder = tpch_parquet(options.scale)
    limit_bytes = int((given.memory_gib or 0) * (1 << 30))
    with contextlib.ExitStack() as stack:
        is_limited = stack.enter_context(limited(limit_bytes)) if limit_bytes else False
        within = f", within {given.memory_gib:g} GiB (a cgroup)" if is_limited else ""
        options.announce(
            f"TPC-H, scale factor {options.scale:g}",
            f"local[2], DuckDB {duckdb.__version__} with {DUCKDB_MEMORY}, server with {SERVER_MEMORY}{within}",
        )
        watch = stack.enter_context(contextlib.closing(MemoryWatch()))
        measured = _measured(options, folder, [name for name in ENGINES if name in given.engines])
    _print(options, measured)
    peak = ", ".join(f"{kind} {size / MIB:,.0f}" for kind, size in watch.peak.most_common())
    console.print(f"all processes at the worst moment: {watch.peak.total() / MIB:,.0f} MiB ({peak})")


def _measured(options: Options, folder: Any, engine_names: Sequence[str]) -> dict[str, list[Subject]]:
    found: dict[str, list[Subject]] = {}
    settings = SPARK_PARTITIONS if options.scale >= 4 else {}
    with Engines(server={"memory_limit": SERVER_MEMORY}, **settings) as engines, database(folder) as duck:
        duck.execute(f"set memory_limit = '{DUCKDB_MEMORY}'")
        duck.execute(f"set temp_directory = '{HOME / 'duckdb'}'")
        for name in TABLES:
            engines.spark.read.parquet(f"{folder}/{name}.parquet").createOrReplaceTempView(name)
        tables = Tables(engines.shuffle, folder, options.scale)
        for query in QUERIES:
            if options.wants(query.name):
                found[query.name] = _subjects(engines, duck, tables, query, engine_names)
                measure(found[query.name], options.rounds)
                _say(query.name, found[query.name])
    return found


def _median(subject: Subject) -> float:
    """Of the cold run, if there is no other."""
    if subject.samples or subject.cold is None:
        return subject.median(seconds)
    return subject.cold.seconds


def _say(name: str, subjects: Sequence[Subject]) -> None:
    """At once: a run at a large scale takes long, and may not come to its end."""
    console.print(f"{name} " + ", ".join(f"{each.name} {_median(each):.2f} s" for each in subjects))


def _print(options: Options, measured: dict[str, list[Subject]]) -> None:
    names = [subject.name for subject in next(iter(measured.values()))]
    medians = {name: [*map(_median, subjects)] for name, subjects in measured.items()}
    medians["all"] = [sum(column) for column in zip(*medians.values(), strict=True)]
    compares = {"Spark SQL", "pipeline"} <= {*names}
    table(
        f"TPC-H, scale factor {options.scale:g}: seconds",
        ["query", *names, *(["pipeline x Spark SQL"] if compares else [])],
        [
            [
                name,
                *(f"{value:.2f}" for value in found),
                *([f"{found[0] / found[1]:.2f}"] if compares else []),
            ]
            for name, found in medians.items()
        ],
    )
    cpu_seconds = [
        sum(_cpu_seconds(subjects[number]) for subjects in measured.values()) for number in range(len(names))
    ]
    shown = ", ".join(f"{name} {value:.1f}" for name, value in zip(names, cpu_seconds, strict=True))
    console.print(f"CPU seconds of all queries, all processes: {shown}")


def _cpu_seconds(subject: Subject) -> float:
    def of(sample: Sample) -> float:
        return sample.client_cpu_seconds

    if subject.samples or subject.cold is None:
        return subject.median(of)
    return of(subject.cold)


def _subjects(
    engines: Engines,
    duck: Any,
    tables: Tables,
    query: Query,
    engine_names: Sequence[str],
) -> list[Subject]:
    text = query.sql(tables.scale)
    expected = duck.sql(text).to_arrow_table()

    def pipeline(of: Tables) -> Any:
        with of.shuffle.scope():
            return query.pipeline(of).toArrow()

    def checked(name: str) -> int:
        wrong = differences(runs[name](), expected, query.order)
        if wrong:
            raise AssertionError(f"{query.name}: {wrong[:3]}")
        return 1

    runs: dict[str, Callable[[], Any]] = {
        "Spark SQL": lambda: engines.spark.sql(text).toArrow(),
        "pipeline": partial(pipeline, tables),
        "plain": partial(pipeline, WholeTables(tables.shuffle, tables.folder, tables.scale)),
        "DuckDB": lambda: duck.sql(text).to_arrow_table(),
    }
    return [engines.subject(name, partial(checked, name)) for name in engine_names]
