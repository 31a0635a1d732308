"""What a driver knows of a sealed dataset saves its tasks requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol import REUSE_CONNECTION, NotFound
from spark_client.connection import RemoteServer
from spark_client.jobs import Shuffles
from spark_client.merge import DatasetRef
from spark_client.spill import TaskMemory
from spark_client.spill.scratch import Scratch
from tests.support.driver_datasets import write_dataset
from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("n", pa.null())])
FILLED = {0: 2, 7: 1, 8: 3, 18: 1}


@pytest.fixture(scope="module")
def server() -> Iterator[RemoteServer]:
    with ServerProcess.start(http_port=0) as process:
        found = RemoteServer(process.location)
        yield found
        found.close()


@pytest.fixture
def shuffles(server: RemoteServer) -> Iterator[Shuffles]:
    found = Shuffles(server, 60.0)
    yield found
    found.close()


def written(shuffles: Shuffles, partitions: int) -> DatasetRef:
    batches = {
        partition: [pa.record_batch([pa.nulls(rows)], schema=SCHEMA)] for partition, rows in FILLED.items()
    }
    return write_dataset(shuffles, "d", SCHEMA, partitions, batches)


def test_every_partition_with_rows_is_read_also_rows_without_data(shuffles: Shuffles) -> None:
    source = written(shuffles, 20)
    rows = {partition: sum(batch.num_rows for batch in source.read(partition)) for partition in range(20)}
    assert rows == {partition: FILLED.get(partition, 0) for partition in range(20)}


def test_a_partition_that_was_sealed_without_rows_is_not_asked_for(shuffles: Shuffles) -> None:
    source = written(shuffles, 40)
    shuffles.loop.release(lambda machine: machine.release("d"))
    for partition in set(range(40)) - set(FILLED):
        assert list(source.read(partition)) == []
    for partition in FILLED:
        with pytest.raises(NotFound):
            list(source.read(partition))


def test_a_dataset_is_read_where_its_flight_info_says(shuffles: Shuffles) -> None:
    source = written(shuffles, 20)
    found = DatasetRef.find(source.server, source.dataset, source.generation)
    assert [set(each.locations) - {REUSE_CONNECTION} for each in found.portions] == [
        set(each.locations) for each in source.portions
    ]
    assert [each.filled for each in found.portions] == [None]
    assert list(found.read(1)) == []


def test_what_a_merge_parks_on_disk_is_counted_in_the_tasks_memory(
    shuffles: Shuffles, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.record_batch({"n": np.arange(1 << 17)})
    source = write_dataset(shuffles, "large", rows.schema, 1, {0: [rows] * 12})
    park, parked = Scratch.park, threading.Event()

    def seen(scratch: Scratch, batches: Any) -> Any:
        try:
            return park(scratch, batches)
        finally:
            parked.set()

    monkeypatch.setattr(Scratch, "park", seen)
    memory = TaskMemory()
    # Less than one message: of several that the task has not asked for, one is held.
    batches = replace(source, most_bytes=1).read(0, memory)
    next(batches)
    assert parked.wait(60)
    assert sum(batch.num_rows for batch in batches) == 11 * rows.num_rows
    assert memory.spilled_bytes >= rows.nbytes
