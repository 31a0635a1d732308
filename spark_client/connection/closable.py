"""Closable: the base of objects that a ``with`` statement closes at its end."""

from __future__ import annotations

from typing import Self


class Closable:
    """Each has a ``close`` of its own, which is fine twice."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
