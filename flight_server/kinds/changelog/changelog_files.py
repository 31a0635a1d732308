"""ChangelogFiles: a changelog's directory, from its first state file to its last file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from flight_server.storage import (
    DAMAGE_NAME,
    DIRECTORY_LOCK,
    MARKER_NAME,
    DurableFiles,
    Forgotten,
    Marker,
    Quarantined,
    make_dataset_directory,
    remove_unused_directory,
    sync_directory,
    sync_file,
)

from .journal import StateRecord, numbered
from .runs import STATE_NAME, UNFINISHED_NAME, write_state

CHANGELOGS_NAME: Final = "changelogs"


class ChangelogFiles(DurableFiles):
    """Has the states of :class:`~flight_server.storage.DurableFiles`, and is forgotten or put into the quarantine like
    these: committed once the state file is there, forgotten when that is gone.

    Its logs and runs go after its changelog is closed: until then commits and merges may go on, and their last versions
    are lost with the drop.
    """

    in_use: Callable[[], bool] | None = None
    """Whether the changelog is not closed; None while there is none."""

    def create(self, state: StateRecord) -> None:
        """Make the directory, with its marker and the first state file. Blocks. Raises DiskTrouble or OSError."""
        with DIRECTORY_LOCK:
            make_dataset_directory(self.directory, self._marker)
        sync_file(self.directory / MARKER_NAME)
        self.mark_present()
        write_state(self.directory, state.to_json())
        sync_directory(self.directory.parent)
        sync_directory(self.directory.parent.parent)
        self.check_held()

    @classmethod
    def found(cls, directory: Path, marker: Marker, damage: Quarantined | None) -> ChangelogFiles:
        files = cls(directory, marker)
        files.mark_present()
        files.damage = damage
        return files

    def save(self, state: StateRecord) -> None:
        """Replace the state file. Blocks.

        Raises:
            Forgotten: the changelog is being dropped; it must not come back.
            DiskTrouble: as :func:`~flight_server.kinds.changelog.runs.write_state`.
        """
        with self._lock:
            if self._forgotten:
                raise Forgotten
            write_state(self.directory, state.to_json())

    def forget(self) -> Quarantined | None:
        aside = super().forget()
        if aside is None and self.in_use is not None and not self.in_use():
            self._sweep()
        return aside

    def _take_back(self) -> None:
        for name in (UNFINISHED_NAME, STATE_NAME):
            (self.directory / name).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            sync_directory(self.directory)
        self.mark_absent()
        if self.in_use is None:
            self._sweep()

    def _sweep(self) -> None:
        delete_files(self.directory)
        with suppress(OSError), DIRECTORY_LOCK:
            if self.damage is not None:
                (self.directory / DAMAGE_NAME).unlink(missing_ok=True)
            remove_unused_directory(self.directory)


def delete_files(directory: Path, keep: frozenset[str] = frozenset()) -> None:
    """Delete logs and runs, but those to ``keep``. Blocks."""
    with suppress(FileNotFoundError):
        for found in numbered(directory):
            for path in found.values():
                if path.name not in keep:
                    path.unlink(missing_ok=True)


def delete_forgotten(directory: Path) -> None:
    """Delete the remains in a directory without a state file: after a drop, a crash in ``create``, or work that went on
    while the changelog was dropped. Blocks. Twice is fine.
    """
    if (directory / STATE_NAME).exists():
        return
    delete_files(directory)
    with suppress(OSError), DIRECTORY_LOCK:
        (directory / UNFINISHED_NAME).unlink(missing_ok=True)
        remove_unused_directory(directory)
