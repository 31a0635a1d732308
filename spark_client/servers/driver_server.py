"""DriverServer: a server on the driver's host, started when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from flight_server.protocol import InvalidRequest
from spark_client.connection import RemoteServer, embedded


class DriverServer:
    """Thread-safe. The process ends as ``connection.embedded`` says.

    Args:
        like: its credentials and options are those of the server, too.
        options: of the process, among them the ``host`` on which it listens, and the token.
    """

    def __init__(self, like: RemoteServer, options: Mapping[str, Any]) -> None:
        self._like = like
        self._options = options
        self._process: embedded.Embedded | None = None
        self._server: RemoteServer | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def started(self) -> RemoteServer | None:
        """None before the first :meth:`server`."""
        return self._server

    def server(self) -> RemoteServer:
        """The server, which the first call starts.

        Raises:
            InvalidRequest: it has no such option; or it is closed.
            Unavailable: it did not start; the message says why.
        """
        with self._lock:
            if self._closed:
                raise InvalidRequest("this ShuffleClient is closed; make a new one")
            if self._server is None:
                self._process = embedded.start(**{"workers": 1, **self._options})
                self._server = self._like.own_at(self._process.location)
            return self._server

    def close(self) -> None:
        """End the server, if it was started. Twice is fine."""
        with self._lock:
            self._closed = True
            server, process = self._server, self._process
        if server is not None:
            server.close()
        if process is not None:
            process.close()
