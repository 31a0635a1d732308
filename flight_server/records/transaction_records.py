"""The transactions that a dataset remembers, as rows: ids with their entries, and hashes of ids that were forgotten.

See ``datasets.transactions``. The rows of a dataset go with its own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping

from .tables import TRANSACTION

Entry = tuple[int, ...]


def put_transactions(
    connection: sqlite3.Connection, dataset: int, entries: Mapping[str, Entry], forgotten: Iterable[int] = ()
) -> int:
    """Insert or replace the entries, and add hashes of forgotten ids; by how much the sum of the checksums grows."""
    rows: list[tuple[int, str | int, str | None]] = [
        (dataset, name, json.dumps(entry)) for name, entry in entries.items()
    ]
    rows += [(dataset, _signed(hash_), None) for hash_ in forgotten]
    replaced = sum(_delete(connection, dataset, key) for _, key, _ in rows)
    return TRANSACTION.put(connection, rows) - replaced


def forget_transactions(connection: sqlite3.Connection, dataset: int, hashes: Mapping[str, int]) -> int:
    """Let the ids' hashes take the places of their entries; by how much the sum of the checksums grows."""
    deleted = sum(_delete(connection, dataset, name) for name in hashes)
    return put_transactions(connection, dataset, {}, hashes.values()) - deleted


def transactions_of(connection: sqlite3.Connection, dataset: int) -> tuple[dict[str, Entry], list[int]]:
    """The entries, the one that was used least recently first, and the hashes of forgotten ids. Raises DamagedRow."""
    entries: dict[str, Entry] = {}
    forgotten: list[int] = []
    for _, name, entry in TRANSACTION.rows(connection, "dataset = ?", (dataset,)):
        if isinstance(name, str):
            entries[name] = tuple(json.loads(entry))
        else:
            forgotten.append(name & (1 << 64) - 1)
    return dict(sorted(entries.items(), key=lambda item: item[1][0])), forgotten


def _delete(connection: sqlite3.Connection, dataset: int, key: str | int) -> int:
    return TRANSACTION.delete(connection, "dataset = ? AND id = ?", (dataset, key))


def _signed(hash_: int) -> int:
    """SQLite's integers have a sign."""
    return hash_ - (1 << 64) if hash_ >= 1 << 63 else hash_
