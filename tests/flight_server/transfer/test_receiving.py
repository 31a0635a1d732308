"""Receiving puts without gRPC: cancelled at every step, out of memory, decoded in threads, broken off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.datasets.partition import PartitionState
from flight_server.frames import decoder
from flight_server.memory import Reservation
from flight_server.memory.accounts import FRAME_BYTES
from flight_server.node import Node
from flight_server.protocol import CreateRequest, Kind
from flight_server.protocol.errors import (
    BadFrame,
    Conflict,
    DatasetDropped,
    Draining,
    FlightShuffleError,
    InvalidRequest,
    ProducerFailed,
)
from tests.support.callers import anyone
from tests.support.nodes import read_messages, read_table
from tests.support.raw_flight import command, commit, flight_data, ipc_messages, path, put_messages

BATCH = pa.record_batch({"n": [1, 2, 3]})
WORDS = [pa.record_batch({"w": pa.array(words).dictionary_encode()}) for words in (["a"], ["b", "c"])]
ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")


class Client:
    """Both directions of a put. ``broken``: gRPC says that the requests have ended, and then cancels."""

    checksum: int | None = None

    def __init__(self, messages: Sequence[bytes], *, broken: bool = False, pauses: int = 1) -> None:
        self.answers: list[bytes] = []
        self._messages = messages
        self._broken = broken
        self._pauses = pauses

    def put(self, metadata: bytes, room: Reservation | None = None) -> None:
        self.answers.append(metadata)

    async def confirm_end(self) -> None:
        await self._pause()
        if self._broken:
            raise asyncio.CancelledError

    async def requests(self) -> AsyncIterator[bytes]:
        for message in self._messages:
            await self._pause()
            yield message
        await self._pause()

    async def _pause(self) -> None:
        for _ in range(self._pauses):
            await asyncio.sleep(0)


async def receive(node: Node, messages: Sequence[bytes], **options: Any) -> Client:
    client = Client(messages, **options)
    async with asyncio.timeout(30):
        await node.puts.receive(
            client.requests(), node.puts.producer(anyone(node.catalogue, "DoPut", "test")), client
        )
    return client


def nothing_left(node: Node) -> bool:
    kept_bytes = node.budget.metadata.pool.used_bytes  # of the datasets themselves
    return node.budget.memory.used_bytes == kept_bytes and len(node.waits) == 0


async def test_a_put_that_only_seems_to_end_is_not_sealed(node: Node) -> None:
    with pytest.raises(asyncio.CancelledError):
        await receive(node, put_messages(path("d"), [BATCH]), broken=True)
    partition = node.catalogue.find("d").partition(0)
    assert partition.state is PartitionState.FAILED
    with pytest.raises(ProducerFailed, match="its producer broke off"):
        await read_messages(node, node.catalogue.find("d"))
    assert nothing_left(node)


STREAM = put_messages(path("d"), [BATCH, BATCH])
ATTEMPT = put_messages(
    command({"dataset": "s", "producer": 0, "attempt": "a"}), [BATCH, BATCH], metadata=iter([b"0", b"1"])
)
OVERWRITE = put_messages(command({"dataset": "old", "mode": "overwrite"}), [BATCH])
LARGE = put_messages(path("d"), [pa.record_batch({"n": np.zeros(1 << 20)})] * 2, options=ZSTD)


@pytest.mark.parametrize(
    "messages",
    [STREAM, [*ATTEMPT, commit(6, 2)], OVERWRITE, put_messages(path("d"), WORDS), LARGE],
    ids=["stream", "attempt", "overwrite", "dictionaries", "decoded in a thread"],
)
async def test_a_put_cancelled_at_any_step_is_whole_or_gone(node: Node, messages: list[bytes]) -> None:
    finished = False
    for steps in range(200):
        await receive(node, put_messages(path("old"), [BATCH]))
        node.catalogue.create(CreateRequest("s", Kind.SHUFFLE, partitions=2), None)
        task = asyncio.ensure_future(receive(node, messages))
        for step in range(steps):
            # Late steps wait for the thread, which a fast loop would otherwise always outrun; ever longer,
            # because how long it takes is the machine's choice.
            await asyncio.sleep(0 if step < 100 else 0.001 * 1.1 ** (step - 100))
        finished = task.done()
        task.cancel()
        await asyncio.wait([task])
        whole = not task.cancelled()
        attempts = [attempt.state.value for attempt in node.catalogue.find("s").attempts]
        assert attempts in ([], ["committed"])
        assert len(await read_messages(node, node.catalogue.find("old"))) == 1
        if "d" in [dataset.name for dataset in node.catalogue]:
            state = node.catalogue.find("d").partition(0).state
            assert state is (PartitionState.SEALED if whole else PartitionState.FAILED)
        for dataset in node.catalogue:
            node.catalogue.drop(dataset.name)
        if finished:
            break
    assert finished, "the put was cancelled before its end every time"
    for _ in range(1000):  # a thread may still be decoding
        if nothing_left(node):
            break
        await asyncio.sleep(0.01)
    assert nothing_left(node)


@pytest.mark.parametrize("what", ["a stream", "an attempt"])
@pytest.mark.parametrize("is_dropped", [False, True])
async def test_a_put_that_the_server_holds_back_keeps_its_lease_and_is_told_of_a_drop(
    node: Node, what: str, is_dropped: bool
) -> None:
    now = 0.0
    kind = Kind.STREAM if what == "a stream" else Kind.SHUFFLE
    dataset, _ = node.catalogue.create(CreateRequest("d", kind, lease_seconds=10), None)
    dataset._clock = lambda: now
    dataset.touch()
    waiting, admitted = asyncio.Event(), asyncio.Event()
    admit = node.admission.admit

    async def held_back(*arguments: Any, **options: Any) -> Any:
        waiting.set()
        await admitted.wait()
        return await admit(*arguments, **options)

    node.admission.admit = held_back  # type: ignore[method-assign]
    node.admission.admit_nowait = lambda size_bytes: None  # type: ignore[method-assign]
    messages = put_messages(path("d"), [BATCH])
    if kind is Kind.SHUFFLE:
        attempt = command({"dataset": "d", "producer": 0, "attempt": "a"})
        messages = [*put_messages(attempt, [BATCH], metadata=iter([b"0"])), commit(3, 1)]
    putting = asyncio.create_task(receive(node, messages))
    await waiting.wait()
    now = 100.0
    assert not any(node.catalogue.expire())
    if is_dropped:
        node.catalogue.drop("d")
    admitted.set()
    if is_dropped:
        with pytest.raises(DatasetDropped, match="dataset 'd' was dropped while"):
            await putting
        return
    await putting
    assert not any(node.catalogue.expire())
    now = 111.0
    assert list(filter(None, node.catalogue.expire())) == [dataset]


async def test_what_is_decompressed_is_counted_while_it_is(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    decode = decoder.FrameDecoder.decode

    def watched(
        self: decoder.FrameDecoder, inspected: decoder.Inspected, said: int | None
    ) -> decoder.Accepted:
        seen.append(node.budget.arrivals.used_bytes)
        return decode(self, inspected, said)

    monkeypatch.setattr(decoder.FrameDecoder, "decode", watched)
    await receive(node, LARGE)
    assert seen[1:] == [8 << 20, 8 << 20]
    assert node.budget.arrivals.used_bytes == 0
    assert (await read_table(node, node.catalogue.find("d"))).num_rows == 2 << 20


async def held_at_the_end(node: Node, messages: Sequence[bytes]) -> int:
    """The bytes of ``frames`` when the put of these messages is at its end, but for those of datasets."""
    held: list[int] = []

    class Watching(Client):
        async def confirm_end(self) -> None:
            held.append(node.budget.frames.used_bytes - node.budget.metadata.pool.used_bytes)

    client = Watching(messages)
    await node.puts.receive(
        client.requests(), node.puts.producer(anyone(node.catalogue, "DoPut", "test")), client
    )
    return held[0]


async def test_dictionaries_that_no_batch_follows_are_counted_too(node: Node) -> None:
    batch = pa.record_batch({"w": pa.array([str(n) * 100 for n in range(1000)]).dictionary_encode()})
    schema, dictionary, _ = ipc_messages(batch.schema, [batch])
    replacement = flight_data(dictionary.header, dictionary.body)
    put = [flight_data(schema.header, descriptor=path("d")), *[replacement] * 5]
    # The decoder has not decoded one of them, so it still holds all five.
    assert await held_at_the_end(node, put) == 5 * (len(replacement) + FRAME_BYTES)
    assert nothing_left(node)


async def test_what_the_decoder_keeps_of_compressed_dictionaries_is_counted(node: Node) -> None:
    batch = pa.record_batch({"w": pa.array(["x" * 100_000, "y" * 100_000]).dictionary_encode()})
    messages = put_messages(path("d"), [batch], options=ZSTD)
    stored = len(messages[1]) + len(messages[2])
    assert await held_at_the_end(node, messages) > stored + 200_000
    kept_bytes = stored + 2 * FRAME_BYTES + node.budget.metadata.pool.used_bytes
    assert node.budget.frames.used_bytes == kept_bytes


async def test_a_put_to_another_partition_than_the_failed_one_has_leaves_it_alone(node: Node) -> None:
    with pytest.raises(BadFrame):
        await receive(node, [*STREAM, b"\xff"])
    before = node.catalogue.find("d")
    with pytest.raises(FlightShuffleError, match="partitions 0 to 0, not 1"):
        await receive(node, put_messages(path("d", "1"), [BATCH]))
    assert node.catalogue.find("d") is before


async def test_a_put_whose_first_message_comes_after_the_drain_has_begun_is_refused(node: Node) -> None:
    node.catalogue.create(CreateRequest("s", Kind.SHUFFLE, partitions=2), None)
    node.catalogue.draining = True
    for messages in (STREAM, ATTEMPT, OVERWRITE):
        with pytest.raises(Draining):
            await receive(node, messages)


async def test_a_commit_of_a_stream_must_agree_and_comes_once(node: Node) -> None:
    start = put_messages(command({"dataset": "d", "producer": 0, "attempt": "a"}), [BATCH])
    with pytest.raises(InvalidRequest, match="4 rows in 1 frames, but 3 rows in 1 frames arrived"):
        await receive(node, [*start, commit(4, 1)])
    assert node.catalogue.find("d").partition(0).state is PartitionState.FAILED
    client = await receive(node, [*start, commit(3, 1)])
    (answer,) = client.answers
    assert json.loads(answer)["committed"] is True
    node.catalogue.drop("d")
    with pytest.raises(Conflict, match="a second commit"):
        await receive(node, [*start, commit(3, 1), commit(3, 1)])
    assert (await read_table(node, node.catalogue.find("d"))).num_rows == 3
