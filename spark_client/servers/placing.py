"""Placing: the server that a task writes to, by what the task itself knows."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from urllib.parse import urlsplit


def place(
    dataset: str,
    producer: int,
    locations: Sequence[str],
    *,
    host: str | None = None,
    tries: int = 0,
    copies: int = 1,
) -> tuple[str, ...]:
    """Where a task puts its rows: one location for each of the ``copies``, at most as many as there are. Always the
    same for the same arguments, in any process.

    Args:
        locations: of the servers, in one order for all tasks; at least one.
        host: the task's. The first location is on it, if any is.
        tries: how often Spark has tried the task before. A new try goes to the next server, on whichever host, because
            the one before may be the reason.
    """
    own = [number for number, each in enumerate(locations) if host and urlsplit(each).hostname == host]
    among = own if own and not tries else range(len(locations))
    # Not ``hash``: Python salts it in each process.
    first = among[(zlib.crc32(dataset.encode()) + producer + tries) % len(among)]
    return tuple(locations[(first + copy) % len(locations)] for copy in range(min(copies, len(locations))))
