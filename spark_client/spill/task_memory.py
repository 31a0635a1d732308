"""What one task may hold in RAM while it gathers rows, where the rest goes, and how much waited on disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class TaskMemory:
    """``budget_bytes`` of rows in RAM for each stage that gathers; beyond it files in ``scratch_dir`` (None: the
    system's temporary directory). ``spilled_bytes`` counts what was written there, by stages and by the streams that
    they read.
    """

    budget_bytes: int = 64 << 20
    scratch_dir: str | None = None
    spilled_bytes: int = 0
