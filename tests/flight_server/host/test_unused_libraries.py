"""The server's process loads no library that it does not use."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.python_program import output_of
from tests.support.server_process import ServerProcess


def test_a_server_that_has_worked_has_not_loaded_pandas() -> None:
    batch = pa.record_batch({"n": [1, 2, 3], "name": pa.array(["a", None, "a"]).dictionary_encode()})
    with ServerProcess.start() as server, flight.connect(server.location) as client:
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("d"), batch.schema)
        writer.write_batch(batch)
        writer.close()
        assert client.do_get(flight.Ticket(b"d")).read_all().to_batches() == [batch]
        maps = Path(f"/proc/{server.pid}/maps").read_text()
    assert "pyarrow" in maps, "libraries can be seen there"
    assert "/pandas/" not in maps


UNUSED_WHEN_IDLE = {
    "aiohttp.client",
    "aiohttp.connector",
    "duckdb",
    "google.protobuf",
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
import asyncio, json, os, sys
before = {**os.environ}
import flight_server.__main__
assert {**os.environ} == before, "other processes get what the command was given"
from flight_server import config
from flight_server.server import Server

async def modules():
    async with Server(config.load({"port": 0, "http_port": 0}, None)):
        return sorted(sys.modules)

print(json.dumps(asyncio.run(modules())))
import spark_client.jobs
assert not [name for name in sys.modules if name.startswith("opentelemetry")], "traces are off"
import aiohttp
from aiohttp import web
assert aiohttp.ClientSession.__name__ == "ClientSession" and aiohttp.web is web and not hasattr(aiohttp, "nothing")
assert "aiohttp.client" in sys.modules and type(aiohttp).__name__ == "module"
"""


@pytest.mark.long
def test_an_idle_server_has_not_imported_what_only_requests_need() -> None:
    """And the rest of aiohttp is there when it is asked for."""
    modules = set(json.loads(output_of(STARTED)))
    assert {"flight_server.lanes.grpc.service", "structlog"} <= modules
    assert modules & UNUSED_WHEN_IDLE == set()
