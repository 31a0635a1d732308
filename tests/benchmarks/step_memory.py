"""The peak memory of a task's Python process in each step: resident above what it has before, and in Arrow's pool.

Each step runs in a process of its own, without Spark and without a server, over several times its budget.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.benchmarks.measure import MIB, conditions, console, table
from tests.support.measured_steps import SHAPES, STEPS
from tests.support.step_process import measured

COLUMNS = ["step", "rows of", "budget MiB", "resident MiB", "of budget", "Arrow MiB", "spilled MiB"]


def main(arguments: list[str]) -> None:
    """Run the suite."""
    parser = argparse.ArgumentParser(prog="step_memory")
    parser.add_argument("--only", default="", help="steps whose names have this text")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--budgets", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--times", type=int, default=6)
    options = parser.parse_args(arguments)
    rows = [
        _row(step, shape, budget, options.times)
        for step in STEPS
        if options.only in step
        for shape in options.shapes
        for budget in options.budgets
    ]
    console.print(conditions(1))
    table("Memory of each step", COLUMNS, rows)


def _row(step: str, shape: str, budget: int, times: int) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:
        found = measured(step, shape, budget * MIB, times, Path(scratch))
    taken = (found.peak_bytes - found.idle_bytes) / MIB
    mebibytes = [taken, found.arrow_bytes / MIB, found.spilled_bytes / MIB]
    resident, arrow, spilled = (f"{each:.0f}" for each in mebibytes)
    row = [step, shape, str(budget), resident, f"{taken / budget:.2f} x", arrow, spilled]
    console.print("  ".join(row))
    return row
