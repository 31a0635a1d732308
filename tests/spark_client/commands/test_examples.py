"""The page of the command: its examples run as they stand, and it has each command, option and exit code."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_client.commands import application, run
from tests.support.commands import Command
from tests.support.server_process import ROOT

PAGE = (ROOT / "spark_client" / "commands" / "README.md").read_text()
EXAMPLES = [
    line.removeprefix("$ ").partition("    #")[0].strip()
    for line in re.findall(r"^\$ .*$", PAGE, re.MULTILINE)
    if not line.startswith("$ export")
]
OPTIONS = ("server", "token", "token-file", "tls-root-certs", "json")


def test_the_examples_run_as_they_stand(
    command: Command,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLIGHT_SHUFFLE_LOCATION", command.location)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    table = pa.table({"flight": range(100), "to": ["VIE", "HND"] * 50})
    pq.write_table(table, tmp_path / "flights.parquet")
    ran = set()
    for example in EXAMPLES:
        program, *arguments = shlex.split(example)
        assert program == "flight-shuffle"
        ran.add(arguments[0])
        if ">" in arguments:
            code = subprocess.run(
                ["bash", "-o", "pipefail", "-c", example], check=False, timeout=60
            ).returncode
        else:
            code = run(arguments)
        assert code == 0, (example, capfdbinary.readouterr())
    assert (tmp_path / "may.csv").read_text().startswith('"flight","to"\n0,"VIE"\n')
    assert command("ls").out.splitlines()[1:] == []
    assert {"put", "get", "why", "doctor", "token"} <= ran


def test_the_page_has_each_command_option_and_exit_code() -> None:
    commands = [each.name for each in application._app.registered_commands]
    assert len(commands) == 12
    assert not [name for name in commands if not re.search(rf"`{name}[ `]", PAGE)]
    assert not [name for name in OPTIONS if f"--{name}`" not in PAGE]
    for code in (application.REFUSED, application.USAGE, application.UNREACHABLE, application.INTERRUPTED):
        assert f"\n| {code} | " in PAGE
