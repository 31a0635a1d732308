"""Clients that give up durable puts and seals in the middle, at any moment: the server goes on."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support import collecting
from tests.support.durable import action, files, names, put_attempt, table
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

CLIENTS, WRITES = 6, 40
MAX_DEADLINE_SECONDS = 0.05


class Client(threading.Thread):
    """Writes and drops datasets of its own, one after the other; gives most of them up."""

    def __init__(self, location: str, number: int) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self.written = 0
        self._location = location
        self._number = number
        self._random = random.Random(number)

    def run(self) -> None:
        try:
            with flight.connect(self._location) as client:
                for write in range(WRITES):
                    name = f"{self._number}-{write}"
                    self._write(client, name, table(2000, write), shuffle=write % 2 == 1)
                    action(client, "drop", dataset=name)
        except BaseException as error:  # noqa: BLE001  # it is the test's
            self.error = error

    def _write(self, client: flight.FlightClient, name: str, data: pa.Table, *, shuffle: bool) -> None:
        short = flight.FlightCallOptions(timeout=self._random.uniform(0.001, MAX_DEADLINE_SECONDS))
        action(client, "create", dataset=name, kind="shuffle" if shuffle else "stream", durable=True)
        if shuffle:
            put_attempt(client, name, {0: data})
        with suppress(flight.FlightError, pa.ArrowException):
            if shuffle:
                list(client.do_action(flight.Action("seal", b'{"dataset": "%b"}' % name.encode()), short))
            else:
                writer, _ = client.do_put(flight.FlightDescriptor.for_path(name), data.schema, short)
                with writer:
                    writer.write_table(data, max_chunksize=100)
            self.written += 1


@pytest.mark.long
@pytest.mark.parametrize(
    "command", [{}, {"command": collecting.SERVER}], ids=["as it is", "collecting in executors"]
)
def test_the_server_goes_on_when_six_clients_give_up_durable_puts_and_seals(
    flight_server_process: Callable[..., ServerProcess], tmp_path: Path, command: dict[str, Any]
) -> None:
    server = flight_server_process("--data-dir", str(tmp_path), memory_limit="64MiB", **command)
    clients = [Client(server.location, number) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
        assert client.error is None
    with flight.connect(server.location) as client:
        assert names(client) == set()
        eventually(lambda: action(client, "why")["waits"], [])
        eventually(lambda: action(client, "statistics")["memory"]["used_bytes"], 0)
        eventually(lambda: len(files(tmp_path)), 0)
