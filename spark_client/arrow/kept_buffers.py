"""A file for Arrow's writer that keeps references to the buffers which it is given."""

from __future__ import annotations

from typing import Any


class KeptBuffers:
    """The buffers that were written and not taken."""

    closed = False

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

    def flush(self) -> None:
        """No buffer to flush."""

    def close(self) -> None:
        """The buffers stay: they are taken after Arrow's writer has closed."""
