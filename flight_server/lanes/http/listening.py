"""Addresses to listen on, with errors that name the remedy.

gRPC writes the reason of a failed bind only to its log. So ``server`` first binds gRPC's address here and releases it;
if another process takes it in between, the error can only refer to that log.
"""

from __future__ import annotations

import errno
import socket

from flight_server.protocol import bracketed


class AddressRefused(OSError):
    """The server cannot listen there."""


def bind(host: str, port: int, *, option: str) -> socket.socket:
    """A TCP socket that is bound and does not listen yet. Blocks while the host's name is looked up. ``option``: the
    port's flag, for the error. Raises AddressRefused: the address cannot be bound.
    """
    where = f"{bracketed(host)}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressRefused(f"--host: {host!r} is no address of this machine: {error.strerror}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            sentence = (
                f"{where} is in use by another process: end that one, or give another {option} (0 for any)"
            )
        elif error.errno == errno.EADDRNOTAVAIL:
            sentence = f"--host: {host!r} is no address of this machine"
        else:
            sentence = f"cannot listen on {where} ({option}): {error.strerror}"
        raise AddressRefused(sentence) from None
    return bound
