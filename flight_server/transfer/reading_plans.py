"""Cuts sealed partitions into slices of about one size, for readers that share them.

Guarantee: the slices of a partition have every frame that is left of it exactly once, in order. A slice has at most
``target_bytes`` and half of each frame at its borders, so no more than one frame beyond the target; a partition within
the target is one slice, and one without frames none. The answer grows with the partitions and slices, not the frames.

Each slice can be read by a ticket with ``from`` and ``until``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import NamedTuple

from flight_server.concurrency import Slice, in_slices
from flight_server.datasets import Dataset, PartitionState
from flight_server.protocol import InvalidRequest, PlanRequest, dump_json
from flight_server.tiering import Loading

MAX_SLICES = 200_000
"""In one answer, which is then about 5 MB."""
_SLICE_BYTES, _HEAD_BYTES = 48, 512  # in the answer
_AT_ONCE = 1000
"""Frames between two passes of the event loop."""


class PlannedSlice(NamedTuple):
    """The frames from ``first`` to before ``end`` of a partition, and their stored bytes."""

    partition: int
    first: int
    end: int
    size_bytes: int


async def plan_bytes(dataset: Dataset, request: PlanRequest) -> int:
    """The most that :func:`plan_json` has."""
    frames = size_bytes = 0
    count = 0 if request.partitions is None else len(request.partitions)
    async for partition in in_slices(dataset.partitions()):
        totals = partition.totals
        frames, size_bytes, count = frames + totals.frames, size_bytes + totals.bytes, count + 1
    slices = min(MAX_SLICES, frames, size_bytes // request.target_bytes + count)
    return slices * _SLICE_BYTES + _HEAD_BYTES


async def plan_json(dataset: Dataset, request: PlanRequest, loading: Loading) -> bytes:
    """The slices of the partitions as the answer to ``plan``; other tasks run meanwhile. Raises as :func:`planned`."""
    head = dump_json({"dataset": dataset.name, "generation": dataset.generation, "pieces": []})
    parts = [head.decode().removesuffix("]}")]
    texts: list[str] = []
    async for number, first, end, size_bytes in planned(dataset, request, loading):
        texts.append(f"[{number},{first},{end},{size_bytes}]")
        if len(texts) == _AT_ONCE:
            parts.append(",".join(texts) + ",")
            texts.clear()
    return ("".join([*parts, ",".join(texts)]).removesuffix(",") + "]}").encode()


async def planned(
    dataset: Dataset, request: PlanRequest, loading: Loading
) -> AsyncGenerator[PlannedSlice, None]:
    """The slices of the partitions, in their order. Other tasks run between them.

    Raises:
        Conflict: a partition is not sealed. InvalidRequest: none ever is (``Attachment.not_sealed``).
        InvalidRequest: there would be more than ``MAX_SLICES``.
        NotFound: the dataset has no such partition.
        OutOfBudget, ReadTrouble: see :meth:`Loading.load`.
    """
    dataset.touch()
    numbers = (
        sorted(partition.index for partition in dataset.partitions())
        if request.partitions is None
        else request.partitions
    )
    if not dataset.sealed and request.partitions is None:
        raise dataset.attached.not_sealed(dataset)
    count = 0
    present = Slice()
    for number in numbers:
        await present.end()
        if dataset.lacks_frames(number):
            continue
        partition = dataset.partition(number)
        partition.check()
        if partition.state is not PartitionState.SEALED:
            raise dataset.attached.not_sealed(dataset)
        first = partition.first_left
        pieces: Iterable[tuple[int, int, int] | None]
        if partition.bytes_left <= request.target_bytes:
            # Its frames' sizes do not matter, so a recovered one need not be loaded.
            left = partition.frames_left
            pieces = [(0, left, partition.bytes_left)] if left else []
        else:
            await loading.load(dataset, partition)
            pieces = cut(partition.table.sizes(), request.target_bytes)
        for frame, piece in enumerate(pieces, 1):
            if frame % _AT_ONCE == 0:
                await present.end()
            if piece is None:
                continue
            if count == MAX_SLICES:
                raise InvalidRequest(
                    f"plan: dataset {dataset.name!r} has more than {MAX_SLICES} pieces of {request.target_bytes} "
                    "bytes; give a larger 'target_bytes', or ask for some of its 'partitions' at a time",
                    dataset=dataset.name,
                )
            count += 1
            yield PlannedSlice(number, first + piece[0], first + piece[1], piece[2])


def cut(sizes: Sequence[int], target_bytes: int) -> Iterator[tuple[int, int, int] | None]:
    """First frame, end and bytes of each slice: as many slices as the target asks for, their ends where they are
    nearest to equal sizes. A frame that is larger than several slices is one.

    Yields once for each frame: a slice that ends with it, or None. So the work grows with the frames, however small the
    target is.
    """
    total_bytes = sum(sizes)
    count = -(-total_bytes // target_bytes)
    start = start_bytes = end_bytes = 0
    for number, size_bytes in enumerate(sizes, 1):
        nearest_from = -(-(2 * end_bytes + size_bytes) // 2)
        end_bytes += size_bytes
        if number < len(sizes):
            # Half of the frames at this border: the end of a slice of equal size that lies there is nearest to it.
            nearest_below = -(-(2 * end_bytes + sizes[number]) // 2)
            share = -(-nearest_from * count // total_bytes)
            ends = 1 <= share < count and total_bytes * share // count < nearest_below
        else:
            ends = True
        if ends:
            yield start, number, end_bytes - start_bytes
            start, start_bytes = number, end_bytes
        else:
            yield None
