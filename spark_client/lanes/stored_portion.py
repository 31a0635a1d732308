"""A portion that is kept as an object in shared storage, too: read from its server, or, when that is gone, there.

Guarantee: as ``portion_stream``. The stream goes to the object when all its tries to reach the server have failed, for
any reason, and goes on there at the partition and frame where it was. If the server is gone, later streams of the
process begin there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from flight_server.protocol import NotFound, ServerLost, Ticket, Unavailable, is_object, shown

from .addresses import Address
from .lane import LaneReader
from .object_get import ObjectReader
from .portion_stream import PortionStream

_log = logging.getLogger(__name__)
_lost: set[str | None] = set()
"""The starts of servers that streams of this process have found lost: none comes back."""


class StoredPortionStream(PortionStream):
    """As :class:`PortionStream`; the last of the ``locations`` is the object's address."""

    def __init__(self, *of: Any, locations: Sequence[str], **how: Any) -> None:
        super().__init__(*of, locations=[each for each in locations if not is_object(each)], **how)
        self._object = Address("object", locations[-1])

    @property
    def _is_there(self) -> bool:
        return self.address == self._object

    def overdue(self, now_seconds: float) -> bool:
        wait = self._wait
        # A reading thread ends its wait for the server a little later, and goes on at the object.
        return super().overdue(now_seconds - (0 if wait is None or self._is_there else wait[1] / 2))

    def _connect(self, failure: Unavailable | None) -> None:
        if not self._is_there and self.start not in _lost:
            try:
                super()._connect(failure)
            except (ServerLost, Unavailable) as gone:
                # A server that does not know one dataset has others.
                if isinstance(gone, ServerLost) and type(gone.__cause__) is not NotFound:
                    _lost.add(self.start)
                _log.warning("%s is read from %s: %s", self.name, shown(self._object.location), gone.message)
            else:
                return
        if not self._is_there:
            self._addresses, self._turn, self._failures, failure = [self._object], 0, 0, None
        super()._connect(failure)

    def _reading_at(self, address: Address, ticket: Ticket) -> LaneReader:
        if address == self._object:
            return ObjectReader(address.location, ticket)
        return super()._reading_at(address, ticket)
