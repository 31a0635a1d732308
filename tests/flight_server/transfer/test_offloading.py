"""What an object has, and what is left when it cannot be written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest
import pytest_asyncio

from flight_server.datasets import Dataset, own_start
from flight_server.frames import Encoder, FrameBuilder, SchemaMessage
from flight_server.node import Node
from flight_server.protocol import (
    Conflict,
    CreateRequest,
    DatasetDropped,
    Forbidden,
    ObjectIndex,
    Unavailable,
    check_prefix,
    folder_of,
    index_of,
    object_of,
)
from flight_server.protocol.checksums import crc32c
from flight_server.storage import StoredObject, stored_object
from flight_server.transfer import offloading
from tests.support.nodes import running_node
from tests.support.sealing import Held

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.dictionary(pa.int32(), pa.string()))])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest_asyncio.fixture
async def node(tmp_path: Path, root: Path) -> AsyncIterator[Node]:
    async with running_node(
        tmp_path, offload_to=[str(root)], memory_limit=64 << 20, segment_size=1 << 20
    ) as found:
        yield found
        found.offloads.close()


def rows(partition: int, frames: int = 3, each: int = 4) -> pa.Table:
    numbers = [partition * 1_000_000 + number for number in range(frames * each)]
    texts = pa.array([f"{partition}:{number % 7}" for number in numbers]).dictionary_encode()
    return pa.table([pa.array(numbers, pa.int64()), texts], schema=SCHEMA)


def sealed(node: Node, parts: dict[int, pa.Table], partitions: int = 5, rows_each: int = 4) -> Dataset:
    """Dataset ``a/d`` of partitions with frames of so many rows."""
    schema = SchemaMessage.of(SCHEMA)
    dataset, _ = node.catalogue.create(CreateRequest("a/d", partitions=partitions), schema)
    for index in range(partitions):
        partition = dataset.begin_stream(index)
        if index in parts:
            encoder = Encoder(SCHEMA, max_message_bytes=16 << 20)
            builder = FrameBuilder(node.budget.metadata, dataset.name, index)
            for checked in (
                each for batch in parts[index].to_batches(rows_each) for each in encoder.encode([batch])
            ):
                frame = builder.add(checked, node.budget.frames.reserve(checked.kept_bytes))
                if frame is not None:
                    partition.publish(frame)
        dataset.end_stream(partition)
    return dataset


def prefix_of(root: Path) -> str:
    return check_prefix(str(root / "mine"), "it")


def path_of(address: str) -> Path:
    return Path(address.removeprefix("file://"))


async def test_the_index_says_where_each_partition_is_and_what_it_has(
    node: Node, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_object, "PIECE_BYTES", 1)  # each burst is a piece
    monkeypatch.setattr(stored_object, "_SMALL_BODY_BYTES", 100)
    parts = {1: rows(1), 4: rows(4, frames=2), 2: rows(2, frames=700, each=4)}
    dataset = sealed(node, parts)
    address = await node.offloads.write(dataset, prefix_of(root))
    assert address == object_of(prefix_of(root), "a/d", dataset.generation, own_start())
    data = path_of(address).read_bytes()
    assert pa.ipc.open_stream(data).read_all().equals(pa.concat_tables([parts[1], parts[2], parts[4]]))
    index = ObjectIndex.parse(path_of(index_of(address)).read_bytes(), crc32c)
    assert index[:3] == ("a/d", dataset.generation, own_start())
    assert [*index.partitions] == [1, 2, 4]
    offset = index.schema.end
    assert crc32c(data[:offset]) == index.schema.crc32c
    for number, each in index.partitions.items():
        totals = dataset.partition(number).totals
        assert each[1:5] == (totals.rows, totals.frames, totals.crc32c, offset)
        # A partition is a stream of its own behind the schema.
        whole = pa.ipc.open_stream(data[: index.schema.end] + data[offset : each.pieces[-1].end]).read_all()
        assert whole.equals(parts[number])
        for piece in each.pieces:
            assert crc32c(data[offset : piece.end]) == piece.crc32c
            offset = piece.end
    assert len(index.partitions[2].pieces) > 1
    assert node.counters.gets == 0, "it is no read of a client"
    await node.offloads.forget(dataset)
    assert not [*(root / "mine").iterdir()]


async def test_a_dataset_without_rows_has_an_object_too(node: Node, root: Path) -> None:
    address = await node.offloads.write(sealed(node, {}), prefix_of(root))
    assert pa.ipc.open_stream(path_of(address).read_bytes()).read_all().num_rows == 0
    assert ObjectIndex.parse(path_of(index_of(address)).read_bytes(), crc32c).partitions == {}


async def test_the_object_of_a_dataset_that_was_replaced_is_deleted(node: Node, root: Path) -> None:
    address = await node.offloads.write(sealed(node, {1: rows(1)}), prefix_of(root))
    await node.offloads.forget_ended()
    assert path_of(address).exists()
    node.catalogue.install(node.catalogue.prepare(CreateRequest("a/d"), SchemaMessage.of(SCHEMA)))
    await node.offloads.forget_ended()
    assert not path_of(address).exists()


@pytest.mark.parametrize("suffix", [".arrows", ".json"])
async def test_a_full_disk_fails_the_write_and_leaves_nothing(node: Node, root: Path, suffix: str) -> None:
    dataset = sealed(node, {0: rows(0)})
    folder = path_of(folder_of(prefix_of(root), "a/d", dataset.generation))
    folder.mkdir(parents=True)
    (folder / (own_start() + suffix)).symlink_to("/dev/full")
    with pytest.raises(Unavailable, match=r"'a/d' could not be offloaded to .*No space left"):
        await node.offloads.write(dataset, prefix_of(root))
    assert not folder.exists()
    await node.offloads.write(dataset, prefix_of(root))


@pytest.mark.parametrize("method", ["begin", "write", "finish"])
async def test_a_storage_that_does_not_answer_fails_the_write_at_its_deadline(
    node: Node, root: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The late call, which goes on in its thread, neither leaves anything nor writes into a later object."""
    node.offloads.deadline_seconds = 0.05
    dataset = sealed(node, {0: rows(0)})
    held = Held(StoredObject, method, monkeypatch)
    for why in ("no answer for 0.05 s", "no answer yet to an earlier call"):
        with pytest.raises(Unavailable, match=why):
            await node.offloads.write(dataset, prefix_of(root))
    assert dataset.stored is None
    node.offloads.deadline_seconds = 30
    (late,) = node.offloads._late.values()
    held.go_on()
    await late
    assert not [*(root / "mine").iterdir()]
    address = await node.offloads.write(dataset, prefix_of(root))
    assert pa.ipc.open_stream(path_of(address).read_bytes()).read_all().num_rows == 12


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_a_write_that_is_cancelled_and_one_whose_dataset_is_dropped_leave_nothing(
    node: Node, root: Path, monkeypatch: pytest.MonkeyPatch, is_dropped: bool
) -> None:
    dataset = sealed(node, {0: rows(0)})
    held = Held(StoredObject, "finish" if is_dropped else "write", monkeypatch)
    writing = asyncio.ensure_future(node.offloads.write(dataset, prefix_of(root)))
    await held.reached()
    if is_dropped:
        node.catalogue.drop("a/d")
    else:
        writing.cancel()
    held.go_on()
    with pytest.raises(DatasetDropped if is_dropped else asyncio.CancelledError):
        await writing
    assert not [*(root / "mine").iterdir()]


