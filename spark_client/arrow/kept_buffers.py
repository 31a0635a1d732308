"""Files for Arrow's writers: what they have in common, and one that keeps references to the buffers that it gets."""

from __future__ import annotations

from typing import Any


class WriterFile:
    """A file that has no buffer of its own, and stays open when Arrow's writer closes it. A subclass has ``write``."""

    closed = False

    def flush(self) -> None:
        """For Arrow's writer."""

    def close(self) -> None:
        """For Arrow's writer."""


class KeptBuffers(WriterFile):
    """The buffers that were written and not taken."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        # The list's own method: Arrow calls it for each block and each large buffer.
        self.write = self._parts.append

    def take(self) -> list[memoryview]:
        """The buffers, which this object holds no longer; none is empty."""
        parts = [memoryview(part) for part in self._parts if len(part)]
        self._parts.clear()
        return parts

    def keep(self) -> None:
        """Copy those that others may overwrite, or that are parts of larger ones."""
        self._parts[:] = [part if isinstance(part, bytes) else part.to_pybytes() for part in self._parts]
