"""How many bytes have come on each of gRPC's connections. gRPC does not say it; the kernel does, for each socket.

A connection is named as gRPC names its peer. The sockets are gRPC's: this looks at them by their descriptors, which
gRPC's threads may close at any time, and another file may then have the number. So each look asks whose it is, before
and after. Where ``/proc`` or the kernel does not tell, nothing is known of any connection.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

LIST_SECONDS = 0.1
_DESCRIPTORS = Path("/proc/self/fd")
# In the kernel's struct tcp_info, since Linux 4.1.
_RECEIVED_AT, _RECEIVED_END = 128, 136
_MAPPED = "::ffff:"


class ConnectionBytes:
    """The descriptors of this process's connections, as far as they were asked for."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        self._known: set[tuple[int, int]] = set()  # descriptors with their inodes, whose peer was looked up
        self._may_list = True
        self._list_at = 0.0

    def begin_look(self, now: float) -> bool:
        """Whether connections that are not known yet are found from now on: not within ``LIST_SECONDS`` of the last
        time that the descriptors were listed, which takes milliseconds where there are thousands.
        """
        if not self._may_list and now >= self._list_at:
            self._may_list = True
        if self._may_list:
            self._list_at = now + LIST_SECONDS
        return self._may_list

    def received(self, peer: str) -> int | None:
        """The bytes that have come since the connection's begin; None if there is none, or its bytes are not known."""
        name = _named(peer)
        descriptor = self._descriptors.get(name)
        received = None if descriptor is None else _received(descriptor, name)
        if received is None and self._may_list:
            self._may_list = False
            self._descriptors.pop(name, None)
            self._list()
            descriptor = self._descriptors.get(name)
            received = None if descriptor is None else _received(descriptor, name)
        return received

    def _list(self) -> None:
        try:
            present = {each for each in map(_with_inode, _DESCRIPTORS.iterdir()) if each is not None}
        except OSError:
            return
        for descriptor, _ in present - self._known:
            with suppress(OSError):
                name = _name_of(_with_socket(descriptor, lambda each: each.getpeername()))
                if name is not None:
                    self._descriptors[name] = descriptor
        self._known = present


def _with_inode(path: Path) -> tuple[int, int] | None:
    try:
        descriptor = int(path.name)
        return descriptor, os.fstat(descriptor).st_ino
    except OSError:
        return None


def _named(peer: str) -> str:
    """Host and port of a peer, as gRPC writes it, in one form."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return f"{host.strip('[]').removeprefix(_MAPPED)} {port}"


def _name_of(address: Any) -> str | None:
    if not isinstance(address, tuple) or len(address) < 2:
        return None
    return f"{str(address[0]).removeprefix(_MAPPED)} {address[1]}"


def _received(descriptor: int, name: str) -> int | None:
    def look(one: socket.socket) -> int | None:
        before = _name_of(one.getpeername())
        facts = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_END)
        if name != before or name != _name_of(one.getpeername()) or len(facts) < _RECEIVED_END:
            return None
        return int.from_bytes(facts[_RECEIVED_AT:_RECEIVED_END], "little")

    try:
        received: int | None = _with_socket(descriptor, look)
    except OSError:
        return None
    return received


def _with_socket(descriptor: int, look: Any) -> Any:
    # With a family given the object asks the kernel nothing; this one has room for the addresses of both.
    one = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        return look(one)
    finally:
        one.detach()
