"""Reading a partition, the same for both lanes.

Guarantee: :func:`read` yields every frame of the partition from ``start`` on, exactly once and in
order, each with the dictionary messages that this reader has not been sent yet, and ends only when
the partition is sealed and read to its end. Everything else is an error.

What is yielded holds its bytes and the room for their copy; they are given back when the consumer
comes for the next one, so the consumer must have handed the bytes to its transport by then.

A reader that starts at frame k (``from``) is sent the dictionaries in force at k, then what changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from .broadcast import EndOfQueue, WouldBlock
from .core import Core
from .dataset import Dataset
from .decoder import SchemaMessage
from .errors import CorruptFrame, Unavailable
from .frames import NO_DICTIONARIES, DictionaryMessage, Frame, Payload, missing_messages
from .memory import Reservation
from .partition import Totals
from .readback import ReadBack, Reader


@dataclass(slots=True)
class Outgoing:
    """One frame on its way to one reader."""

    frame: Frame
    dictionaries: list[DictionaryMessage]
    payload: Payload
    room: Reservation


async def schema_of(core: Core, dataset: Dataset, reader: Reader) -> SchemaMessage:
    """The dataset's schema, waiting for its first producer if nobody has said it.

    Raises:
        Unavailable: nobody has sent one within ``schema_seconds``.
    """
    if dataset.schema is not None:
        return dataset.schema
    seconds = core.settings.schema_seconds
    try:
        with core.waits.enter(
            "producer",
            dataset=reader.dataset,
            partition=reader.partition,
            peer=reader.peer,
            deadline_seconds=seconds,
        ):
            async with asyncio.timeout(seconds):
                return await dataset.described()
    except TimeoutError:
        raise Unavailable(
            f"dataset {dataset.name!r} has no schema yet: no producer has come within {seconds} s; "
            "start a producer, or create the dataset with its schema",
            dataset=dataset.name,
        ) from None


def totals_of(dataset: Dataset, index: int) -> Totals:
    """What the trailers say at the end of a read."""
    return dataset.partition(index).totals


async def read(core: Core, dataset: Dataset, reader: Reader, start: int) -> AsyncGenerator[Outgoing, None]:
    """See the module's text. Close the generator to leave; cancelling it is safe at each step.

    Raises:
        Released: retention has let frame ``start`` go.
        FlightShuffleError: the partition failed or was dropped.
    """
    partition = dataset.partition(reader.partition)
    subscription = partition.subscribe(start)
    with core.reading(subscription, reader):
        back = ReadBack(
            reader,
            subscription,
            sends=core.budget.sends,
            threads=core.store.io_threads,
            waits=core.waits,
            counted=core.read_back,
        )
        sent = NO_DICTIONARIES
        try:
            while True:
                try:
                    frame = subscription.next_nowait()
                except WouldBlock:
                    with core.waits.enter(
                        "producer", dataset=reader.dataset, partition=reader.partition, peer=reader.peer
                    ):
                        await subscription.wait()
                    continue
                except EndOfQueue:
                    return
                dictionaries = missing_messages(sent, frame.dictionaries)
                sent = frame.dictionaries
                payload, room = await back.next_to_send(frame)
                dataset.touch()
                core.counters.frames_out += 1
                core.counters.bytes_out += frame.size_bytes
                outgoing = Outgoing(frame, dictionaries, payload, room)
                del payload, room, frame
                yield outgoing
                del outgoing
        except CorruptFrame as corrupt:
            cause = CorruptFrame(
                f"dataset {dataset.name!r} partition {reader.partition}: {corrupt.message}",
                dataset=dataset.name,
                partition=reader.partition,
            )
            partition.corrupt(cause)
            raise cause from corrupt
        finally:
            back.close()
