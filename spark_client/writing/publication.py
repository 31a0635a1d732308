"""The contract of those that own a write's commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .file_stage import FileStage, WrittenFile
from .folder_write import FolderWrite
from .storage_place import Place


class Publication(Protocol):
    """Makes what tasks have written visible, at once as far as readers can tell, or not at all."""

    @property
    def place(self) -> Place: ...

    def staged(self) -> FolderWrite:
        """A write, which removes what dead ones have left as it begins."""
        ...

    def folder(self, write: FolderWrite) -> str:
        """Where tasks write, below the place."""
        ...

    def is_wanted(self) -> bool:
        """Whether tasks are to write. Raises AlreadyExists: the mode forbids it."""
        ...

    def commit(self, write: FolderWrite, stage: FileStage, files: Sequence[WrittenFile]) -> None:
        """Make exactly these files visible, or a result without rows."""
        ...
