"""Every dataset that the server seals is accepted by its next start, with the same rows."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.frames.message import NO_DICTIONARIES
from flight_server.kinds.seals import seal
from flight_server.node import Node
from flight_server.protocol import (
    Commit,
    CreateRequest,
    InvalidRequest,
    Kind,
    Retention,
    SealRequest,
    WriteMode,
)
from tests.support.examples import examples
from tests.support.frames import dictionary
from tests.support.ram_directory import ram_directory
from tests.support.sealing import SCHEMA, bytes_of, durable_node, frame, restarted

PARTITIONS = 6


@dataclass(frozen=True)
class Case:
    """A shuffle: what it is created with, whose partitions readers ask for, what attempts write, how it is sealed."""

    mode: WriteMode | None
    retention: Retention
    lease_seconds: float | None
    asked_early: list[int]
    attempts: list[list[int]]  # the partition of each frame
    dictionaries: bool
    narrow: int | None
    partition_bytes: int | None
    spilled: bool


indices = st.integers(0, PARTITIONS - 1)
cases = st.builds(
    Case,
    mode=st.sampled_from([None, *(mode for mode in WriteMode if mode is not WriteMode.DELETE)]),
    retention=st.sampled_from([Retention(), Retention(readers=2), Retention(seconds=1000)]),
    lease_seconds=st.sampled_from([None, 50.0]),
    asked_early=st.lists(indices, max_size=PARTITIONS),
    attempts=st.lists(st.lists(indices, max_size=5), max_size=3),
    dictionaries=st.booleans(),
    narrow=st.none() | st.integers(1, PARTITIONS),
    partition_bytes=st.none() | st.sampled_from([1, 20, 1000]),
    spilled=st.booleans(),
)


async def sealed(node: Node, case: Case) -> dict[int, list[bytes]] | None:
    """The frames of each partition; None if the seal was refused."""
    request = CreateRequest(
        "d",
        Kind.SHUFFLE,
        partitions=PARTITIONS,
        durable=True,
        retention=case.retention,
        lease_seconds=case.lease_seconds,
        mode=case.mode,
        write=None if case.mode is None else "w",
    )
    make = node.catalogue.create if case.mode is None else node.catalogue.stage
    dataset, _ = make(request, SCHEMA)
    for index in case.asked_early:
        dataset.partition(index)
    for producer, places in enumerate(case.attempts):
        attempt = dataset.begin_attempt(producer, "a")
        state = NO_DICTIONARIES
        if case.dictionaries:
            data = b"dictionary of %d" % producer
            message = dictionary(data, pool=node.budget.frames)
            state = state.replaced(0, message, delta=False)
        for number, place in enumerate(places):
            attempt.publish(place, frame(node, b"%d of %d" % (number, producer), state))
        if case.spilled and places and dataset.writer is not None:
            first = attempt.frames.item(0)
            assert first.payload is not None
            first.move_to(dataset.writer.append([first.payload.data])[0])
        dataset.commit(attempt, Commit(attempt.rows, len(places)))
    wanted = SealRequest("d", dataset.generation, dict.fromkeys(range(len(case.attempts)), "a"))
    if case.mode is not None:
        wanted = replace(wanted, partitions=case.narrow, partition_bytes=case.partition_bytes)
    try:
        await seal(node.durability, dataset, wanted)
    except InvalidRequest:
        return None
    return {
        partition.index: await bytes_of(node.catalogue, dataset, partition.index)
        for partition in dataset.partitions()
    }


async def check(case: Case) -> None:
    with ram_directory() as directory:
        async with durable_node(directory) as node:
            expected = await sealed(node, case)
        with closing(restarted(directory)) as catalogue:
            assert catalogue.disk.quarantine.entries == []
            found = catalogue.get("d")
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert {index: await bytes_of(catalogue, found, index) for index in expected} == expected
                assert found.partition_count <= PARTITIONS
                assert (found.retention, found.lease_seconds) == (case.retention, case.lease_seconds)


@settings(max_examples=examples(0.5))
@given(cases)
def test_what_was_sealed_is_there_after_a_restart_with_the_same_rows(case: Case) -> None:
    asyncio.run(check(case))
