"""A worker's modules leave the garbage collections between its tasks; what a task makes does not. Its connection
to Spark waits for nothing.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.rooms import ROOT

CODE = """
import gc, pickle, sys, weakref
from pyspark import serializers
from spark_client.executors import Portable
from spark_client.executors.shipping import settle

dumps = serializers.CloudPickleSerializer().dumps

class Cyclic:
    def __init__(self):
        self.me = self
    def __call__(self, batches):
        return batches

sent = dumps(Portable(Cyclic()))
before = gc.get_freeze_count()  # CPython 3.12 begins with some
loaded = pickle.loads(sent)
frozen = gc.get_freeze_count()
assert frozen > before + 1000

class Left:
    pass

left = Left()
left.me = left
gone = weakref.ref(loaded), weakref.ref(left)
loaded = left = None
gc.collect()
assert [each() for each in gone] == [None, None]

kept = [[] for _ in range(1000)]
pickle.loads(sent)
assert gc.get_freeze_count() <= frozen, "nothing was imported since"
import tomllib
pickle.loads(sent)
assert gc.get_freeze_count() > frozen
"""


def test_a_loaded_function_freezes_what_was_imported_before_and_nothing_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


WORKER = """
import pickle, socket, sys
import pyspark.worker
from pyspark import daemon, serializers
from spark_client.executors import Portable
from spark_client.pyspark_parts import worker_connection

sent = serializers.CloudPickleSerializer().dumps(Portable(len))
listening = socket.create_server(("127.0.0.1", 0))
spark = socket.create_connection(listening.getsockname()) if sys.argv[1] == "tcp" else None
ours, theirs = (listening.accept()[0], spark) if spark is not None else socket.socketpair()
found = []

def options():
    return [ours.getsockopt(socket.IPPROTO_TCP, each) for each in (socket.TCP_NODELAY, socket.TCP_QUICKACK)]

def main(infile, outfile):
    if spark is not None:
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert options() == [0, 0]
    pickle.load(infile)
    found.append(worker_connection())

pyspark.worker.main = main
theirs.sendall(sent)
assert worker_connection() is None, "this is no worker yet"
del sys.argv[1:]  # where the daemon finds the module of its workers
assert daemon.worker(ours, True) == 0
assert found == [ours]
if spark is not None:
    assert [bool(each) for each in options()] == [True, True]
"""


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_worker_that_loads_a_task_acknowledges_and_sends_at_once(kind: str) -> None:
    pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, "-c", WORKER, kind],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
