"""One job by several subjects in turn, the first of which is Spark; every answer of every run is compared with its."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from spark_client.pipeline import Pipeline
from tests.benchmarks.measure import Subject, table
from tests.benchmarks.on_spark.engines import COLUMNS, Engines, Options, compared, rows_of, same

SPARK = "Spark"
FRAME, SCAN = "pipeline", "pipeline, scan"
Run = Callable[[Engines, int], Any]
"""The answer of a job over so many rows, small and the same for all subjects."""


@dataclass(frozen=True)
class Contest:
    """A job of ``rows`` rows, and who does it. What a run leaves on the server is released before the run ends."""

    name: str
    rows: int
    runs: dict[str, Run]


def files(engines: Engines, kind: str, path: Path) -> Pipeline:
    """The Parquet files as a pipeline, which with ``SCAN`` reads them itself."""
    if kind == SCAN:
        return engines.shuffle.scan(path, spark=engines.spark)
    return engines.shuffle.pipeline(engines.spark.read.parquet(str(path)))


def both(ours: Callable[[str, Engines, int], Any]) -> dict[str, Run]:
    """Our runs: from a DataFrame, and by a scan."""
    return {kind: partial(ours, kind) for kind in (FRAME, SCAN)}


def report(title: str, contests: Sequence[Contest], options: Options, terms: str = "local[2]") -> None:
    """Measure those that are wanted, and print a table of them."""
    options.announce(title, terms)
    rows: list[list[str]] = []
    with Engines() as engines:
        for contest in contests:
            if options.wants(contest.name):
                scaled = replace(contest, rows=max(1000, int(contest.rows * options.scale)))
                rows += rows_of(contest.name, _measured(engines, scaled, options))
    table(title, COLUMNS, rows)


def _measured(engines: Engines, contest: Contest, options: Options) -> list[Subject]:
    small = max(1000, contest.rows // 10)
    same({name: _run(engines, run, small) for name, run in contest.runs.items()})
    expected: dict[str, Any] = {}

    def checked(name: str) -> int:
        answer = _run(engines, contest.runs[name], contest.rows)
        same({SPARK: expected.setdefault(SPARK, answer), name: answer})
        return contest.rows

    subjects = [engines.subject(name, partial(checked, name), ours=name != SPARK) for name in contest.runs]
    compared(engines, subjects, options)
    return subjects


def _run(engines: Engines, run: Run, rows: int) -> Any:
    with engines.shuffle.scope():
        return run(engines, rows)
