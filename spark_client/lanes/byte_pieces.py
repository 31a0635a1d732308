"""A sequence of bytes in pieces, consumed from the front."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class Pieces:
    """The bytes of ``parts``, one after the other."""

    def __init__(self, parts: Iterable[memoryview]) -> None:
        self._parts = deque(parts)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def take(self, size_bytes: int) -> list[memoryview]:
        """The next ``size_bytes``, without a copy."""
        out = []
        while size_bytes:
            part = self._parts[0]
            if len(part) > size_bytes:
                part, self._parts[0] = part[:size_bytes], part[size_bytes:]
            else:
                del self._parts[0]
            size_bytes -= len(part)
            out.append(part)
        return out

    def joined(self, size_bytes: int) -> bytes:
        return b"".join(self.take(size_bytes))
