"""A bar on a terminal, and nothing at all elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

from spark_client.progress import watch
from spark_client.transport import Server

ROOT = Path(__file__).parents[2]

JOB = """
import time
from spark_client import ShuffleClient
from spark_client import progress
from spark_client.shuffles import Shuffles
import pyarrow as pa
from flight_server.protocol import PutCommand
from spark_client.puts import PutStream

progress._INTERVAL_SECONDS = 0.01
arrived, answers = progress._arrived, []

def noted(server, dataset):
    answers.append(arrived(server, dataset))
    return answers[-1]

progress._arrived = noted
with ShuffleClient.embedded() as client:
    shuffles = client._owned()
    schema = pa.schema([("x", pa.int64())])
    shuffles.create("d", schema, 1)
    with progress.watch(client._server, "d", "exchange(4, 'x')"):
        with PutStream(client._server, PutCommand("d", producer=0, attempt="1"), schema) as stream:
            stream.write(pa.record_batch({"x": pa.array(range(12_345), pa.int64())}), 0)  # enough to be sent at once
            # The bar asks again when it has been given the answer before; then it is drawn at its end at the latest.
            while [answer[1] for answer in answers if answer].count(12_345) < 2:
                time.sleep(0.01)
            stream.commit()
"""


def test_a_terminal_shows_what_has_arrived() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", JOB], cwd=ROOT, stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            pass  # Linux reports the other end's closing so
        os.close(ours)
        assert process.stderr is not None
        assert process.wait(60) == 0, process.stderr.read().decode()
    assert b"exchange(4, 'x')" in shown
    assert b"12,345 rows" in shown


def test_elsewhere_there_is_no_thread_and_no_call() -> None:
    before = threading.active_count()
    # Nobody listens there: a call would fail.
    with watch(Server("grpc://127.0.0.1:1"), "d", "label"):
        assert threading.active_count() == before


def test_a_server_that_does_not_answer_is_no_error() -> None:
    from spark_client.progress import _arrived

    assert _arrived(Server("grpc://127.0.0.1:1"), "d") is None
