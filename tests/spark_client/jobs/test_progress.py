"""A bar on a terminal, and nothing at all elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading

from spark_client.connection import RemoteServer
from spark_client.jobs.progress import watch
from spark_client.servers import ServerList
from tests.support.rooms import ROOT

JOB = """
import sys, time
from types import ModuleType, SimpleNamespace
from spark_client import ShuffleClient
from spark_client.jobs import progress
from spark_client.jobs.shuffles import Shuffles
import pyarrow as pa
from flight_server.protocol import PutCommand
from spark_client.lanes.put_stream import PutStream

progress._INTERVAL_SECONDS = 0.01
arrived, answers = progress._arrived, []

def noted(server, dataset):
    answers.append(arrived(server, dataset))
    return answers[-1]

progress._arrived = noted
mode, spark = sys.argv[1], None
if mode == "spark's bar":  # a session that says one thing
    spark = SimpleNamespace(conf=SimpleNamespace(get=lambda name: "true" if "showConsole" in name else ""))
if mode == "notebook":  # of IPython what a cell's output needs; it can neither run cells nor show anything rich
    def out(bundle, raw, display_id=None):
        print("shown:", bundle["text/plain"], flush=True)
        return SimpleNamespace(update=out)
    sys.modules["IPython"] = ModuleType("IPython")
    sys.modules["IPython"].get_ipython = lambda: SimpleNamespace(kernel=object())
    sys.modules["IPython.display"] = ModuleType("IPython.display")
    sys.modules["IPython.display"].display = out
with ShuffleClient.embedded() as client:
    shuffles = client._owned()
    schema = pa.schema([("x", pa.int64())])
    shuffles.create("d", schema, 1)
    with progress.watch(client._servers, ["d"], "exchange(4, 'x') [a]", spark) as shown:
        with PutStream(client._server, PutCommand("d", producer=0, attempt="1"), schema) as stream:
            stream.write(pa.record_batch({"x": pa.array(range(12_345), pa.int64())}), 0)  # enough to be sent at once
            # The bar asks again when it has been given the answer before; then it is drawn at its end at the latest.
            while mode != "spark's bar" and [answer[1] for answer in answers if answer].count(12_345) < 2:
                time.sleep(0.01)
            # From here on the server is asked no more.
            progress._arrived = lambda server, dataset: None
            stream.write(pa.record_batch({"x": pa.array([1], pa.int64())}), 0)
            stream.commit()
        shown.ended(12_346, 98_768)
"""


def shown(mode: str) -> str:
    """The output of a job that has a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", JOB, mode], cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        found = b""
        try:
            while part := os.read(ours, 65536):
                found += part
        except OSError:
            pass  # Linux reports the other end's closing so
        os.close(ours)
        assert process.stderr is not None
        assert process.wait(60) == 0, process.stderr.read().decode()
    return found.decode()


def test_a_terminal_shows_what_has_arrived_and_no_total_that_is_not_known() -> None:
    text = shown("bar")
    assert "exchange(4, 'x') [a]  12,345 rows  96." in text
    assert "?" not in text.replace("\x1b[?25", "")  # hides and shows the cursor


def test_beside_sparks_own_bar_there_is_one_line_at_the_end() -> None:
    text = shown("spark's bar")
    assert text.startswith("exchange(4, 'x') [a]  12,346 rows  96.")
    assert text.count("\n") == 1
    assert "\x1b" not in text


def test_a_notebooks_cell_shows_it_in_one_output_that_is_replaced() -> None:
    first, *lines = shown("notebook").splitlines()
    assert first == "shown: "
    assert lines[-1].startswith("shown: exchange(4, 'x') [a]  12,346 rows"), (
        "the seal's rows, not the last answer's"
    )
    assert all(line.startswith("shown: ") for line in lines)


def test_elsewhere_there_is_no_thread_and_no_call() -> None:
    before = threading.active_count()
    # No server listens there: a call would fail.
    with watch(ServerList(RemoteServer("grpc://127.0.0.1:1")), ["d"], "label"):
        assert threading.active_count() == before


def test_a_server_that_does_not_answer_is_no_error() -> None:
    from spark_client.jobs.progress import _arrived

    assert _arrived(ServerList(RemoteServer("grpc://127.0.0.1:1")), "d") is None
