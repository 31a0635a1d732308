"""TreeRelay: a relay that pulls from another host's relay of the same dataset, and passes frames on as they come.

    {"flight": the origin, "dataset": "…", "generation": "…", "token": "…",
     "tree": {"host": "…", "file": "…", "location": where this server is read}}

Guarantee: as a relay's (``relay``), wherever the frames came from. All hosts of a tree give their relays one name.

Parent
    The pull asks the origin where to fetch (the action ``copies``), and reads from there. If that fails at any frame,
    it says so to the origin and goes on at the next frame, at the place that the origin then names; this server's
    readers wait. Only a failure of the origin itself ends the pull. A host that has gone silently is noticed within
    twice ``PROBE_SECONDS``, one that does not begin within ``BEGIN_SECONDS``.

Trust
    The token goes to the hosts that the origin names, if ``--source-flight`` lists them. The origin names hosts that
    have given the same file's name, which the driver draws.

Dictionaries are refused: a stream that goes on elsewhere would send them again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from flight_server.access import FlightLocation
from flight_server.datasets import Totals
from flight_server.frames import Checked, SchemaMessage, has_dictionaries
from flight_server.protocol import (
    COPIES,
    CopiesRequest,
    CopyVerb,
    FlightShuffleError,
    InvalidRequest,
    Ticket,
)

from .relay import FlightSpec, RelaySource
from .source import SourceChanged

BEGIN_SECONDS = 5.0
PROBE_SECONDS = 5.0
_MAX_PARENTS = 8
"""After losing so many, the relay pulls from the origin, and asks it for no other."""


class TreeRelay(RelaySource):
    """A relay in a tree.

    Args:
        name: that of the relay's dataset, on every host.
        may_reach: whether the configuration allows to connect there.
    """

    def __init__(
        self,
        spec: FlightSpec,
        schema: SchemaMessage,
        tickets: list[bytes],
        *,
        name: str,
        may_reach: Callable[[FlightLocation], bool],
        **options: Any,
    ) -> None:
        super().__init__(spec, schema, tickets, **options)
        if len(tickets) != 1 or has_dictionaries(schema.schema):
            raise InvalidRequest(f"source: {spec} has several partitions, or dictionaries: leave 'tree' out")
        CopiesRequest.parse(self._request(CopyVerb.FETCH))
        self._name = name
        self._may_reach = may_reach

    def pull(self, index: int, so_far: Callable[[], Totals]) -> AsyncGenerator[Checked, None]:
        del index
        return self._pull_in_tree(so_far)

    async def _pull_in_tree(self, so_far: Callable[[], Totals]) -> AsyncGenerator[Checked, None]:
        lost: str | None = None
        for _ in range(_MAX_PARENTS):
            lost = await self._parent(lost)
            if lost is None:
                break
            parent = FlightLocation.parse(lost)
            if not self._may_reach(parent):
                continue
            spec = replace(self._spec, location=parent, dataset=self._name, generation=None, tree=None)
            ticket = Ticket(self._name, 0, from_=so_far().frames).encode()
            arriving = self._pull_from(spec, ticket, so_far, BEGIN_SECONDS, PROBE_SECONDS)
            try:
                async with aclosing(arriving):
                    async for each in arriving:
                        yield each
            except (FlightShuffleError, SourceChanged, TimeoutError):
                continue
            await self._say_fetched()
            return
        ticket = replace(Ticket.parse(self._tickets[0]), from_=so_far().frames).encode()
        async with aclosing(self._pull_from(self._spec, ticket, so_far)) as arriving:
            async for each in arriving:
                yield each
        await self._say_fetched()

    async def _parent(self, lost: str | None) -> str | None:
        """Where to fetch; None for the origin, also if it does not say: reading from it shows why."""
        with suppress(FlightShuffleError, ValueError):
            answer = await self._act(COPIES, self._request(CopyVerb.FETCH, lost))
            if (place := answer.get("from")) is not None:
                FlightLocation.parse(place)
                return str(place)
        return None

    async def _say_fetched(self) -> None:
        with suppress(FlightShuffleError):
            await self._act(COPIES, self._request(CopyVerb.FETCHED))

    def _request(self, verb: CopyVerb, lost: str | None = None) -> bytes:
        spec = self._spec
        assert spec.tree is not None
        place = (spec.tree.location, lost) if verb is CopyVerb.FETCH else ()
        host, file = spec.tree.host, spec.tree.file
        return CopiesRequest(verb, spec.dataset, spec.generation or "", host, file, *place).encode()
