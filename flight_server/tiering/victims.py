"""Victims: which frames and dictionaries leave RAM first, over all datasets.

First the frames that no attached reader needs soon, of the oldest dataset first, in each the coldest first (see
``partition``); then those at a reader's position; last the dictionaries, which each reader needs. Choosing is
synchronous, in steps, and without I/O.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import islice

from flight_server.datasets import Dataset
from flight_server.frames import Message
from flight_server.storage import SegmentWriter

BATCH_FRAMES = 4096

Groups = list[tuple[SegmentWriter, list[Message]]]


def picking(datasets: Sequence[Dataset], size_bytes: int) -> Generator[None, None, Groups]:
    """Messages of ``size_bytes`` in all, by their dataset's writer; fewer if there are no more. Of each kind at most
    ``BATCH_FRAMES`` of a dataset are looked at. ``datasets``: see :meth:`Catalogue.alive`.

    A step looks at one dataset. A message chosen in an earlier step may have left RAM since, or been released.
    """
    groups: Groups = []
    chosen: set[int] = set()
    found_bytes = 0
    filled = [dataset for dataset in datasets if dataset.writer is not None and dataset.filled]
    for choose in (_cold, _near, Dataset.resident_dictionaries):
        for dataset in filled:
            messages: list[Message] = []
            for message in islice(choose(dataset), BATCH_FRAMES):
                if id(message) in chosen:
                    continue
                messages.append(message)
                chosen.add(id(message))
                found_bytes += message.held_bytes
                if found_bytes >= size_bytes:
                    break
            if messages and dataset.writer is not None:
                groups.append((dataset.writer, messages))
            if found_bytes >= size_bytes:
                return groups
            yield
    return groups


def release_unread(datasets: Sequence[Dataset], *, spilled: bool) -> bool:
    """Release one dataset that can be pulled again, the longest unused first (``Dataset.release_unread``). False if
    there was none.
    """
    sources = (dataset for dataset in datasets if dataset.attached.pulled)
    by_use = sorted(sources, key=lambda dataset: dataset.used_at)
    return any(dataset.release_unread(spilled=spilled) for dataset in by_use)


def _cold(dataset: Dataset) -> Iterator[Message]:
    return dataset.victims(near=False)


def _near(dataset: Dataset) -> Iterator[Message]:
    return dataset.victims(near=True)
