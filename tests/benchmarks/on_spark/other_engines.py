"""What others would run instead of Spark: the string job on Dask, the Parquet job on Daft, beside ours and Spark's.

    range     ``range, with a string`` of ``pipelines``: Dask's P2P shuffle, two worker processes
    Parquet   ``Parquet`` of ``pipelines``: Daft on Ray, two CPUs; ``plain`` is the floor, without engine and exchange

Dask, Daft and Ray are installed in an environment of their own under ``build``, in the versions of
``other_engines.txt``; each runs in a process (``engine_process``) that stays for all rounds. Their placement is not
Spark's, so only counts and sums are compared. ``--engines plain`` needs no installation.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.benchmarks.measure import Subject, console, table
from tests.benchmarks.on_spark import pipelines
from tests.benchmarks.on_spark.engines import COLUMNS, Engines, Laps, Options, compared, rows_of
from tests.support.rooms import ROOT

REQUIREMENTS = Path(__file__).with_name("other_engines.txt")
JOBS = {"Parquet": (pipelines.SCAN, ("daft", "plain")), "range, with a string": (pipelines.FRAME, ("dask",))}
STOP_SECONDS = 30.0


class Engine:
    """A process of ``engine_process``; a context manager that ends it.

    Raises:
        RuntimeError: it ended; what it wrote is in the message.
    """

    def __init__(self, name: str, python: Path) -> None:
        command: list[str | Path] = [python, "-m", "tests.benchmarks.on_spark.engine_process", name]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.versions = self._answer()["versions"]

    def run(self, **job: Any) -> dict[str, Any]:
        """Have it run a job; its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(job)}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told: list[str] = []
        for line in self._process.stdout:
            word, _, body = line.partition(" ")
            if word == "answer":
                found: dict[str, Any] = json.loads(body)
                return found
            told.append(line)
        raise RuntimeError(f"the engine ended: {''.join(told[-20:])}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # With what it has started.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()


def main(arguments: list[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="other_engines", add_help=False)
    parser.add_argument("--engines", nargs="+", default=("daft", "plain", "dask"))
    given, rest = parser.parse_known_args(arguments)
    options = Options.parse("other_engines", rest)
    options.announce("Other engines", f"two workers, {pipelines.PARTITIONS} partitions")
    wanted = set(given.engines)
    rows: list[list[str]] = []
    with Engines() as engines:
        for name, (kind, names) in JOBS.items():
            job = _job(name, options)
            if options.wants(job.name) and wanted & set(names):
                chosen = [each for each in names if each in wanted]
                rows += _measured(engines, job, kind, chosen, options)
    table("Beside other engines", ["x the first" if each == "x Spark" else each for each in COLUMNS], rows)


def _job(name: str, options: Options) -> pipelines.Job:
    job = next(job for job in pipelines.JOBS if job.name.startswith(name))
    return replace(job, rows=max(1000, int(job.rows * options.scale)))


def _measured(
    engines: Engines, job: pipelines.Job, kind: str, names: list[str], options: Options
) -> list[list[str]]:
    laps = Laps()

    def asked(engine: Engine) -> int:
        files = str(job.source(job.rows)) if callable(job.source) else ""
        answer = engine.run(path=files, rows=job.rows, partitions=pipelines.PARTITIONS)
        return pipelines.counted(job, [tuple(answer.values())])

    def ours() -> int:
        return pipelines.counted(job, pipelines.ours(engines, job, kind, pipelines.COUNTING, laps))

    def sparks() -> int:
        return pipelines.counted(job, pipelines.sparks(engines, job, pipelines.COUNTING, pipelined=False))

    with ExitStack() as stack:
        subjects: list[Subject] = []
        for name in names:
            python = Path(sys.executable) if name == "plain" else _environment()
            engine = stack.enter_context(Engine(name, python))
            console.print(f"{name}: {engine.versions}")
            subjects.append(engines.subject(name, partial(asked, engine)))
        subjects.append(engines.subject("Spark", sparks))
        subjects.append(engines.subject(kind, ours, laps.end, ours=True))
        compared(engines, subjects, options)
    return rows_of(job.name, subjects)


def _environment() -> Path:
    """The interpreter of ``build/other-engines``, where ``REQUIREMENTS`` are installed if they are not yet."""
    home = ROOT / "build" / "other-engines"
    python, stamp = home / "bin" / "python", home / REQUIREMENTS.name
    if not stamp.exists() or stamp.read_bytes() != REQUIREMENTS.read_bytes():
        shutil.rmtree(home, ignore_errors=True)
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, home], check=True)
        subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, "-r", REQUIREMENTS], check=True)
        shutil.copy(REQUIREMENTS, stamp)
    return python
