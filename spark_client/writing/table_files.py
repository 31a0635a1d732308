"""Files of tables whose own log or metadata says which files they have: Delta and Iceberg.

Guarantee: a table has the files of a write from the moment in which its package has committed them, all at once. Until
then readers of the table do not see them, wherever they lie: so tasks write them where they stay, in a folder of the
table with the write's id, and there is neither rename nor copy.

Our own writes to a table take turns (``folder_write``). Others are met by the package, which refuses a commit that does
not fit what came in between: then it is made again on top of that, ``TRIES`` times.

Settling
    What the commit did is asked from the table, also where there is no journal any more: a write whose commit is in its
    history, or whose files it has, keeps the files that its journal names; of any other one the whole folder goes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar

from flight_server.protocol import Conflict

from .file_stage import FileStage, WrittenFile
from .folder_write import FolderWrite, Journal
from .publication import Publication

TRIES = 5
WRITE_ID = "flight-shuffle.write"
"""Under this name a commit says its write's id."""


def imported(name: str, extra: str) -> Any:
    """A module of a package that may be missing. Raises ImportError, which names what to install."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"there is no package {package}: pip install {package}, or the extra {extra!r}"
        ) from error


class TableFiles(Publication):
    """The files that writes add to a table."""

    refusal = (
        "is there already; give mode='overwrite' to replace its rows, 'append' to add to them or 'ignore' to leave "
        "it"
    )
    data: ClassVar[str] = ""
    """The folder of the writes' folders, with a slash at its end."""

    def folder(self, write: FolderWrite) -> str:
        """The files stay there."""
        return f"{self.data}{write.id}"

    def commit(self, write: FolderWrite, stage: FileStage, files: Sequence[WrittenFile]) -> None:
        """Raises Conflict, too: others have committed first, each time."""
        write.take_turn()
        if not self.is_wanted():
            return
        names = [f"{stage.folder}/{file.name}" for file in files]
        write.begin_commit(Journal(dict(zip(names, names, strict=True))))
        for left in reversed(range(TRIES)):
            try:
                self.add(write.id, dict(zip(names, files, strict=True)))
                break
            except self.conflicts() as error:
                if not left:
                    raise Conflict(
                        f"{self.where}: other writers of {self.name} have committed first, {TRIES} times: {error}"
                    ) from error
        self._keep_only(write.id, names)
        write.end_commit()

    @abstractmethod
    def add(self, write: str, files: dict[str, WrittenFile]) -> None:
        """Commit the files, by their names, for the write of this id, to the table as it is now."""

    @abstractmethod
    def conflicts(self) -> tuple[type[Exception], ...]:
        """The errors of a commit that was refused because of another one."""

    @abstractmethod
    def has_commit(self, write: str) -> bool:
        """Whether the table has had a commit of the write of this id."""

    def _keep_only(self, write: str, names: Sequence[str]) -> None:
        folder = f"{self.data}{write}"
        files = {f"{folder}/{name}" for name in self.place.below(folder).names()}
        self.place.delete_all(files - set(names))

    def _settle(self, write: str, journal: Journal | None, reached: bool) -> None:  # noqa: ARG002, FBT001 - Settle's
        if not self.has_commit(write):
            self.place.delete_folder(f"{self.data}{write}")
        elif journal is not None:
            self._keep_only(write, [*journal.files])
