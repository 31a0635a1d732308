"""The server's process loads no library that it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.host.unused_libraries import NOT_NEEDED
from tests.support.server_process import ServerProcess


@pytest.mark.parametrize("module", NOT_NEEDED)
def test_a_server_that_has_worked_has_not_loaded_what_it_does_not_need(module: str) -> None:
    batch = pa.record_batch({"n": [1, 2, 3], "name": pa.array(["a", None, "a"]).dictionary_encode()})
    with ServerProcess.start() as server, flight.connect(server.location) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("d"), batch.schema)
        writer.write_batch(batch)
        writer.close()
        assert client.do_get(flight.Ticket(b"d")).read_all().to_batches() == [batch]
        maps = Path(f"/proc/{server.pid}/maps").read_text()
    assert "pyarrow" in maps, "libraries can be seen there"
    assert f"/{module}/" not in maps


def test_the_command_has_not_loaded_rich_for_structlogs_tracebacks() -> None:
    code = (
        "import flight_server.__main__, sys, structlog; print(sorted({'rich', 'structlog'} & {*sys.modules}))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "['structlog']\n"


def test_the_command_leaves_the_environment_of_other_processes_as_it_was() -> None:
    code = (
        "import os; before = {**os.environ}; import flight_server.__main__; assert {**os.environ} == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
