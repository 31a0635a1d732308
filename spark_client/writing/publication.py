"""What owns a write's commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flight_server.protocol import AlreadyExists

from .file_stage import FileStage, WrittenFile
from .folder_write import FolderWrite, Journal
from .storage_place import Place

MODES = {
    "error": "error",
    "errorifexists": "error",
    "append": "append",
    "overwrite": "overwrite",
    "ignore": "ignore",
}


@dataclass(frozen=True)
class Publication(ABC):
    """Makes what tasks have written visible, at once as far as readers can tell, or not at all. ``where`` names the
    call, ``name`` what is written, for people.
    """

    place: Place
    mode: str
    where: str
    name: str

    kind: ClassVar[str]
    refusal: ClassVar[str]
    """Follows the name in the error of mode ``error``."""

    def staged(self) -> FolderWrite:
        """A write, which removes what dead ones have left as it begins."""
        return FolderWrite(self.place, self._settle, self.kind)

    def is_wanted(self) -> bool:
        """Whether tasks are to write. Raises AlreadyExists: the mode forbids it."""
        if self.mode in ("append", "overwrite") or not self.is_there():
            return True
        if self.mode == "error":
            raise AlreadyExists(f"{self.where}: {self.name} {self.refusal}")
        return False

    @abstractmethod
    def folder(self, write: FolderWrite) -> str:
        """Where tasks write, below the place."""

    @abstractmethod
    def is_there(self) -> bool:
        """Whether something was written before, which the mode is about."""

    @abstractmethod
    def commit(self, write: FolderWrite, stage: FileStage, files: Sequence[WrittenFile]) -> None:
        """Make exactly these files visible, or a result without rows. Raises as :meth:`is_wanted`."""

    @abstractmethod
    def _settle(self, write: str, journal: Journal | None, reached: bool) -> None:  # noqa: FBT001 - Settle's
        pass
