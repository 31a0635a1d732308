"""What requests say of a dataset that is spread over several servers, each of which holds a portion of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from .bodies import Body, Faults, Fields, InJson, integer, parse_as
from .errors import InvalidRequest
from .stream_requests import MAX_COUNT, check_attempt, list_as_tuple

MAX_SERVERS = 1000
MAX_LOCATIONS = 8
_MAX_LOCATION_CHARACTERS = 300
_SCHEMES = ("grpc://", "grpc+tcp://", "grpc+tls://", "http://", "https://")


@dataclass(frozen=True)
class ServerPortion(Body, what="seal: a server"):
    """What one server holds of a dataset: its start, where it is read, and its rows and stored bytes."""

    start: Annotated[str, parse_as(partial(check_attempt, what="seal: a server's 'start'"), needed=True)]
    locations: Annotated[tuple[str, ...], InJson(list_as_tuple)]
    rows: Annotated[int, integer(0, MAX_COUNT)]
    bytes: Annotated[int, integer(0, MAX_COUNT)]

    @property
    def kept_bytes(self) -> int:
        """About what it takes to keep it."""
        return 400 + sum(100 + len(each) for each in self.locations)

    def faults(self, what: str) -> Faults:
        yield self.lacks("locations", "rows", "bytes"), f"{what} needs 'locations', 'rows' and 'bytes'"
        given: Any = self.locations
        wrong = not isinstance(given, tuple) or not 0 < len(given) <= MAX_LOCATIONS
        wrong = wrong or not all(isinstance(each, str) and each.startswith(_SCHEMES) for each in given)
        wrong = wrong or max(map(len, given)) > _MAX_LOCATION_CHARACTERS or not _is_plain("".join(given))
        yield (
            wrong,
            f"{what}: 'locations' are 1 to {MAX_LOCATIONS} of {', '.join(_SCHEMES)}, not {str(given)[:80]}",
        )


def _is_plain(text: str) -> bool:
    """A character is one byte, on the wire and in memory, as ``kept_bytes`` and the room of a FlightInfo count it."""
    return text.isascii() and text.isprintable()


def server_portions(fields: Fields, key: str) -> tuple[ServerPortion, ...] | None:
    """The servers of a body; None if it has none. Raises InvalidRequest."""
    given = fields.any(key)
    if given is None:
        return None
    if not isinstance(given, list) or not 0 < len(given) <= MAX_SERVERS:
        raise InvalidRequest(f"{fields.what}: {key!r} is a list of 1 to {MAX_SERVERS} servers")
    if not all(isinstance(each, dict) for each in given):
        raise InvalidRequest(f"{fields.what}: each of {key!r} is an object {{start, locations, rows, bytes}}")
    found = tuple(map(ServerPortion.of, given))
    if len({each.start for each in found}) < len(found):
        raise InvalidRequest(f"{fields.what}: a start comes twice in {key!r}")
    return found