@pytest.mark.parametrize("again", [False, True])
async def test_an_object_that_the_storage_did_not_delete_is_deleted_later_unless_it_was_written_again(
    node: Node, root: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    dataset = sealed(node, {1: rows(1)})
    path = path_of(await node.offloads.write(dataset, prefix_of(root)))
    with monkeypatch.context() as patch:
        patch.setattr(StoredObject, "remove", broken)
        await node.offloads.forget(dataset)
        await node.offloads.forget_ended()
    assert path.exists()
    if again:
        await node.offloads.write(dataset, prefix_of(root))
    monkeypatch.setattr(offloading, "REMOVE_AGAIN_SECONDS", 0.0)
    node.offloads._removes_again_at = 0.0
    await node.offloads.forget_ended()
    assert path.exists() is again


def broken(_: StoredObject) -> None:
    raise OSError("the storage is broken")


async def test_two_writes_at_once_write_one_object(node: Node, root: Path) -> None:
    dataset = sealed(node, {0: rows(0)})
    both = await asyncio.gather(*(node.offloads.write(dataset, prefix_of(root)) for _ in range(2)))
    assert both[0] == both[1]
    with pytest.raises(Conflict, match="was offloaded to"):
        await node.offloads.write(dataset, prefix_of(root) + "2")
    with pytest.raises(Forbidden, match="may write below"):
        await node.offloads.write(sealed_again(node), "s3://bucket/path")


def sealed_again(node: Node) -> Dataset:
    node.catalogue.drop("a/d")
    return sealed(node, {})
