"""A TCP proxy that can stop forwarding without a word, as a network does that has lost a peer."""

from __future__ import annotations

import select
import socket
import threading
from types import TracebackType
from typing import Self

_READ_BYTES = 1 << 16
_POLL_SECONDS = 0.02


class Proxy:
    """Forwards connections to a port of this machine until ``cut``; both sides stay connected then.

    Limit: bytes that are in the kernel's buffers already still arrive, and the kernels of the two sides
    go on to acknowledge what they have room for. A peer that is really gone acknowledges nothing.
    """

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._target = port
        self._ended = threading.Event()
        self._cut = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    @property
    def location(self) -> str:
        """Where clients connect."""
        return f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Forward nothing from now on, in either direction."""
        self._cut.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        peers: dict[socket.socket, socket.socket] = {}
        with self._listener:
            while not self._ended.is_set():
                if self._cut.is_set():
                    self._ended.wait()
                    break
                readable, _, _ = select.select([self._listener, *peers], [], [], _POLL_SECONDS)
                for source in readable:
                    if source is self._listener:
                        near = self._listener.accept()[0]
                        far = socket.create_connection(("127.0.0.1", self._target))
                        peers |= {near: far, far: near}
                    elif not self._forward(source, peers[source]):
                        peers.pop(peers.pop(source)).close()
                        source.close()
        for each in peers:
            each.close()

    def _forward(self, source: socket.socket, sink: socket.socket) -> bool:
        try:
            data = source.recv(_READ_BYTES)
            sink.sendall(data)
        except OSError:
            return False
        if not data:
            sink.close()
        return bool(data)
