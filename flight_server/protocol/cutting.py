"""Cutting: a record batch in slices for messages, if they are not much larger together than the whole.

A slice of a list view, of a view of texts or of a dense union is sent with the buffers of rows that are not its own.
Cut in a hundred, such a batch would be sent and stored a hundred times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAX_GROWTH = 8
"""Slices may together be larger than the whole by one part of so many."""


def cut(batch: Any, rows: int, sent_bytes: Callable[[Any], int], *, limit_bytes: int) -> list[Any]:
    """Slices of a pyarrow record batch of so many rows, at least 1. If these would together be larger than the batch by
    more than 1/``MAX_GROWTH``, its two halves, and if they would, too, the batch itself. Slices can be cut again.

    Args:
        sent_bytes: the size of the message of a slice.
        limit_bytes: the largest message. The halves of a larger batch are taken also if each is at least a quarter
            smaller than it.
    """
    if max(1, rows) >= batch.num_rows:
        return [batch]
    size_bytes = sent_bytes(batch)
    for step in (max(1, rows), -(-batch.num_rows // 2)):
        slices = [batch.slice(start, step) for start in range(0, batch.num_rows, step)]
        sizes = [sent_bytes(each) for each in slices]
        if sum(sizes) <= size_bytes + size_bytes // MAX_GROWTH:
            return slices
    if size_bytes > limit_bytes and max(sizes) <= size_bytes * 3 // 4:
        return slices
    return [batch]
