"""Whether a server's process is gone for certain: each of its ports refuses connections.

A server that is away for a moment, and comes back with its data, is waited for (``restarts``). A start of a server does
not come back. So for data of one start a refusal is an answer, and silence is none.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

_LOOK_SECONDS = 1.0
_AGAIN_SECONDS = 0.2


def refuses(locations: Iterable[str]) -> bool:
    """Whether all locations of one server refuse a connection, now and ``_AGAIN_SECONDS`` later. False if any accepts
    it, does not answer within ``_LOOK_SECONDS``, or is no port.
    """
    ports = {(parts.hostname, parts.port) for parts in map(urlsplit, locations)}
    if not (ports and all(_refused(*each) for each in ports)):
        return False
    time.sleep(_AGAIN_SECONDS)
    return all(_refused(*each) for each in ports)


def _refused(host: str | None, port: int | None) -> bool:
    if host is None or port is None:
        return False
    try:
        socket.create_connection((host, port), _LOOK_SECONDS, all_errors=True).close()
    except ExceptionGroup as found:  # of one error for each address of the host
        return all(isinstance(each, ConnectionRefusedError) for each in found.exceptions)
    except OSError:  # the host has no address
        return False
    return False
