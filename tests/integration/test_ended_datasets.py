"""What a reader hears of a dataset that was dropped, at a real server."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.support.raw_flight import RawFlight, Refused, path, put_messages
from tests.support.server_process import ServerProcess

BATCH = pa.record_batch({"n": [1, 2, 3]})


@pytest.mark.parametrize("ticket", [b"x", b"x/0", b'{"dataset":"x","partition":0}'])
def test_every_ticket_of_a_dropped_dataset_says_why_it_is_gone(
    flight_server_process: Callable[..., ServerProcess], ticket: bytes
) -> None:
    server = flight_server_process(memory_limit="64MiB")
    with RawFlight(server.location) as raw:
        raw.put(put_messages(path("x"), [BATCH]))
        raw.action("drop", {"dataset": "x"})
        with pytest.raises(Refused, match="there is no dataset 'x': it was dropped"):
            raw.get(ticket)
        with pytest.raises(Refused, match="there is no dataset 'y/0': it was never written"):
            raw.get(b"y/0")
