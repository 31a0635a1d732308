"""The partitions that a request names or lists."""

from __future__ import annotations

from collections.abc import Sequence

from flight_server.protocol import InvalidRequest, Ticket

from .dataset import Dataset


def listed(dataset: Dataset, partitions: Sequence[int] | str) -> Sequence[int]:
    """The numbers, or for ``"all"`` those of all partitions. Raises NotFound for one that the dataset does not have."""
    if isinstance(partitions, str):
        return range(dataset.partition_count)
    if max(partitions) >= dataset.partition_count:
        dataset.partition(max(partitions))  # raises
    return partitions


def lacks_frames(dataset: Dataset, index: int) -> bool:
    """Whether a partition is known to have no frames. It is not made: that would take memory for as long as the
    dataset lives.
    """
    known = dataset.knows(index) or index >= dataset.partition_count
    return not known and dataset.sealed and not dataset.dropped


def first_of(dataset: Dataset, ticket: Ticket) -> int:
    """The first partition that a ticket without one partition is for.

    Raises:
        InvalidRequest: it lists none, and the dataset has several.
        NotFound: see :func:`listed`.
    """
    if ticket.partitions is not None:
        return listed(dataset, ticket.partitions)[0]
    name, count = dataset.name, dataset.partition_count
    if count > 1:
        raise InvalidRequest(
            f"dataset {name!r} has {count} partitions and the ticket names none: take "
            f"the tickets of get_flight_info, or '{name}/0' to '{name}/{count - 1}'",
            dataset=name,
        )
    return 0
