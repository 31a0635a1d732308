"""``Reading``: which lane the public client takes, and how much memory a read may have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol.errors import FlightShuffleError
from spark_client import Reading, ShuffleClient
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
ROWS, BATCHES = 100_000, 40


def table() -> pa.Table:
    return pa.table({"n": np.arange(ROWS * BATCHES)})


def test_a_server_without_http_is_read_over_grpc_unless_bulk_was_asked_for(
    flight_server_process: Start,
) -> None:
    server = flight_server_process(http_port=-1)
    with ShuffleClient(server.location) as client:
        client.put("numbers", table())
        assert client.get("numbers").read_all().num_rows == ROWS * BATCHES
    with (
        ShuffleClient(server.location, reading=Reading(lane="bulk")) as client,
        pytest.raises(FlightShuffleError),
    ):
        client.get("numbers").read_all()


def test_what_does_not_fit_the_budget_waits_in_the_scratch_directory(
    empty_server: ServerProcess, tmp_path: Path
) -> None:
    reading = Reading(budget_bytes=1 << 20, scratch_dir=str(tmp_path))
    with ShuffleClient(empty_server.location, reading=reading) as client:
        client.put("numbers", table())
        assert client.get("numbers", ordered=True).read_all().equals(table())
    assert list(tmp_path.iterdir()) == []
