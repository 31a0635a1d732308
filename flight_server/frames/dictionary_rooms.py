"""DictionaryRooms: counts the dictionaries that a decoder holds for batches that are kept as Arrow's objects.

A batch refers to the dictionaries that were in force when it was decoded, also once they are replaced. So the rooms of
these go on counting as long as a keeper of the batch has them.
"""

from __future__ import annotations

from flight_server.memory import Reservation

from .decoder import Accepted


class DictionaryRooms:
    """The dictionaries of one decoder."""

    def __init__(self) -> None:
        self._in_force: dict[int, list[Reservation]] = {}
        self._undecoded: list[Reservation] = []
        self._all: tuple[Reservation, ...] | None = ()

    def add(self, accepted: Accepted, room: Reservation) -> None:
        """A dictionary was accepted; ``room`` counts it."""
        if not accepted.dictionary_delta:
            self._in_force.pop(accepted.dictionary_id, None)
        self._in_force.setdefault(accepted.dictionary_id, []).append(room)
        self._undecoded.append(room)
        self._all = None

    def decoded(self) -> tuple[Reservation, ...]:
        """The rooms of the dictionaries to which a batch refers that was decoded now."""
        if self._all is None:
            self._undecoded.clear()
            self._all = tuple(room for rooms in self._in_force.values() for room in rooms)
        return self._all
