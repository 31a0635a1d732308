"""Quarantine: datasets whose damage on disk is proven are kept and named. All of it blocks.

Damage
    A manifest whose checksum is wrong; a segment that is missing, too short, or no file; bytes that have another
    checksum, also when they are read again. An I/O error proves nothing.

Handling
    A dataset found damaged at the start is moved to ``quarantine`` in the data directory, with the note
    ``quarantine.json``. Reads of its name raise DataQuarantined while no dataset has that name.

    When a served dataset is found damaged, the partition fails and the directory stays in ``datasets`` with the note
    ``damage.json``; the other partitions are served on, also after a restart. When the dataset is replaced, or its
    lease or retention ends, the directory is moved. Only a drop deletes it.

    ``statistics`` lists both. A server deletes nothing in ``quarantine`` and counts it in no pool: people move a
    directory back to ``datasets`` (with the server stopped) or delete it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from .disk_files import NotAFile, is_real_directory, read_regular, sync_directory, write_file
from .ownership import QUARANTINE_NAME, Marker

NOTE_NAME = "quarantine.json"
DAMAGE_NAME = "damage.json"

_log = structlog.get_logger("flight_server.storage.quarantine")


@dataclass(frozen=True)
class Quarantined:
    """The note of a damaged dataset."""

    dataset: str | None
    generation: str | None
    path: str
    reason: str
    when: str

    @classmethod
    def now(cls, dataset: str | None, generation: str | None, path: Path, reason: str) -> Quarantined:
        return cls(dataset, generation, str(path), reason, datetime.now(UTC).isoformat(timespec="seconds"))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def put_aside(directory: Path, said: Quarantined) -> Quarantined:
    """Move a dataset's directory to the quarantine. If the disk refuses, it stays, as the returned ``path`` says."""
    room = directory.parent.parent / QUARANTINE_NAME
    target = room / directory.name
    moved = Quarantined(said.dataset, said.generation, str(target), said.reason, said.when)
    try:
        room.mkdir(exist_ok=True)
        _write(directory / NOTE_NAME, moved)
        directory.rename(target)
        sync_directory(room)
        sync_directory(directory.parent)
    except OSError as error:
        if is_real_directory(directory):
            moved = said
        _log.error("quarantine_incomplete", path=moved.path, trouble=str(error))
    _log.error("data_quarantined", **moved.to_json())
    return moved


def note_damage(directory: Path, said: Quarantined) -> None:
    """Write the note into a served dataset's directory."""
    _log.error("data_damaged", **said.to_json())
    try:
        _write(directory / DAMAGE_NAME, said)
        sync_directory(directory)
    except OSError as error:
        _log.error("damage_not_noted", path=said.path, trouble=str(error))


def noted_damage(directory: Path, marker: Marker) -> Quarantined | None:
    """The note of :func:`note_damage`, if any; in place of an unreadable note another one that names the fault."""
    note = directory / DAMAGE_NAME
    if not os.path.lexists(note):
        return None
    reason = f"it was found damaged, and its {DAMAGE_NAME} cannot be read"
    return _read(note) or Quarantined.now(marker.dataset, marker.generation, directory, reason)


def listed(data_dir: Path) -> list[Quarantined]:
    """The notes in the quarantine."""
    found = []
    room = data_dir / QUARANTINE_NAME
    if is_real_directory(room):
        for directory in sorted(room.iterdir()):
            said = _read(directory / NOTE_NAME)
            if said is not None:
                found.append(
                    Quarantined(said.dataset, said.generation, str(directory), said.reason, said.when)
                )
    return found


def _write(path: Path, said: Quarantined) -> None:
    write_file(path, json.dumps(said.to_json()).encode())


def _read(path: Path) -> Quarantined | None:
    with suppress(OSError, NotAFile, ValueError, TypeError, RecursionError):
        return Quarantined(**json.loads(read_regular(path)))
    return None
