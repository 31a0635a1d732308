"""TransactionEntry: the stored form of one transaction id, in manifests and in the state files of datasets with
versions.
"""

from __future__ import annotations

TransactionEntry = tuple[int, ...]
"""Integers: when the id was used last, in seconds since the epoch; the number below which some that were committed may
have been forgotten; and the remembered numbers, ascending, each with the version that it made. The version of a plain
dataset is 1, or 0 if the write was in a generation that was overwritten.
"""


def parse_transaction(value: object) -> TransactionEntry:
    """An entry as it was stored. Raises ValueError or TypeError if it is none."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no transaction")
    entry = tuple(map(int, value))
    numbers = entry[2::2]
    if len(entry) < 4 or len(entry) % 2 or sorted({*numbers}) != [*numbers] or min(entry[1:]) < 0:
        raise ValueError(f"{value!r} is no transaction")
    return entry
