"""Quarantine: datasets whose damage on disk is proven are named, and their files are kept. A table of the records.

Damage
    A row whose checksum is wrong; a file that is missing, too short, or none; bytes that have another checksum, also
    when they are read again. An I/O error proves nothing.

Handling
    A dataset found damaged at the start loses its rows and gets an entry. Its files stay where they are. Reads of its
    name raise DataQuarantined while no dataset has that name.

    When a served dataset is found damaged, the partition fails, and the entry says that it is ``served``: its other
    partitions are, also after a restart. When the dataset is replaced, or its lease or retention ends, the entry
    stays. A drop deletes it with the dataset.

    A drop of a name that only the quarantine has deletes its entries and their files.

Order
    An entry is listed when its commit is there. Found damage is listed at once, and committed as soon as SQLite takes
    it (:meth:`Quarantine.note`): until then a restart would find it again. Without a database, on a temporary data
    directory, entries are in memory only.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from flight_server.protocol import DataQuarantined

from .database import Database
from .tables import QUARANTINE

_log = structlog.get_logger("flight_server.records.quarantine")


@dataclass(frozen=True)
class Quarantined:
    """The entry of one damaged generation; ``files`` are names in the folder of the data directory."""

    dataset: str
    generation: str
    reason: str
    when: str
    files: tuple[str, ...] = ()
    served: bool = False

    @classmethod
    def now(
        cls,
        dataset: str,
        generation: str,
        reason: str,
        files: Sequence[str] = (),
        *,
        served: bool = False,
    ) -> Quarantined:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(dataset, generation, reason, when, tuple(files), served)

    def to_json(self) -> dict[str, Any]:
        """As ``statistics`` and the log have it."""
        return {name: value for name, value in asdict(self).items() if name != "served"}

    @property
    def key(self) -> tuple[str, str]:
        return self.dataset, self.generation


class Quarantine:
    """The entries of one server. ``database`` is None on a temporary data directory.

    Its methods are called in the event loop, or before it runs.
    """

    def __init__(self, database: Database | None = None) -> None:
        self._database = database
        self.entries: list[Quarantined] = [] if database is None else database.read(quarantined)

    def check(self, name: str) -> None:
        """Raise DataQuarantined if there is an entry of that name."""
        aside = [entry for entry in self.entries if entry.dataset == name]
        if aside:
            raise DataQuarantined(
                f"data loss: dataset {name!r} was found damaged on disk and is kept aside, nothing of it is deleted "
                f"({'; '.join(entry.reason for entry in aside)}). Write it again, have its files looked at, or drop "
                "it, which deletes them",
                dataset=name,
                generation=aside[-1].generation,
                files=", ".join(file for entry in aside for file in entry.files),
            )

    def of(self, name: str, generation: str) -> list[Quarantined]:
        """The entries of one generation, in the order in which they were listed."""
        return [entry for entry in self.entries if entry.key == (name, generation)]

    def note(self, entry: Quarantined) -> None:
        """List damage that was just found, and have it committed. A second entry of a generation changes nothing."""
        if all(entry.key != other.key for other in self.entries):
            self.listed(entry)
            if self._database is not None:
                self._database.eventually(lambda connection: put_quarantined(connection, [entry]))

    async def drop(self, name: str) -> list[str]:
        """Commit that there are no entries of that name, and the files that were kept for them, to be deleted by the
        caller. Raises DiskTrouble: nothing is changed. A cancellation is raised once they are gone or refused.
        """
        gone = [entry for entry in self.entries if entry.dataset == name]
        if self._database is None:
            self.unlisted(*gone)
        else:
            await self._database.commit(
                lambda connection: delete_quarantined(connection, gone), lambda: self.unlisted(*gone)
            )
        return [file for entry in gone for file in entry.files]

    def listed(self, *entries: Quarantined) -> None:
        """List what is committed; for a caller whose commit changes other tables, too (:func:`put_quarantined`)."""
        for entry in entries:
            self.unlisted(entry)
            self.entries.append(entry)
            _log.error("data_damaged" if entry.served else "data_quarantined", **entry.to_json())

    def unlisted(self, *entries: Quarantined) -> None:
        """The reverse, after :func:`delete_quarantined`."""
        gone = {entry.key for entry in entries}
        self.entries = [entry for entry in self.entries if entry.key not in gone]


def quarantined(connection: sqlite3.Connection) -> list[Quarantined]:
    """All entries."""
    return [
        Quarantined(dataset, generation, reason, when, tuple(json.loads(files)), bool(served))
        for dataset, generation, reason, when, files, served in QUARANTINE.rows(connection)
    ]


def put_quarantined(connection: sqlite3.Connection, entries: Sequence[Quarantined]) -> None:
    """A part of a change: write the entries; one of the same generation is replaced."""
    rows = map(astuple, entries)
    QUARANTINE.put(connection, [(*rest, json.dumps(files), int(served)) for *rest, files, served in rows])


def delete_quarantined(connection: sqlite3.Connection, entries: Sequence[Quarantined]) -> None:
    """A part of a change: delete the entries."""
    connection.executemany(
        "DELETE FROM quarantine WHERE name = ? AND generation = ?", [entry.key for entry in entries]
    )
