"""Cuts sealed partitions into pieces of about one size, for readers that share them.

Guarantee: the pieces of a partition have every frame that is left of it exactly once, in order. A piece has at most
``target_bytes`` and half of each frame at its borders, so no more than one frame beyond the target; a partition within
the target is one piece, and one without frames none. The answer grows with the partitions and pieces, not the frames.

Each piece can be read by a ticket with ``from`` and ``until``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from flight_server.concurrency import in_slices
from flight_server.datasets import Dataset, PartitionState
from flight_server.protocol import Conflict, InvalidRequest, Kind, PlanRequest

MAX_PIECES = 1_000_000
"""In one answer."""


class Piece(NamedTuple):
    """The frames from ``first`` to before ``end`` of a partition, and their stored bytes."""

    partition: int
    first: int
    end: int
    size_bytes: int


async def plan(dataset: Dataset, request: PlanRequest) -> list[Piece]:
    """The pieces of the partitions, in their order. Other tasks run while a long answer is made.

    Raises:
        Conflict: a partition is not sealed.
        InvalidRequest: it is a changelog; or there would be more than ``MAX_PIECES``.
        NotFound: the dataset has no such partition.
    """
    dataset.touch()
    numbers = (
        sorted(partition.index for partition in dataset.partitions())
        if request.partitions is None
        else request.partitions
    )
    if not dataset.sealed and request.partitions is None:
        raise _not_sealed(dataset)
    pieces: list[Piece] = []
    async for number in in_slices(numbers):
        partition = dataset.partition(number)
        partition.check()
        if partition.state is not PartitionState.SEALED:
            raise _not_sealed(dataset)
        sizes = partition.table.sizes()
        if len(pieces) + min(len(sizes), partition.totals.bytes // request.target_bytes) > MAX_PIECES:
            raise InvalidRequest(
                f"plan: pieces of {request.target_bytes} bytes are more than {MAX_PIECES} for dataset "
                f"{dataset.name!r}; give a larger 'target_bytes', or fewer 'partitions'",
                dataset=dataset.name,
            )
        first = partition.table.first
        pieces += [
            Piece(number, first + start, first + end, size_bytes)
            for start, end, size_bytes in cut(sizes, request.target_bytes)
        ]
    return pieces


def cut(sizes: Sequence[int], target_bytes: int) -> list[tuple[int, int, int]]:
    """First frame, end and bytes of each piece: as many pieces as the target asks for, their ends where they are
    nearest to equal sizes. A frame that is larger than several pieces is one.
    """
    ends = list(accumulate(sizes))
    if not ends:
        return []
    total_bytes = ends[-1]
    count, number = -(-total_bytes // target_bytes), 1
    borders = [0]
    while number < count:
        wanted_bytes = total_bytes * number // count
        end = bisect_left(ends, wanted_bytes)
        before_bytes = ends[end - 1] if end else 0
        end += ends[end] - wanted_bytes <= wanted_bytes - before_bytes
        if borders[-1] < end < len(ends):
            borders.append(end)
        # A frame may be larger than many pieces.
        number = max(number, ends[borders[-1] - 1] * count // total_bytes if borders[-1] else 0) + 1
    return [
        (start, end, ends[end - 1] - (ends[start - 1] if start else 0))
        for start, end in zip(borders, [*borders[1:], len(ends)], strict=True)
    ]


def _not_sealed(dataset: Dataset) -> InvalidRequest:
    if dataset.kind is Kind.CHANGELOG:
        return InvalidRequest(
            f"dataset {dataset.name!r} is a changelog, which is never sealed and is not cut into pieces: read a "
            "version of it, by the ticket of get_flight_info",
            dataset=dataset.name,
        )
    return Conflict(
        f"dataset {dataset.name!r} is still written: its partitions are cut after the seal",
        dataset=dataset.name,
    )
