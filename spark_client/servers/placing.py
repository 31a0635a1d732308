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
) -> str:
    """The location where a task puts its rows. Always the same for the same arguments, in any process.

    Args:
        locations: of the servers, in one order for all tasks; at least one.
        host: the task's. The location is on it, if any is.
        tries: how often Spark has tried the task before. A new try goes to the next server, on whichever host, because
            the one before may be the reason.
    """
    own = [number for number, each in enumerate(locations) if host and urlsplit(each).hostname == host]
    among = own if own and not tries else range(len(locations))
    # Not ``hash``: Python salts it in each process.
    return locations[among[(zlib.crc32(dataset.encode()) + _turn(producer, len(among)) + tries) % len(among)]]


def _turn(producer: int, servers: int) -> int:
    """A number whose remainder by ``servers`` takes each value once for so many producers in a row, and about as often
    as the others for each second, third or eighth producer: Spark deals the tasks of a job to its executors in turn. So
    each block of producers begins at another server, by a golden section further than the last one (multiplicative
    hashing: Knuth, The Art of Computer Programming, volume 3, section 6.4).
    """
    block, place_in_block = divmod(producer, servers)
    return place_in_block + ((block * 2654435769 % 2**32) * servers >> 32)
