"""Sealing: how the accepted attempts of a shuffle become partitions, of this dataset or of one that exists.

Guarantee: the choice of attempts is one step; their frames move in several, while the dataset is SEALING, so that no
reader takes a part for the whole. After each step each frame is in an attempt or in a partition, where the spiller and
a drop find it.

Giving up
    A caller that leaves the steps undone leaves the dataset ``moving`` no more, and its accepted attempts as they are:
    callers do all steps, also when their own request is cancelled.
"""

from __future__ import annotations

from collections.abc import Generator
from operator import attrgetter
from typing import TYPE_CHECKING

from flight_server.protocol import MAX_PARTITIONS, Conflict, InvalidRequest

from .attempts import Attempt, joined
from .partition import Partition

if TYPE_CHECKING:
    from .dataset import Dataset

_index = attrgetter("index")


def accepting(
    dataset: Dataset, wanted: dict[int, str] | None, partition_bytes: int | None, only: int | None = None
) -> Generator[None, None, bool]:
    """Move the accepted attempts' frames into their partitions, where readers get them at once, in steps.

    One step decides; until the last one the dataset is ``moving``. The partitions stay open until
    :meth:`Dataset.close`, which the caller calls when a durable dataset is on disk. False if these attempts were
    accepted before.

    Args:
        partition_bytes: see :func:`joined`.
        only: it has only so many partitions from then on; readers of others get NotFound.

    Raises:
        Conflict: see :meth:`Attempts.chosen`, or the dataset was dropped.
        InvalidRequest: other partitions than ``only`` have frames.
        OutOfBudget: ``metadata`` has no room for the partitions. Each time nothing was changed.
    """
    numbers: dict[int, int] = {}
    before: list[Attempt] | None = None
    while True:
        dataset.check_step("accept")
        chosen = dataset.attempts.chosen(wanted)
        if chosen is None:
            dataset.step("accept")
            return False
        if chosen == before:
            break
        # Other attempts may commit meanwhile, and be chosen.
        before, numbers = chosen, (yield from joined(chosen, partition_bytes))
    if only is not None:
        _check_narrow(dataset, max(numbers, default=0), only)
    new = sorted(index for index in set(numbers.values()) if not dataset.knows(index))
    dataset.count_partitions(len(new))
    if only is not None:
        dataset.have_only(only)
    if partition_bytes is not None:
        dataset.have_only(len(set(numbers.values())) or 1)
    dataset.attempts.accept(chosen)
    dataset.step("accept")
    dataset.moving = True
    try:
        yield from _move(dataset, chosen, numbers, new)
    finally:
        dataset.moving = False
        dataset.changes.tell()
    return True


def _move(
    dataset: Dataset, chosen: list[Attempt], numbers: dict[int, int], new: list[int]
) -> Generator[None, None, None]:
    for index in new:
        if dataset.knows(index):  # a reader has asked for it meanwhile
            dataset.uncount_partition()
        else:
            dataset.add_partition(index, sealed=False)
        yield
        dataset.check_step("accept")
    for attempt in chosen:
        for _ in attempt.hand_over(lambda index: dataset.partition(numbers[index])):
            yield
            dataset.check_step("accept")
        dataset.attempts.handed_over(attempt)


def _check_narrow(dataset: Dataset, last: int, partitions: int) -> None:
    """Raise InvalidRequest if it cannot have only the first ``partitions``, because ``last`` has frames."""
    if not last < partitions <= dataset.partition_count:
        why = f"it was created with {dataset.partition_count}, and there are frames for partition {last}"
        text = f"dataset {dataset.name!r} cannot be sealed with {partitions} partitions: {why}"
        raise InvalidRequest(text, dataset=dataset.name)


def extend(target: Dataset, staged: Dataset) -> list[Partition]:
    """Take over the partitions with frames of ``staged``, which are sealed, in one step.

    Raises:
        Conflict: the target is not sealed, or counts readers otherwise.
        InvalidRequest: it would have too many partitions.
        OutOfBudget: ``metadata`` has no room for them. Each time nothing was changed.
    """
    target.check_step("extend")
    used = sorted((each for each in staged.partitions() if each.totals.frames), key=_index)
    base = target.partition_count
    if base + len(used) > MAX_PARTITIONS:
        above = f"has {base} partitions, and {len(used)} more are above {MAX_PARTITIONS}"
        raise InvalidRequest(f"dataset {target.name!r} {above}: overwrite it with fewer", dataset=target.name)
    if staged.retention.readers != target.retention.readers:
        raise Conflict(
            f"dataset {target.name!r} was replaced by one of another retention meanwhile; write again",
            dataset=target.name,
        )
    target.count_partitions(len(used))
    target.step("extend")
    target.describe(staged.schema)
    staged.give_partitions()
    target.take_partitions(used)
    return used
