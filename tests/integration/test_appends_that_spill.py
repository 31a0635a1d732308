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

Batches = Callable[[int], pa.RecordBatch]

PLAIN = pa.schema([("n", pa.int64()), ("m", pa.int64())])
CODED = pa.schema([("n", pa.int64()), ("word", pa.dictionary(pa.int32(), pa.string()))])


def plain(seed: int) -> pa.RecordBatch:
    numbers = np.random.default_rng(seed).integers(0, 1 << 62, (2, BATCH_ROWS))
    return pa.record_batch([pa.array(numbers[0]), pa.array(numbers[1])], schema=PLAIN)


def coded(seed: int) -> pa.RecordBatch:
    """Rows with a dictionary of their own, of some 0.4 MiB."""
    random = np.random.default_rng(seed)
    words = pa.array([f"{seed} {word}" for word in random.integers(0, 1 << 62, 15_000)])
    codes = pa.array(random.integers(0, len(words), BATCH_ROWS), pa.int32())
    numbers = pa.array(random.integers(0, 1 << 62, BATCH_ROWS))
    return pa.record_batch([numbers, pa.DictionaryArray.from_arrays(codes, words)], schema=CODED)


@pytest.fixture
def server(flight_server_process: Callable[..., ServerProcess]) -> Iterator[RemoteServer]:
    server = RemoteServer(flight_server_process(memory_limit="32MiB", http_port=0).location)
    yield server
    server.close()


def written(
    server: RemoteServer, mode: WriteMode, make: Batches, seeds: range, *, partitions: int = 3
) -> None:
    """Write a batch of each seed into the partitions by turns, a producer for each, and seal."""
    schema = make(0).schema
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    create = CreateRequest(
        "d", Kind.SHUFFLE, schema=text, partitions=100, mode=mode, write=f"{mode}-{seeds.start}"
    )
    generation = str(server.action("create", create.encode())["generation"])
    for partition in range(partitions):
        command = PutCommand("d", producer=partition, attempt="a", generation=generation)
        with PutStream(server, command, schema) as stream:
            for seed in seeds[partition::partitions]:
                stream.write(make(seed), partition)
            stream.commit()
    accepted = dict.fromkeys(range(partitions), "a")
    server.action("seal", SealRequest("d", generation, accepted, partitions=partitions).encode())


def in_order(make: Batches, *writes: range, partitions: int = 3) -> pa.Table:
    """What a reader of all these writes gets."""
    seeds = [
        seed for seeds in writes for partition in range(partitions) for seed in seeds[partition::partitions]
    ]
    return pa.Table.from_batches([make(seed) for seed in seeds])


def same(found: pa.Table, wanted: pa.Table) -> bool:
    """Whether they have the same rows; their dictionaries may be cut otherwise."""
    return all(
        one.cast(pa.string()).equals(other.cast(pa.string()))
        if pa.types.is_dictionary(one.type)
        else one.equals(other)
        for one, other in zip(found.columns, wanted.columns, strict=True)
    )


def spilled_bytes(client: ShuffleClient) -> int:
    return int(client.statistics()["disk"]["used_bytes"])


@pytest.mark.parametrize("make", [plain, pytest.param(coded, marks=pytest.mark.long)])
def test_what_was_appended_is_read_as_it_was_written_when_memory_has_ended(
    server: RemoteServer, make: Batches
) -> None:
    with ShuffleClient(server.location) as client:
        written(server, WriteMode.APPEND, make, range(15))
        written(server, WriteMode.APPEND, make, range(100, 115))
        client.put("other", in_order(plain, range(30), partitions=1))
        assert spilled_bytes(client) > 20 << 20
        expected = in_order(make, range(15), range(100, 115))
        for _ in range(2):
            assert same(client.get("d", ordered=True).read_all(), expected)
        assert client.get("other", ordered=True).read_all().equals(in_order(plain, range(30), partitions=1))


def test_many_appends_one_after_the_other_keep_every_row_of_each(server: RemoteServer) -> None:
    with ShuffleClient(server.location) as client:
        writes = [range(start, start + 12) for start in range(0, 96, 12)]
        for seeds in writes:
            written(server, WriteMode.APPEND, plain, seeds)
        assert spilled_bytes(client) > 48 << 20
        assert same(client.get("d", ordered=True).read_all(), in_order(plain, *writes))


def test_an_append_to_what_an_overwrite_left_does_not_find_the_files_of_the_overwritten(
    server: RemoteServer,
) -> None:
    with ShuffleClient(server.location) as client:
        written(server, WriteMode.NEW, plain, range(40))
        reader = client.get("d", ordered=True)
        written(server, WriteMode.OVERWRITE, plain, range(100, 130))
        written(server, WriteMode.APPEND, plain, range(200, 230))
        client.put("other", in_order(plain, range(30)))
        assert same(
            client.get("d", ordered=True).read_all(), in_order(plain, range(100, 130), range(200, 230))
        )
        assert same(reader.read_all(), in_order(plain, range(40))), "a reader of the overwritten one finishes"


def test_the_files_of_an_append_go_when_the_dataset_is_dropped(server: RemoteServer) -> None:
    with ShuffleClient(server.location) as client:
        written(server, WriteMode.APPEND, plain, range(30))
        written(server, WriteMode.APPEND, plain, range(100, 130))
        client.put("other", in_order(plain, range(30)))
        client.drop("d")
        client.drop("other")
        eventually(lambda: spilled_bytes(client), 0)
