"""What others would run instead of Spark: the job ``Parquet`` of ``pipelines`` on Daft, beside ours and Spark's.

Daft runs on Ray with two CPUs. Both are installed in an environment of their own under ``build``, in the versions of
``other_engines.txt``, and run in a process (``engine_process``) that stays for all rounds. Their placement is not
Spark's, so only counts and sums are compared.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.benchmarks.measure import console, table
from tests.benchmarks.on_spark import pipelines
from tests.benchmarks.on_spark.engines import COLUMNS, Engines, Laps, Options, compared, rows_of
from tests.support.rooms import ROOT

REQUIREMENTS = Path(__file__).with_name("other_engines.txt")
STOP_SECONDS = 30.0


class Daft:
    """A process of ``engine_process``; a context manager that ends it.

    Raises:
        RuntimeError: it ended; what it wrote is in the message.
    """

    def __init__(self) -> None:
        command: list[str | Path] = [_environment(), "-m", "tests.benchmarks.on_spark.engine_process"]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.versions = self._answer()

    def run(self, job: pipelines.Job) -> Any:
        """Have it run the job; what it has counted."""
        assert self._process.stdin is not None
        assert callable(job.source)
        self._process.stdin.write(f"{json.dumps([str(job.source(job.rows)), pipelines.PARTITIONS])}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        told: list[str] = []
        for line in self._process.stdout:
            word, _, body = line.partition(" ")
            if word == "answer":
                return json.loads(body)
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
    options = Options.parse("other_engines", arguments)
    options.announce("Daft", f"two workers, {pipelines.PARTITIONS} partitions")
    job = pipelines.JOBS[0]
    job = replace(job, rows=max(1000, int(job.rows * options.scale)))
    laps = Laps()

    def spark() -> int:
        return pipelines.counted(job, pipelines.sparks(engines, job, pipelines.COUNTING, pipelined=False))

    def ours() -> int:
        found = pipelines.ours(engines, job, pipelines.SCAN, pipelines.COUNTING, laps)
        return pipelines.counted(job, found)

    with Engines() as engines, Daft() as daft:
        console.print(daft.versions)
        subjects = [
            engines.subject("daft", lambda: pipelines.counted(job, [daft.run(job)])),
            engines.subject("Spark", spark),
            engines.subject(pipelines.SCAN, ours, laps.end, ours=True),
        ]
        compared(engines, subjects, options)
    table(
        "Beside Daft",
        ["x Daft" if each == "x Spark" else each for each in COLUMNS],
        rows_of(job.name, subjects),
    )


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
