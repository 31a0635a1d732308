"""A worker's modules leave the garbage collections between its tasks; what a task makes does not."""

from __future__ import annotations

import subprocess
import sys

from tests.support.rooms import ROOT

CODE = """
import gc, pickle, sys, weakref
from pyspark import serializers
from spark_client.executors import Portable
from spark_client.executors.settling import settle

dumps = serializers.CloudPickleSerializer().dumps

class Cyclic:
    def __init__(self):
        self.me = self
    def __call__(self, batches):
        return batches

sent = dumps(Portable(Cyclic()))
assert gc.get_freeze_count() == 0
loaded = pickle.loads(sent)
frozen = gc.get_freeze_count()
assert frozen > 1000

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
