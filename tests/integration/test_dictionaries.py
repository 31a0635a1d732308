"""Dictionaries are counted, spilled and sent like frames."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.bulk import get
from tests.support.durable import action, put
from tests.support.paused import Lane, pause
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

MIB = 1 << 20
CONSTANT_BYTES = 150 * MIB  # what deploy/README.md says
Start = Callable[..., ServerProcess]


def coded(size_bytes: int, seed: int) -> pa.Table:
    """A few rows and a dictionary of about so many bytes."""
    values = pa.array(np.random.default_rng(seed).integers(0, 1 << 62, size_bytes // 8))
    indices = pa.array(np.arange(100, dtype=np.int32))
    return pa.table({"c": pa.DictionaryArray.from_arrays(indices, values)})


def statistics(server: ServerProcess) -> Any:
    """What the server counts."""
    return json.loads(get(f"{server.http}/v1/statistics").body)


def test_sealed_datasets_of_dictionaries_leave_room_for_producers_and_are_read_back(
    flight_server_process: Start,
) -> None:
    limit_bytes = 16 * MIB
    server = flight_server_process(memory_limit=limit_bytes, budget_deadline_seconds=20)
    tables = {f"d{number}": coded(3 * MIB // 2, number) for number in range(12)}
    with flight.connect(server.location) as client:
        for name, data in tables.items():
            put(client, data, dataset=name)
        plain = pa.table({"n": np.arange(3 * MIB)})
        put(client, plain, dataset="plain", chunk_rows=MIB // 8)
        for name, data in tables.items():
            assert client.do_get(flight.Ticket(name.encode())).read_all() == data
            assert get(f"{server.http}/v1/datasets/{name}").table() == data
        assert get(f"{server.http}/v1/datasets/plain").table() == plain
    shown = statistics(server)
    assert shown["memory"]["peak_bytes"] <= limit_bytes + 3 * MIB  # and a message that has just come
    assert server.events("internal_error") == []
    assert server.events("spiller_failed") == []


def test_a_restarted_server_reads_each_frame_once_though_each_needs_another_dictionary(
    tmp_path: Path, flight_server_process: Start
) -> None:
    pieces = [coded(20_000, number) for number in range(10)]
    batches = [batch for piece in pieces for batch in piece.to_batches()]
    server = flight_server_process(data_dir=tmp_path)
    with flight.connect(server.location) as client:
        action(client, "create", dataset="d", durable=True)
        writer, _ = client.do_put(flight.FlightDescriptor.for_path("d"), batches[0].schema)
        with writer:
            for batch in batches:
                writer.write_batch(batch)
    server.kill()
    server = flight_server_process(data_dir=tmp_path)
    with flight.connect(server.location) as client:
        for reads in (1, 2):
            table = (
                client.do_get(flight.Ticket(b"d")).read_all()
                if reads == 1
                else get(f"{server.http}/v1/datasets/d").table()
            )
            assert table.to_batches() == batches
            assert statistics(server)["frames_read_back"] == 10 * reads


def test_a_dictionary_that_is_damaged_on_disk_is_an_error_and_never_other_data(
    tmp_path: Path, flight_server_process: Start
) -> None:
    server = flight_server_process(data_dir=tmp_path)
    with flight.connect(server.location) as client:
        for name in ("damaged", "whole"):
            action(client, "create", dataset=name, durable=True)
            put(client, coded(MIB, 0), dataset=name)
    server.kill()
    server = flight_server_process(data_dir=tmp_path)
    (segment,) = (tmp_path / "datasets").glob("damaged-*/segment-*")
    with segment.open("r+b") as file:
        file.seek(MIB // 2)
        byte = file.read(1)[0]
        file.seek(MIB // 2)
        file.write(bytes([byte ^ 1]))
    with flight.connect(server.location) as client:
        with pytest.raises(flight.FlightInternalError, match=r"dataset .damaged. partition 0: data loss"):
            client.do_get(flight.Ticket(b"damaged")).read_all()
        assert client.do_get(flight.Ticket(b"whole")).read_all() == coded(MIB, 0)


@pytest.mark.parametrize("lane", ["bulk", "grpc"])
def test_many_readers_that_take_nothing_do_not_hold_a_copy_of_the_dictionary_each(
    flight_server_process: Start, lane: Lane
) -> None:
    limit_bytes = 64 * MIB
    server = flight_server_process(memory_limit=limit_bytes, stall_seconds=0.5)
    data = coded(7 * MIB, 0)
    with flight.connect(server.location) as client, ExitStack() as opened:
        put(client, data, dataset="d")
        pause(opened, server, lane, "d", 20)
        assert get(f"{server.http}/v1/datasets/d").table() == data
        shown = statistics(server)
        assert shown["memory"]["accounts"]["sends"]["peak_bytes"] >= 7 * MIB
        assert shown["memory"]["peak_bytes"] <= limit_bytes
        assert server.peak_rss_bytes() <= limit_bytes + CONSTANT_BYTES
    eventually(lambda: statistics(server)["waits"], 0)
