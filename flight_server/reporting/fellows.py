"""Fellows: this server and the other workers of its supervisor, as ``statistics`` lists them.

Workers do not connect to each other: each writes its numbers on their supervisor's ``Board`` every ``POST_SECONDS``.
One that has written none for ``GONE_SECONDS``, or has ended, is listed as gone.
"""

from __future__ import annotations

import json
from typing import Any

from flight_server.datasets import Catalogue, own_start
from flight_server.host import Board
from flight_server.protocol import dump_json

from .flight_infos import Locations
from .history import History

POST_SECONDS = 1.0
GONE_SECONDS = 5.0


class Fellows:
    """Those of one server."""

    def __init__(self, catalogue: Catalogue, locations: Locations, history: History) -> None:
        self._catalogue = catalogue
        self._locations = locations
        self._history = history
        self._board: Board | None = None
        self._slot = 0

    def join(self, board: Board, slot: int) -> None:
        """The server is a worker, whose numbers are in this slot."""
        self._board, self._slot = board, slot
        self._post(board)

    async def post(self) -> None:
        """Write the server's numbers on the board, which it has joined."""
        assert self._board is not None
        self._post(self._board)

    def _post(self, board: Board) -> None:
        board.write(self._slot, dump_json(self._own()))

    def listed(self) -> list[dict[str, Any]]:
        """The server itself, then the others: location, start and numbers of each, or why it is ``gone``."""
        own = self._own()
        notes = [] if self._board is None else self._board.read()
        by_location = {
            each["location"]: (each, age) for each, age in ((json.loads(note), age) for note, age in notes)
        }
        others = [each for each in self._locations.servers or () if each != own["location"]]
        return [own, *(_listed(each, *by_location.get(each, (None, 0.0))) for each in others)]

    def _own(self) -> dict[str, Any]:
        memory, disk = self._catalogue.budget.memory, self._catalogue.budget.disk
        return {
            "location": self._locations.grpc,
            "http": self._locations.http,
            "start": own_start(),
            "gone": None,
            "draining": self._catalogue.draining,
            "datasets": len(self._catalogue),
            "memory_used_bytes": memory.used_bytes,
            "memory_limit_bytes": memory.limit_bytes,
            "disk_used_bytes": disk.used_bytes,
            "disk_limit_bytes": disk.limit_bytes,
            **self._history.rates(),
        }


def _listed(location: str, note: dict[str, Any] | None, age_seconds: float) -> dict[str, Any]:
    if note is None:
        return {"location": location, "start": None, "gone": "it has ended, and is to be started again"}
    if age_seconds > GONE_SECONDS:
        gone = f"its process has not run for {age_seconds:.0f} s"
        return {"location": location, "start": note["start"], "gone": gone}
    return note
