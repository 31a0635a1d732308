"""DictionaryRooms: what counts the dictionaries that a decoder holds.

A batch refers to the dictionaries that were in force when it was decoded, also once they are replaced. So a keeper of
the batch, as Arrow's object, keeps what counts these.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from .decoder import Accepted

T = TypeVar("T")


class DictionaryRooms(Generic[T]):
    """The dictionaries of one decoder, each with the object that counts it."""

    def __init__(self) -> None:
        self._in_force: dict[int, list[T]] = {}
        self._undecoded: list[T] = []
        self._all: tuple[T, ...] | None = ()

    def add(self, accepted: Accepted, room: T) -> None:
        """A dictionary was accepted; ``room`` counts it."""
        if not accepted.dictionary_delta:
            self._in_force.pop(accepted.dictionary_id, None)
        self._in_force.setdefault(accepted.dictionary_id, []).append(room)
        self._undecoded.append(room)
        self._all = None

    def decoded(self) -> tuple[T, ...]:
        """The rooms of the dictionaries to which a batch refers that was decoded now."""
        if self._all is None:
            self._undecoded.clear()
            self._all = tuple(room for rooms in self._in_force.values() for room in rooms)
        return self._all
