"""One output in a notebook, and nothing at all elsewhere."""

from __future__ import annotations

import threading
from typing import Any

from spark_client.connection import RemoteServer
from spark_client.jobs.progress import watch
from spark_client.servers import ServerList
from tests.support.python_program import output_of
from tests.support.server_process import ServerProcess

JOB = """
import sys, time
from types import ModuleType, SimpleNamespace
from spark_client import ShuffleClient
from spark_client.jobs import progress
import pyarrow as pa
from flight_server.protocol import PutCommand, PutCreate
from spark_client.lanes.put_stream import PutStream

progress._INTERVAL_SECONDS = 0.01
arrived, answers = progress._arrived, []

def noted(server, dataset):
    answers.append(arrived(server, dataset))
    return answers[-1]

progress._arrived = noted
# Of IPython what a cell's output needs; it can neither run cells nor show anything rich.
def out(bundle, raw, display_id=None):
    print("shown:", bundle["text/plain"], flush=True)
    return SimpleNamespace(update=out)
sys.modules["IPython"] = ModuleType("IPython")
sys.modules["IPython"].get_ipython = lambda: SimpleNamespace(kernel=object())
sys.modules["IPython.display"] = ModuleType("IPython.display")
sys.modules["IPython.display"].display = out
with ShuffleClient(sys.argv[1]) as client:
    schema = pa.schema([("x", pa.int64())])
    # Of a session what the watch asks: it is none of Spark Connect, and its properties are not the thread's.
    spark = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=None))
    with progress.watch(client._servers, ["d"], "repartition(4, 'x') [a]", spark) as shown:
        command = PutCommand("d", producer=0, attempt="1", generation=f"{1:016x}", create=PutCreate(1))
        with PutStream(client._server, command, schema) as stream:
            stream.write(pa.record_batch({"x": pa.array(range(12_345), pa.int64())}), 0)  # enough to be sent at once
            # It asks again when it has shown the answer before.
            while [answer[0] for answer in answers if answer].count(12_345) < 2:
                time.sleep(0.01)
            # From here on the server is asked no more.
            progress._arrived = lambda server, dataset: None
            stream.write(pa.record_batch({"x": pa.array([1], pa.int64())}), 0)
            stream.commit()
        shown.ended(12_346, 98_768, 3)
"""


def test_a_notebooks_cell_shows_it_in_one_output_that_is_replaced(empty_server: ServerProcess) -> None:
    first, *lines = output_of(JOB, empty_server.location).splitlines()
    assert first == "shown: "
    assert any(line.startswith("shown: repartition(4, 'x') [a]  12,345 rows  96.") for line in lines)
    assert lines[-1].startswith("shown: repartition(4, 'x') [a]  3 tasks  12,346 rows"), (
        "the seal's rows, not the last answer's"
    )
    assert all(line.startswith("shown: ") for line in lines)


def test_elsewhere_there_is_no_thread_and_no_call() -> None:
    before = threading.active_count()
    # No server listens there: a call would fail.
    nothing: Any = None
    with watch(ServerList(RemoteServer("grpc://127.0.0.1:1")), ["d"], "label", nothing):
        assert threading.active_count() == before
