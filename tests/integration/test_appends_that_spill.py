"""Appends to a dataset, and memory that ends afterwards: what was appended has files of its own writer's."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol import CreateRequest, Kind, PutCommand, SealRequest, WriteMode
from spark_client import ShuffleClient
from spark_client.connection import RemoteServer
from spark_client.lanes import PutStream
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

BATCH_ROWS = 65_536  # of 16 bytes each: 1 MiB
PARTITIONS = 3

SCHEMA = pa.schema([("n", pa.int64()), ("m", pa.int64())])


def batch(seed: int) -> pa.RecordBatch:
    numbers = np.random.default_rng(seed).integers(0, 1 << 62, (2, BATCH_ROWS))
    return pa.record_batch([pa.array(numbers[0]), pa.array(numbers[1])], schema=SCHEMA)


@pytest.fixture
def server(flight_server_process: Callable[..., ServerProcess]) -> Iterator[RemoteServer]:
    server = RemoteServer(flight_server_process(memory_limit="32MiB", http_port=0).location)
    yield server
    server.close()


def written(server: RemoteServer, mode: WriteMode, seeds: range) -> None:
    """Write a batch of each seed into the partitions by turns, a producer for each, and seal."""
    text = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    create = CreateRequest(
        "d", Kind.SHUFFLE, schema=text, partitions=100, mode=mode, write=f"{mode}-{seeds.start}"
    )
    generation = str(server.action("create", create.encode())["generation"])
    for partition in range(PARTITIONS):
        command = PutCommand("d", producer=partition, attempt="a", generation=generation)
        with PutStream(server, command, SCHEMA) as stream:
            for seed in seeds[partition::PARTITIONS]:
                stream.write(batch(seed), partition)
            stream.commit()
    accepted = dict.fromkeys(range(PARTITIONS), "a")
    server.action("seal", SealRequest("d", generation, accepted, partitions=PARTITIONS).encode())


def in_order(*writes: range) -> pa.Table:
    """What a reader of all these writes gets."""
    seeds = [
        seed for seeds in writes for partition in range(PARTITIONS) for seed in seeds[partition::PARTITIONS]
    ]
    return pa.Table.from_batches([batch(seed) for seed in seeds])


def spilled_bytes(client: ShuffleClient) -> int:
    return int(client.statistics()["disk"]["used_bytes"])


def test_many_appends_one_after_the_other_keep_every_row_of_each(server: RemoteServer) -> None:
    with ShuffleClient(server.location) as client:
        writes = [range(start, start + 12) for start in range(0, 96, 12)]
        for seeds in writes:
            written(server, WriteMode.APPEND, seeds)
        assert spilled_bytes(client) > 48 << 20
        assert client.get("d", ordered=True).read_all().equals(in_order(*writes))


def test_an_append_to_what_an_overwrite_left_does_not_find_the_files_of_the_overwritten(
    server: RemoteServer,
) -> None:
    with ShuffleClient(server.location) as client:
        written(server, WriteMode.NEW, range(40))
        reader = client.get("d", ordered=True)
        written(server, WriteMode.OVERWRITE, range(100, 130))
        written(server, WriteMode.APPEND, range(200, 230))
        client.put("other", in_order(range(30)))
        assert client.get("d", ordered=True).read_all().equals(in_order(range(100, 130), range(200, 230)))
        assert reader.read_all().equals(in_order(range(40))), "a reader of the overwritten one finishes"


def test_the_files_of_an_append_go_when_the_dataset_is_dropped(server: RemoteServer) -> None:
    with ShuffleClient(server.location) as client:
        written(server, WriteMode.APPEND, range(30))
        written(server, WriteMode.APPEND, range(100, 130))
        client.put("other", in_order(range(30)))
        client.drop("d")
        client.drop("other")
        eventually(lambda: spilled_bytes(client), 0)
