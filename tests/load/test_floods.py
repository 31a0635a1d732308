"""A server that is flooded serves its other clients, and keeps nothing of the flood. ``tests.benchmarks floods``
measures how long these wait.
"""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from tests.integration.bad_input.data import used_bytes
from tests.load.floods import FLOODS, FloodProcess
from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, Refused, path, put_messages
from tests.support.server_process import ServerProcess

TOKEN = "a-token-of-this-test"
SECONDS = 3.0
BATCH = pa.record_batch({"n": [1, 2, 3]})


def served(raw: RawFlight, bystander: list[bytes]) -> bool:
    """Whether a small put, its reads and its drop are answered; a call may have to be made again."""
    try:
        raw.put(put_messages(path("small"), [BATCH]))
        assert raw.get(b"small")[1:] == raw.get(b"bystander")[1:] == bystander[1:]
        raw.action("drop", {"dataset": "small"})
    except Refused as error:
        # After a drop that was refused the name is there.
        if error.status == "UNAVAILABLE" or "small" in error.message:
            return False
        raise
    return True


@pytest.mark.load
@pytest.mark.parametrize(
    "name",
    [each if each == "garbage" else pytest.param(each, marks=pytest.mark.long) for each in FLOODS],
)
def test_a_server_that_is_flooded_serves_others_and_keeps_nothing(name: str) -> None:
    with (
        ServerProcess.start(memory_limit="64MiB", stall_seconds=2, token=TOKEN) as server,
        RawFlight(server.location, token=TOKEN) as raw,
    ):
        assert server.http is not None
        raw.put(put_messages(path("bystander"), [BATCH]))
        bystander, held_bytes = raw.get(b"bystander"), used_bytes(raw)
        rounds = 0
        with FloodProcess(name, server.location, server.http, TOKEN) as flood:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end or not rounds:
                rounds += served(raw, bystander)
            flood.end()
        assert flood.sent
        for each in raw.action("statistics")["datasets"]:
            if each != "bystander":
                raw.action("drop", {"dataset": each})
        eventually(lambda: raw.action("statistics")["waits"], 0)
        eventually(lambda: used_bytes(raw), held_bytes)
        assert raw.get(b"bystander") == bystander
        assert server.events("internal_error") == [], server.tail()
        assert server.terminate() == 0
