"""What a driver knows of a sealed dataset saves its tasks requests."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from flight_server.protocol import NotFound, PutCommand
from spark_client.connection import Server
from spark_client.jobs import Readable, Shuffles
from spark_client.lanes import PutStream
from tests.support.server_process import ServerProcess

SCHEMA = pa.schema([("n", pa.null())])
FILLED = {0: 2, 7: 1, 8: 3, 18: 1}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with ServerProcess.start(http_port=0) as process:
        found = Server(process.location)
        yield found
        found.close()


@pytest.fixture
def shuffles(server: Server) -> Iterator[Shuffles]:
    found = Shuffles(server, 60.0)
    yield found
    found.close()


def written(shuffles: Shuffles, partitions: int) -> Readable:
    generation, places = shuffles.create("d", SCHEMA, partitions)
    command = PutCommand("d", producer=0, attempt="1", generation=generation)
    with PutStream(shuffles.server, command, SCHEMA, places) as stream:
        for partition, rows in FILLED.items():
            stream.write(pa.record_batch([pa.nulls(rows)], schema=SCHEMA), partition)
        stream.commit()
    source, totals = shuffles.seal("d", generation, {0: "1"})
    assert totals["rows"] == sum(FILLED.values())
    return source


def test_every_partition_with_rows_is_read_also_rows_without_data(shuffles: Shuffles) -> None:
    source = written(shuffles, 20)
    rows = {partition: sum(batch.num_rows for batch in source.read(partition)) for partition in range(20)}
    assert rows == {partition: FILLED.get(partition, 0) for partition in range(20)}


def test_a_partition_that_was_sealed_without_rows_is_not_asked_for(shuffles: Shuffles) -> None:
    source = written(shuffles, 40)
    shuffles.drop("d")
    for partition in set(range(40)) - set(FILLED):
        assert list(source.read(partition)) == []
    for partition in FILLED:
        with pytest.raises(NotFound):
            list(source.read(partition))


def test_a_dataset_is_read_where_its_flight_info_says(shuffles: Shuffles) -> None:
    source = written(shuffles, 20)
    found = Readable.find(source.server, source.dataset, source.generation)
    assert found.places == source.places
    assert found.filled is None
    assert list(found.read(1)) == []
