"""A local Spark session and a server beside it, on which every job runs in turn, Spark's way and ours.

Terms
    Both sides get the same functions and the same data. Spark has its defaults, but for 4 GiB of heap: ``local[2]``,
    no UI, its own shuffle with LZ4. ``Spark, pipelined`` is the same with ``spark.python.udf.pipelined.enabled``. Each
    round runs all subjects; which one begins rotates. Ratios are medians of the rounds' own.

    ``cold`` is a subject's first run: the session, its Python workers and the server have just been started. The JVM
    has run a tenth of the same job before, in which the results of all subjects were compared. Its compiled code, and
    the files in the page cache, favour the later subjects, of which ours is the last.

    ``CPU s`` is what all processes of both sides have used: driver, JVM, Python workers and server.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import psutil

from spark_client import ShuffleClient
from tests.benchmarks.measure import ROUNDS, Sample, Subject, conditions, console, measure, ratio
from tests.support.server_process import ServerProcess
from tests.support.spark_session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP = "4g"
# With Spark's usual number of tries: under ``pipelined`` a task now and then gets a Python worker that has gone.
MASTER = "local[2, 4]"
PIPELINED = "spark.python.udf.pipelined.enabled"
COLUMNS = ["job", "subject", "cold s", "s", "x Spark", "CPU s", "server CPU s"]


class Engines:
    """The session, the server and its client; ``renew`` replaces all three. A context manager that ends them."""

    spark: SparkSession
    server: ServerProcess
    shuffle: ShuffleClient

    def __init__(
        self, master: str = MASTER, server: Mapping[str, Any] | None = None, **settings: str
    ) -> None:
        """``server``: options of the server; ``settings``: further ones of the session, as ``local_session`` has."""
        # Spark's workers are to have what this process has.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        self._master = master
        self._server = server or {}
        self._settings = {
            "driver__memory": HEAP,
            "sql__execution__arrow__pyspark__enabled": "true",
            **settings,
        }
        self._stack = ExitStack()
        self._subjects: list[Subject] = []

    def renew(self, master: str | None = None) -> None:
        """Start all anew; the JVM stays."""
        self._master = master or self._master
        self._stack.close()
        self.server = self._stack.enter_context(ServerProcess.start(**self._server))
        self.spark = self._stack.enter_context(local_session(self._master, **self._settings))
        self.shuffle = self._stack.enter_context(ShuffleClient(self.server.location))
        for subject in self._subjects:
            subject.server_pid = self.server.pid

    def subject(
        self,
        name: str,
        run: Callable[[], int],
        after: Callable[[], None] = lambda: None,
        *,
        ours: bool = False,
    ) -> Subject:
        """A subject that runs here, with Python workers of its own; ``ours`` if its server's CPU counts."""

        def in_own_workers() -> int:
            # Spark shares workers among functions of one environment; ours speed up what else runs in a worker.
            self.spark.sparkContext.environment["BENCHMARK_SUBJECT"] = name
            return run()

        subject = Subject(name, in_own_workers, client_cpu_seconds=tree_cpu_seconds, after=after)
        if ours:
            subject.server_pid = self.server.pid
            self._subjects.append(subject)
        return subject

    @contextlib.contextmanager
    def pipelined(self) -> Iterator[None]:
        """Spark feeds Python while it works. A setting of the process, so it is set where the executor reads it."""
        conf = self.spark.sparkContext._jsc.sc().conf()
        conf.set(PIPELINED, "true")
        try:
            yield
        finally:
            conf.remove(PIPELINED)

    def __enter__(self) -> Self:
        self.renew()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def tree_cpu_seconds() -> float:
    """User and system time of this process and all below it, also of those that have ended."""
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


@dataclass(frozen=True)
class Options:
    """What the command line says: rounds, the fraction of the rows, and the jobs to run."""

    rounds: int = ROUNDS
    scale: float = 1.0
    only: tuple[str, ...] = ()

    @classmethod
    def parse(cls, suite: str, arguments: Sequence[str], *, rounds: int = ROUNDS) -> Options:
        parser = argparse.ArgumentParser(prog=suite)
        parser.add_argument("--rounds", type=int, default=rounds)
        parser.add_argument("--scale", type=float, default=1.0, help="fraction of the rows")
        parser.add_argument(
            "--only", nargs="+", default=(), help="jobs with one of these words in their names"
        )
        given = parser.parse_args(arguments)
        return cls(given.rounds, given.scale, tuple(given.only))

    def wants(self, job: str) -> bool:
        return not self.only or any(word in job for word in self.only)

    def announce(self, title: str, terms: str = "local[2]") -> None:
        """Print the line above the tables."""
        console.print(f"[bold]{title}[/bold] · {conditions(self.rounds)}; {terms}")


def compared(engines: Engines, subjects: Sequence[Subject], options: Options) -> None:
    """Measure the subjects; the first one is what the others are compared with."""
    measure(subjects, options.rounds, engines.renew)


def rows_of(job: str, subjects: Sequence[Subject]) -> list[list[str]]:
    """The rows of the table with :data:`COLUMNS`."""
    return [
        [
            job,
            subject.name,
            f"{subject.cold.seconds:.2f}" if subject.cold else "",
            f"{subject.median(seconds):.2f}",
            f"{ratio(subject, subjects[0]):.2f}",
            f"{subject.median(lambda sample: sample.client_cpu_seconds):.1f}",
            f"{subject.median(lambda sample: sample.server_cpu_seconds):.2f}" if subject.server_pid else "",
        ]
        for subject in subjects
    ]


def seconds(sample: Sample) -> float:
    return sample.seconds


@dataclass
class Laps:
    """How long the named parts of a subject's runs took, the first of which is the cold one; and what is to be done
    after each, unmeasured.
    """

    laps: dict[str, list[float]] = field(default_factory=dict)
    ends: list[Callable[[], object]] = field(default_factory=list)

    def add(self, name: str, lap_seconds: float) -> None:
        self.laps.setdefault(name, []).append(lap_seconds)

    @contextlib.contextmanager
    def of_calls(self, name: str, owner: type, method: str) -> Iterator[None]:
        """The lap ``name``: what the calls of the method take in the block, in any thread."""
        call, taken = getattr(owner, method), [0.0]

        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                taken.append(time.perf_counter() - started)

        with mock.patch.object(owner, method, timed):
            yield
        self.add(name, sum(taken))

    def at_end(self, call: Callable[[], object]) -> None:
        self.ends.append(call)

    def end(self) -> None:
        """Do what was left for the end of the run."""
        while self.ends:
            self.ends.pop()()

    def median(self, name: str) -> float:
        """Of all but the first."""
        return statistics.median(self.laps[name][1:])


def same(results: dict[str, Any]) -> None:
    """Raise if not all subjects had the same result."""
    (first, expected), *others = results.items()
    for name, found in others:
        if found != expected:
            raise AssertionError(f"{name} gives {found}, {first} {expected}")
