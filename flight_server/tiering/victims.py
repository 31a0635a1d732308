"""Victims: which frames and dictionaries leave RAM first, over all datasets.

What no attached reader needs soon comes first, of the oldest dataset first and in each the coldest
first (see ``partition``); only when that is not enough, what a reader is just at, and in the end the
dictionaries, which each reader of a dataset needs. Deciding is all that happens here: it is one synchronous
step, and ``spiller`` does the I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from flight_server.datasets import Dataset
from flight_server.frames import Message
from flight_server.storage import SegmentWriter

BATCH_FRAMES = 4096


def pick(datasets: Sequence[Dataset], size_bytes: int) -> list[tuple[SegmentWriter, list[Message]]]:
    """Messages whose bytes come to ``size_bytes``, grouped by the files that they go to.

    Less is returned when there is no more.

    Args:
        datasets: all that are alive, oldest first, also those that no name leads to.
    """
    groups: list[tuple[SegmentWriter, list[Message]]] = []
    chosen: set[int] = set()
    found_bytes = 0
    for choose in (_cold, _near, Dataset.resident_dictionaries):
        for dataset in datasets:
            if dataset.writer is None:
                continue
            messages: list[Message] = []
            for message in islice(choose(dataset), BATCH_FRAMES):
                if id(message) in chosen:
                    continue
                messages.append(message)
                chosen.add(id(message))
                found_bytes += message.held_bytes
                if found_bytes >= size_bytes:
                    break
            if messages:
                groups.append((dataset.writer, messages))
            if found_bytes >= size_bytes:
                return groups
    return groups


def let_go(datasets: Sequence[Dataset], *, spilled: bool) -> bool:
    """Let one source dataset go, the longest unused first; see :meth:`Dataset.let_go`. False if none went."""
    by_use = sorted(datasets, key=lambda dataset: dataset.used_at)
    return any(dataset.let_go(spilled=spilled) for dataset in by_use)


def _cold(dataset: Dataset) -> Iterator[Message]:
    return dataset.victims(near=False)


def _near(dataset: Dataset) -> Iterator[Message]:
    return dataset.victims(near=True)
