"""Programs of Python in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from .rooms import ROOT


def output_of(
    code: str, *arguments: object, cwd: Path = ROOT, environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    """What the program prints; where it fails, so does the test, with its last words."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
