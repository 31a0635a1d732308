"""Parquet files below a path, which a commit makes visible.

What a reader sees
    Nothing of a write before its commit. The commit gives all files of the accepted attempts their names, one after the
    other, some at a time: a rename where the file system has one, a copy within the store where it has none. Then an
    ``overwrite`` deletes the files that were visible before, and the commit makes a ``_SUCCESS``. So

    *   a reader that lists the folder during an ``append`` may see some of the new files;
    *   one that lists it during an ``overwrite`` may see the old files and some of the new ones, never less than the
        old ones before the last new one has its name; one that has listed old files may miss them when it opens them;
    *   a reader that waits for ``_SUCCESS`` sees whole writes: a commit removes it first, and makes it last. It says so
        of one write at a time: an ``append`` that begins its commit removes it again.

    Tables of Delta and Iceberg (``table_files``) have no such moments.

Commit point
    When the last file has its name, the write says so (``ID.done``). A write that ends before leaves the old files, one
    that ends after it the new ones: its driver, or the next write, goes by the journal and undoes the rest, or does it.
    It deletes old files only if they are what they were: others may have changed the folder meanwhile. So an error that
    comes after it, as where the store refuses to delete old files, is raised by a write that is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from flight_server.protocol import InvalidRequest, NotFound

from .file_stage import FileStage, WrittenFile
from .folder_write import FolderWrite, Journal
from .publication import Publication

SUCCESS = "_SUCCESS"


class ParquetFolder(Publication):
    """The folder, and how it is written; ``name`` is the user's path."""

    kind = "parquet"
    refusal = (
        "has files; give mode='overwrite' to replace them, 'append' to add to them or 'ignore' to leave them"
    )

    def staged(self) -> FolderWrite:
        self._check_no_table()
        return super().staged()

    def folder(self, write: FolderWrite) -> str:
        return write.folder

    def is_wanted(self) -> bool:
        """Raises InvalidRequest, too: a Delta table is there."""
        self._check_no_table()
        return super().is_wanted()

    def is_there(self) -> bool:
        return next(self.place.visible(), None) is not None

    def commit(self, write: FolderWrite, stage: FileStage, files: Sequence[WrittenFile]) -> None:
        """Raises NotFound, too: a file is missing."""
        files = files or [stage.empty()]
        ending = f"{'' if stage.layout.compression == 'none' else f'.{stage.layout.compression}'}.parquet"
        names = {}
        for number, file in enumerate(files):
            name = f"part-{number:05}-{write.id}{ending}"
            names[f"{write.folder}/{file.name}"] = f"{file.folder}/{name}" if file.folder else name
        write.take_turn()
        if not self.is_wanted():
            return
        replaced = self.place.stamps(self.place.visible()) if self.mode == "overwrite" else {}
        if not self.place.may_delete(replaced):
            raise InvalidRequest(
                f"{self.where}: old files of {self.name} may not be deleted, so they stay; write elsewhere"
            )
        try:
            self.place.prepare(names.values())
        except (OSError, ValueError) as error:
            self.place.remove_empty(_parents(names.values()))
            raise InvalidRequest(
                f"{self.where}: {self.name} cannot have a file of this write: {error}"
            ) from error
        journal = Journal(names, replaced, self.place.has(SUCCESS))
        write.begin_commit(journal)
        self.place.delete(SUCCESS)
        try:
            self.place.move_all(names.items())
        except FileNotFoundError as error:
            raise NotFound(
                f"{self.where}: a file that a task wrote is not there for the driver: give a path on storage that the "
                f"driver and all executors share ({error})"
            ) from error
        write.reach_commit_point()
        self._finish(replaced)
        write.end_commit()

    def _check_no_table(self) -> None:
        if self.place.has("_delta_log"):
            raise InvalidRequest(
                f"{self.where}: {self.name} is a Delta table, whose log would not have the files; take write.delta"
            )

    def _finish(self, replaced: Collection[str]) -> None:
        """What follows the commit point."""
        self.place.delete_all(replaced)
        self.place.remove_empty(_parents(replaced))
        self._mark()

    def _mark(self) -> None:
        with suppress(IsADirectoryError):
            self.place.mark(SUCCESS)

    def _settle(self, write: str, journal: Journal | None, reached: bool) -> None:  # noqa: ARG002, FBT001 - Settle's
        if journal is None:
            return
        if reached:
            now = self.place.stamps(journal.replaced)
            self._finish([name for name, stamp in now.items() if journal.replaced[name] == stamp])
            return
        self.place.delete_all(journal.files.values())
        self.place.remove_empty(_parents(journal.files.values()))
        if journal.marked:
            self._mark()


def _parents(names: Iterable[str]) -> set[str]:
    return {str(parent) for name in names for parent in PurePosixPath(name).parents} - {"."}
