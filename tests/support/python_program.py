"""Programs of Python in processes of their own."""

from __future__ import annotations

import subprocess
import sys

from .rooms import ROOT


def output_of(code: str, *arguments: object) -> str:
    """What the program prints; where it fails, so does the test, with its last words."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
