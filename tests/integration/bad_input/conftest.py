"""A server with small limits, and a connection after which it is looked over.

After every test the server runs, has logged no internal error, serves an unrelated dataset unchanged, and holds
not one byte more than that dataset's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.bad_input.data import BATCH, MAX_MESSAGE_BYTES, moving_bytes, used_bytes
from tests.support.polling import eventually
from tests.support.raw_flight import RawFlight, path, put_messages
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="package")
def server() -> Iterator[ServerProcess]:
    """One server for all tests here; it must come to a clean end."""
    with ServerProcess.start(
        http_port=-1, memory_limit="64MiB", max_message=str(MAX_MESSAGE_BYTES)
    ) as server:
        with RawFlight(server.location) as raw:
            raw.put(put_messages(path("bystander"), [BATCH, BATCH]))
        yield server
        assert server.terminate() == 0


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawFlight]:
    """A connection to the server, which is looked over afterwards."""
    with RawFlight(server.location) as raw:
        bystander = raw.get(b"bystander")
        assert len(bystander) == 3
        # The server has each of its messages once, when nothing of its put and of this read is on its way any more.
        eventually(lambda: moving_bytes(raw), 0)
        least_bytes = sum(len(message) for message in bystander[1:])
        eventually(lambda: least_bytes <= used_bytes(raw) < 2 * least_bytes, expected=True)
        held_bytes = used_bytes(raw)
        yield raw
        for name in raw.action("statistics")["datasets"]:
            if name != "bystander":
                raw.action("drop", {"dataset": name})
        eventually(lambda: used_bytes(raw), held_bytes)
        eventually(lambda: raw.action("statistics")["waits"], 0)
        assert raw.get(b"bystander") == bystander
    assert server.returncode is None
    assert server.events("internal_error") == [], server.tail()
