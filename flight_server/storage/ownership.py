"""Ownership: markers, which say what directories belong to this server. Functions with a path block.

Guarantee: the server changes no directory without a valid marker of its own, in any place and under any name.

Format
    A marker is the file ``flight-server.json`` in its directory, a JSON object::

        format      1; a server refuses another number
        kind        "data", a data directory; "temporary", one that is removed with its process; "dataset"
        owner       random hex digits of the data directory; its datasets have the same
        created     date and time, for people
        dataset, generation     of a dataset only

Dataset directories
    One is made in ``staging``, beside ``datasets``, and renamed into it with its marker; it is renamed back before
    the marker is deleted. So a killed server leaves none without a marker in ``datasets``. Only a manifest syncs the
    marker: after a crash of the machine an unsealed dataset's may be empty, and its directory foreign.
    ``DIRECTORY_LOCK`` is held while a file is made in a dataset's directory or an unused one is removed.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from flight_server.records import OtherFormat

from .disk_files import NotAFile, is_real_directory, read_regular, write_file

MARKER_NAME = "flight-server.json"
FORMAT = 1
DATASETS_NAME, STAGING_NAME, QUARANTINE_NAME = "datasets", "staging", "quarantine"

# Reentrant: a segment may be finalized and disposed of while the same thread makes another one.
DIRECTORY_LOCK = threading.RLock()


@dataclass(frozen=True, slots=True)
class Marker:
    """The contents of a marker. ``held``: whether this server still has the lock of the marker's data directory; not a
    part of the contents.
    """

    kind: Literal["data", "temporary", "dataset"]
    owner: str
    dataset: str | None = None
    generation: str | None = None
    held: Callable[[], bool] = field(default=lambda: True, compare=False, repr=False)

    def check_held(self) -> None:
        """Raise OSError if the data directory was removed, moved or replaced: new files would be lost."""
        if not self.held():
            raise OSError(
                errno.ESTALE,
                "the data directory was removed or replaced while this server used it; restart the server",
            )

    def encode(self) -> bytes:
        said: dict[str, Any] = {"format": FORMAT, "kind": self.kind, "owner": self.owner}
        if self.dataset is not None:
            said |= {"dataset": self.dataset, "generation": self.generation}
        return json.dumps({**said, "created": datetime.now(UTC).isoformat(timespec="seconds")}).encode()


def read_marker(directory: Path) -> Marker | None:
    """The directory's marker; None if it is missing, not valid, or may not be read. Raises OtherFormat, or OSError if
    the disk returned one.
    """
    try:
        said = json.loads(read_regular(directory / MARKER_NAME))
    except (FileNotFoundError, NotADirectoryError, PermissionError, NotAFile, ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("format"), int) or "kind" not in said:
        return None
    if said["format"] != FORMAT:
        raise OtherFormat(
            f"{directory} was written in format {said['format']}, and this version reads {FORMAT}: start the "
            "version that wrote it, or name another directory; nothing in it was changed"
        )
    texts = [said.get(key) for key in ("kind", "owner", "dataset", "generation")]
    if not all(text is None or isinstance(text, str) for text in texts) or not isinstance(
        said.get("owner"), str
    ):
        return None
    return Marker(said["kind"], said["owner"], said.get("dataset"), said.get("generation"))


def make_dataset_directory(path: Path, marker: Marker | None) -> None:
    """Make the directory with its marker. The caller holds ``DIRECTORY_LOCK``. Twice is fine. Raises as
    :meth:`Marker.check_held`.
    """
    if marker is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    marker.check_held()
    if path.is_dir():
        if not (path / MARKER_NAME).exists():
            write_file(path / MARKER_NAME, marker.encode(), sync=False)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = _staging_path(path)
    staged.mkdir(parents=True, exist_ok=True)
    write_file(staged / MARKER_NAME, marker.encode(), sync=False)
    staged.rename(path)


def remove_unused_directory(path: Path) -> None:
    """Remove a dataset's directory if it has no file but its marker; after OSError a part is left. The caller holds
    the lock.
    """
    entries = [entry.name for entry in path.iterdir()]
    if entries == [MARKER_NAME]:
        staged = _staging_path(path)
        path.rename(staged)
        (staged / MARKER_NAME).unlink()
        staged.rmdir()
    elif not entries:
        path.rmdir()


def sweep_staging(data_dir: Path) -> None:
    """Remove the remains of a crash in ``staging``."""
    staging = data_dir / STAGING_NAME
    if is_real_directory(staging):
        for directory in staging.iterdir():
            with suppress(OSError):
                if is_real_directory(directory):
                    (directory / MARKER_NAME).unlink(missing_ok=True)
                    directory.rmdir()


def _staging_path(path: Path) -> Path:
    return path.parent.parent / STAGING_NAME / path.name
