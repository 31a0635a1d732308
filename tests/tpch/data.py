"""The tables of TPC-H as Parquet files, made by tpchgen-cli."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


def generate(folder: Path, scale: float) -> Path:
    """Write a file of each table into ``folder``, which this makes; at scale 1 in about ten seconds.

    Raises:
        FileNotFoundError: the environment lacks tpchgen-cli, which is among the project's ``dev`` packages.
    """
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("tpchgen-cli", path=places)
    if program is None:
        raise FileNotFoundError("tpchgen-cli is not installed: pip install -e '.[dev]'")
    # It prints what it has written even if asked to be quiet.
    subprocess.run(
        [program, "parquet", "--scale-factor", str(scale), "--output-dir", str(folder), "--quiet"],
        check=True,
        capture_output=True,
    )
    return folder
