"""How the benchmarks measure: rounds in turn, medians, ratios within one run, and the conditions.

The machine is shared and its speed drifts, so no absolute time is compared with one from another run.
Every round runs each subject once, in an order that rotates; what is printed is the median of the
rounds, and ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from tests.support.processes import cpu_seconds

ROUNDS = 5
GB = 1e9
MIB = 1 << 20

console = Console(width=150, highlight=False)


@dataclass
class Sample:
    """One round of one subject: wall-clock and CPU seconds, and the bytes that were delivered."""

    seconds: float
    delivered_bytes: int
    server_cpu_seconds: float = 0.0
    client_cpu_seconds: float = 0.0

    @property
    def gb_per_second(self) -> float:
        return self.delivered_bytes / GB / self.seconds

    @property
    def server_cpu_seconds_per_gb(self) -> float:
        return self.server_cpu_seconds / (self.delivered_bytes / GB)

    @property
    def client_cpu_seconds_per_gb(self) -> float:
        return self.client_cpu_seconds / (self.delivered_bytes / GB)


def own_cpu_seconds() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@dataclass
class Subject:
    """Something to measure. ``run`` does the work once and returns the bytes it delivered; ``after`` clears
    away what that left, and is not measured. ``cold`` is the first round, which is not among the samples.
    """

    name: str
    run: Callable[[], int]
    server_pid: int | None = None
    client_cpu_seconds: Callable[[], float] = own_cpu_seconds
    after: Callable[[], None] = lambda: None
    samples: list[Sample] = field(default_factory=list)
    cold: Sample | None = None

    def median(self, of: Callable[[Sample], float]) -> float:
        return statistics.median(of(sample) for sample in self.samples)


def measure(
    subjects: Sequence[Subject], rounds: int = ROUNDS, fresh: Callable[[], None] | None = None
) -> None:
    """Fill the subjects' samples, after one round of each that is kept apart. ``fresh`` is called before each
    subject's first run.
    """
    for subject in subjects:
        if fresh is not None:
            fresh()
        subject.cold = _sample(subject)
    for number in range(rounds):
        turn = number % len(subjects)
        for subject in [*subjects[turn:], *subjects[:turn]]:
            subject.samples.append(_sample(subject))


def _sample(subject: Subject) -> Sample:
    server_before = cpu_seconds(subject.server_pid) if subject.server_pid else 0.0
    client_before, started = subject.client_cpu_seconds(), time.perf_counter()
    delivered_bytes = subject.run()
    seconds = time.perf_counter() - started
    server_after = cpu_seconds(subject.server_pid) if subject.server_pid else 0.0
    sample = Sample(
        seconds,
        delivered_bytes,
        server_after - server_before,
        subject.client_cpu_seconds() - client_before,
    )
    subject.after()
    return sample


def ratio(subject: Subject, peer: Subject) -> float:
    """The subject's throughput over the peer's: median over the rounds."""
    return statistics.median(
        mine.gb_per_second / theirs.gb_per_second
        for mine, theirs in zip(subject.samples, peer.samples, strict=True)
    )


def conditions(rounds: int = ROUNDS) -> str:
    """Where and how this was measured, for the line above each table."""
    load = os.getloadavg()[0]
    runs = f"median of {rounds} rounds in turn" if rounds else "one run of each, cold"
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, Python "
        f"{platform.python_version()}, load {load:.1f} before; loopback; {runs}"
    )


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table."""
    shown = Table(title=title, title_justify="left", caption_justify="left")
    for column in columns:
        shown.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
