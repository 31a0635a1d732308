"""Environments under ``build`` for what is measured or drawn with, and not installed beside the tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.rooms import ROOT


def environment(name: str, requirements: Path) -> Path:
    """The interpreter of ``build/name``, where ``requirements`` are installed if they are not yet.

    Raises:
        subprocess.CalledProcessError: they could not be installed.
    """
    home = ROOT / "build" / name
    python, stamp = home / "bin" / "python", home / requirements.name
    if not stamp.exists() or stamp.read_bytes() != requirements.read_bytes():
        shutil.rmtree(home, ignore_errors=True)
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, home], check=True)
        subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, "-r", requirements], check=True)
        shutil.copy(requirements, stamp)
    return python
