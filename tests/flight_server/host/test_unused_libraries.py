"""The server's process loads no library that it does not use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.server_process import ServerProcess


# Not the module's own list: its import would keep pandas out of this process, and so from all other tests.
@pytest.mark.parametrize("module", ["pandas"])
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


UNUSED_WHEN_IDLE = {
    "aiohttp.client",
    "aiohttp.connector",
    "duckdb",
    "google.protobuf",
    "grpc_health.v1",
    "multiprocessing",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.flight",
    "pyarrow.fs",
    "pyarrow.parquet",
    "rich",
    "flight_server.kinds.source.relay",
    "flight_server.reporting.metrics",
    "flight_server.supervisor",
}
STARTED = """
import asyncio, json, sys
import flight_server.__main__
from flight_server import config
from flight_server.server import Server

async def modules():
    async with Server(config.load({"port": 0, "http_port": 0}, None)):
        return sorted(sys.modules)

print(json.dumps(asyncio.run(modules())))
"""


def test_an_idle_server_has_not_imported_what_only_requests_need() -> None:
    found = subprocess.run([sys.executable, "-c", STARTED], check=True, capture_output=True, text=True)
    modules = set(json.loads(found.stdout))
    assert "flight_server.lanes.grpc.service" in modules
    assert modules & UNUSED_WHEN_IDLE == set()


def test_the_rest_of_aiohttp_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import flight_server.__main__, sys; before = 'aiohttp.client' in sys.modules; from aiohttp import web;"
        "import aiohttp; names = [aiohttp.ClientSession.__name__, aiohttp.web is web, hasattr(aiohttp, 'nothing')];"
        "print(before, names, 'aiohttp.client' in sys.modules, type(aiohttp).__name__)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "False ['ClientSession', True, False] True module\n"


@pytest.mark.parametrize("path", ["/metrics", "/v1/statistics"])
def test_what_is_imported_for_the_first_request_answers_it_and_the_next(path: str) -> None:
    with ServerProcess.start() as server:
        for _ in range(2):
            with urlopen(f"{server.http}{path}") as answer:
                assert answer.read()
