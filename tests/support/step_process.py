"""How much memory a process takes for one step of a task (``measured_steps``).

``python -m tests.support.step_process STEP SHAPE BUDGET_BYTES TIMES SCRATCH_DIR`` is such a process: it prints a
:class:`Measured`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from spark_client.spill import TaskMemory
from tests.support.measured_steps import STEPS, Setting

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Measured:
    """``idle_bytes`` is the resident size before the step, ``peak_bytes`` the largest; ``arrow_bytes`` the most that
    Arrow's pool held at once.
    """

    idle_bytes: int
    peak_bytes: int
    arrow_bytes: int
    spilled_bytes: int
    rows: int


def measured(step: str, shape: str, budget_bytes: int, times: int, scratch_dir: Path) -> Measured:
    """Run the step in a process of its own, over ``times`` the budget."""
    command = [sys.executable, "-m", "tests.support.step_process", step, shape]
    command += [str(budget_bytes), str(times), str(scratch_dir)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    if answer.returncode:
        raise RuntimeError(f"{step} of {shape}: {answer.stderr}")
    return Measured(**json.loads(answer.stdout))


def _status_bytes(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def main() -> None:
    """The process."""
    import pandas as pd  # noqa: F401  # and all that a worker has loaded before a task
    import pyspark.worker  # noqa: F401

    step, shape, budget_bytes, times, scratch_dir = sys.argv[1:]
    # A first run on a few rows: it imports what the step imports.
    small = Setting(shape, 1000, TaskMemory(1 << 30, scratch_dir))
    for _ in STEPS[step](small):
        pass
    setting = Setting(shape, int(budget_bytes) * int(times), TaskMemory(int(budget_bytes), scratch_dir))
    # Not a proxy of it, which does not see what Arrow's own query engine takes for groups.
    pool = pa.default_memory_pool()
    pool.release_unused()
    idle_bytes = _status_bytes("VmRSS")
    rows = 0
    for batch in STEPS[step](setting):
        rows += batch.num_rows
    peak_bytes = _status_bytes("VmHWM")
    found = Measured(idle_bytes, peak_bytes, pool.max_memory() or 0, setting.memory.spilled_bytes, rows)
    print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
