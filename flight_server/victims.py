"""Victims: which frames leave RAM first, over all datasets.

What no attached reader needs soon comes first, of the oldest dataset first and in each the coldest
first (see ``partition``); only when that is not enough, what a reader is just at. Deciding is all that
happens here: it is one synchronous step, and ``spiller`` does the I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from .dataset import Dataset
from .frames import Frame
from .spill import SegmentWriter

BATCH_FRAMES = 4096


def pick(datasets: Sequence[Dataset], size_bytes: int) -> list[tuple[SegmentWriter, list[Frame]]]:
    """Frames whose bytes come to ``size_bytes``, grouped by the files that they go to.

    Less is returned when there is no more.

    Args:
        datasets: all that are alive, oldest first, also those that no name leads to.
    """
    groups: list[tuple[SegmentWriter, list[Frame]]] = []
    chosen: set[int] = set()
    found_bytes = 0
    for near in (False, True):
        for dataset in datasets:
            if dataset.writer is None:
                continue
            frames: list[Frame] = []
            for frame in islice(dataset.victims(near=near), BATCH_FRAMES):
                if id(frame) in chosen:
                    continue
                frames.append(frame)
                chosen.add(id(frame))
                found_bytes += frame.held_bytes
                if found_bytes >= size_bytes:
                    break
            if frames:
                groups.append((dataset.writer, frames))
            if found_bytes >= size_bytes:
                return groups
    return groups
