"""What making a rule loads, and what it needs."""

from __future__ import annotations

import subprocess
import sys

from tests.support.rooms import ROOT

SQL = """
import sys
sys.modules["duckdb"] = None
import pyarrow as pa
from flight_server.protocol import KeepRule, Unsupported
from flight_server.kinds.changelog.rules import QueryProcesses, make_rule
try:
    make_rule(
        KeepRule.parse({"rule": "sql", "query": "from input"}), pa.schema([("a", pa.int8())]), QueryProcesses()
    )
except Unsupported as error:
    print(error)
"""


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_server_without_changelogs_loads_neither_duckdb_nor_arrows_kernels() -> None:
    loaded = run_python("import sys, flight_server.kinds.changelog.rules; print(*sys.modules)").split()
    assert "flight_server.kinds.changelog.rules.rule" in loaded
    assert not {"duckdb", "pyarrow.compute"} & set(loaded)


def test_a_server_without_duckdb_says_what_to_install() -> None:
    assert "install flight-shuffle[server,sql]" in run_python(SQL)
