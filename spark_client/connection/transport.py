"""One server address: its gRPC connections and calls. The only file that makes pyarrow.flight clients.

Guarantee: a call answers within its deadline in :class:`Timeouts`, or raises one error of ``protocol.errors``
(``calls``, which says what a call does while its server restarts). The first call opens the first connection.

Connections
    A :class:`RemoteServer` opens at most ``CONNECTIONS`` TCP connections and uses them in turn; HTTP/2 carries any
    number of streams over each. Unpickling gives one :class:`RemoteServer` for equal arguments in a process
    (:func:`shared_server`), so Spark tasks share it. One that a program made has its own for other addresses
    (:meth:`RemoteServer.at`).

Memory
    With ``s`` open streams at worst ``s * (4 MiB + 2 messages)`` in gRPC's buffers on both sides together (measured:
    6.0 MiB for one unread stream of 1 MiB messages, 2.0 MiB with a window of 1 MiB).

Fork
    In a forked child of a process that has made calls, a call raises :class:`ForkedProcess` at once (see ``calls``).
    Pickled servers and HTTP connections work there.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, Unpack, cast

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import FlightShuffleError, InvalidRequest, dump_json, parse_json

from .advice import ClientCertificate, is_remote, read_token
from .calls import Call, CollectFactory, ForkedProcess, calling, immortal_in_children, retrying
from .stream_options import Reading, ServerOptions, Timeouts, Writing

CONNECTIONS = 4
WINDOW_BYTES = 4 << 20
"""One frame of the usual size travels while the one before is decoded."""
T = TypeVar("T")

_grpc_pid: int | None = None
"""The process that made the first gRPC call: its forked children must not make any."""


class _Connections:
    def __init__(self) -> None:
        immortal_in_children(self)
        self.pid = os.getpid()
        self.lock = threading.RLock()  # making what is attached may attach something
        self.clients: dict[Any, flight.FlightClient] = {}
        self.turn = itertools.count()
        self.attached: dict[Any, Any] = {}


class RemoteServer:
    """One server address and the options of its calls. Thread-safe; pickles to its arguments.

    Args:
        embedded: it is a client's own, which ends with the client: errors say so.
        direct: the client has started it, so that no proxy is between, see ``advice``.
        options: a token is sent as ``authorization: Bearer …`` with every call; of a path, pickles have the path only.

    ``patient``: whether calls are made again, see *Restarts* of ``calls``, from the first one on; else from the first
    answer on.

    Raises:
        InvalidRequest: a client's certificate without its key, or the key alone.
    """

    def __init__(
        self, location: str, *, embedded: bool = False, direct: bool = False, **options: Unpack[ServerOptions]
    ) -> None:
        self.location = location
        self._options = {name: value for name, value in options.items() if value is not None}
        self.timeouts = options.get("timeouts") or Timeouts()
        self.reading = options.get("reading") or Reading()
        self.writing = options.get("writing") or Writing()
        self.tls_root_certs = options.get("tls_root_certs")
        self.client_certificate = ClientCertificate.of(
            options.get("tls_client_cert"), options.get("tls_client_key")
        )
        self.embedded = embedded
        self.direct = direct
        self.patient = False
        self._connections = _Connections()
        self._is_shared = False
        self._peers: dict[str, RemoteServer] | None = None
        """All that :meth:`at` made from it or from one of them, and itself."""

    def __repr__(self) -> str:
        return f"<Server {self.location}>"  # without the token: logs and error messages have this

    @property
    def token(self) -> str | None:
        """The token; that of a file as the file is now. Raises Unauthenticated: the file cannot be read, or is
        empty.
        """
        token = self._options.get("token")
        return read_token(token) if isinstance(token, Path) else cast("str | None", token)

    @property
    def options(self) -> ServerOptions:
        """Each one that is not None, and the defaults of those that a class has."""
        defaults = {"timeouts": self.timeouts, "reading": self.reading, "writing": self.writing}
        return cast("ServerOptions", self._options | defaults)

    def _arguments(self) -> dict[str, Any]:
        return {"embedded": self.embedded, "direct": self.direct, **self.options}

    def __reduce__(self) -> tuple[Any, ...]:
        return (shared_server, (self.location, self._arguments()))

    def at(self, location: str) -> RemoteServer:
        """The server of another address, with the same credentials and options: this object's own, which its
        :meth:`close` closes, too; of one that :func:`shared_server` made, the process's shared one.
        """
        if location == self.location:
            return self
        if self._is_shared:
            return shared_server(location, self._arguments())
        with self._here().lock:
            if self._peers is None:
                self._peers = {self.location: self}
            peers = self._peers
        if (peer := peers.get(location)) is None:
            # Two threads may make one at the same time, each at another peer; both use the first.
            peer = peers.setdefault(location, RemoteServer(location, **self._arguments()))
            peer._peers, peer.patient = peers, self.patient
        return peer

    def never_returns(self) -> None:
        """Say that it was embedded in a client, which is closed, as were those of :meth:`at`."""
        for each in (self, *(self._peers or {}).values()):
            each.embedded = True

    def own_at(self, location: str) -> RemoteServer:
        """A server that is embedded in the client, with the same credentials and options."""
        return RemoteServer(location, **(self._arguments() | {"embedded": True}))

    # Connections.

    def _here(self) -> _Connections:
        # No lock: it may have been held at the fork.
        if self._connections.pid != os.getpid():
            # The parent's connections are not closed: see ``calls``.
            self._connections = _Connections()
        return self._connections

    def _client(self) -> flight.FlightClient:
        global _grpc_pid  # noqa: PLW0603  # which process began gRPC: a fact of the process
        if _grpc_pid is None:
            _grpc_pid = os.getpid()
        elif _grpc_pid != os.getpid():
            raise ForkedProcess(
                "this process was forked from one that had already used Flight over gRPC, and gRPC hangs in "
                "such a child: start it with multiprocessing's 'spawn' or 'forkserver', or fork before the "
                "first use of the client"
            )
        connections = self._here()
        # A client with an earlier certificate stays for the streams that it carries.
        pair = None if self.client_certificate is None else self.client_certificate.read()
        turn = next(connections.turn) % CONNECTIONS, pair
        with connections.lock:
            if turn not in connections.clients:
                connections.clients[turn] = self._connect(pair)
            return connections.clients[turn]

    def _connect(self, pair: tuple[bytes, bytes] | None) -> flight.FlightClient:
        options: dict[str, Any] = {"generic_options": self._grpc_options()}
        if self.tls_root_certs is not None:
            options["tls_root_certs"] = self.tls_root_certs
        if pair is not None:
            options["cert_chain"], options["private_key"] = pair
        with Call(self.location).errors():
            return flight.FlightClient(self.location, middleware=[CollectFactory()], **options)

    def _grpc_options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.use_local_subchannel_pool", 1),  # else gRPC makes all connections one
            ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
            ("grpc.http2.bdp_probe", 0),  # which would change the windows
            ("grpc.max_receive_message_length", 2**31 - 1),  # Arrow's own limit; the server's is lower
            # A peer that vanished without closing is noticed within both.
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.min_reconnect_backoff_ms", int(self.timeouts.connect_seconds * 1000)),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            ("grpc.enable_http_proxy", int(not self.direct and is_remote(self.location))),
        ]

    def attached(self, key: Any, make: Callable[[], T]) -> T:
        """The process's object of this key, made at the first call and closed with the server if it can be."""
        connections = self._here()
        with connections.lock:
            if key not in connections.attached:
                connections.attached[key] = make()
            return cast("T", connections.attached[key])

    def close(self) -> None:
        """Close connections and attached objects, and those of its own peers. A later call opens new ones; twice is
        fine.
        """
        peers, self._peers = self._peers or {}, None
        for peer in peers.values():
            if peer is not self:
                peer._peers = None
                peer.close()
        connections, self._connections = self._here(), _Connections()
        with connections.lock:
            for client in connections.clients.values():
                client.close()
            for thing in connections.attached.values():
                if hasattr(thing, "close"):
                    thing.close()

    # Calls.

    @contextmanager
    def calling(self, dataset: str | None = None) -> Iterator[tuple[flight.FlightClient, Call]]:
        """A connection, and the :class:`Call` of the one call made inside, which is about ``dataset``.

        pyarrow's exceptions inside are raised as our errors. A stream that was opened inside is read under
        ``call.errors()``.
        """
        call = Call(self.location, token=self.token, embedded=self.embedded, dataset=dataset)
        client = self._client()
        calling.call = call
        try:
            with call.errors():
                yield client, call
        finally:
            calling.call = None

    def riding_out(
        self, call: Callable[[], T], timeout_seconds: float | None = None, *, once: bool = False
    ) -> T:
        """The result of ``call``, which is made again as *Restarts* of ``calls`` says."""
        if once or self.embedded or not self.patient:
            answer = call()
        else:
            answer = retrying(
                self.timeouts, call, within_seconds=timeout_seconds or self.timeouts.call_seconds
            )
        self.patient = True
        return answer

    def _ask(
        self,
        ask: Callable[[flight.FlightClient], T],
        timeout_seconds: float | None = None,
        *,
        dataset: str | None = None,
        once: bool = False,
    ) -> T:
        def call() -> T:
            with self.calling(dataset) as (client, _):
                return ask(client)

        return self.riding_out(call, timeout_seconds, once=once)

    def action(
        self,
        name: str,
        body: dict[str, Any] | bytes = b"",
        timeout_seconds: float | None = None,
        *,
        once: bool = False,
    ) -> dict[str, Any]:
        """The JSON object in the action's last result; empty without one. ``once``: see *Restarts* of ``calls``."""
        data = body if isinstance(body, bytes) else dump_json(body)
        results = self._ask(
            lambda client: list(
                client.do_action(flight.Action(name, data), self.call_options(timeout_seconds))
            ),
            timeout_seconds,
            once=once,
        )
        return parse_json(results[-1].body.to_pybytes(), f"the answer of {name!r}") if results else {}

    def flight_info(self, dataset: str, timeout_seconds: float | None = None) -> flight.FlightInfo:
        descriptor = flight.FlightDescriptor.for_path(dataset)
        return self._ask(
            lambda client: client.get_flight_info(descriptor, self.call_options(timeout_seconds)),
            timeout_seconds,
            dataset=dataset,
        )

    def schema(self, dataset: str, timeout_seconds: float | None = None, *, once: bool = False) -> pa.Schema:
        """The dataset's schema; :class:`Unavailable` while the server does not know it."""
        descriptor = flight.FlightDescriptor.for_path(dataset)
        return self._ask(
            lambda client: client.get_schema(descriptor, self.call_options(timeout_seconds)).schema,
            timeout_seconds,
            dataset=dataset,
            once=once,
        )

    def list_flights(
        self, prefix: str = "", timeout_seconds: float | None = None, *, once: bool = False
    ) -> list[flight.FlightInfo]:
        call = prefix.encode(), self.call_options(timeout_seconds)
        return self._ask(lambda client: list(client.list_flights(*call)), timeout_seconds, once=once)

    def open_put(
        self,
        descriptor: flight.FlightDescriptor,
        schema: pa.Schema,
        timeout_seconds: float | None = None,
        codec: str | None = None,
        *,
        dataset: str | None = None,
        once: bool = False,
    ) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader, Call]:
        """A writer, the reader of the server's answers, and the call, under whose ``errors()`` both are used.

        ``codec`` compresses all buffers; ``dataset`` is for errors.
        """
        options = flight.FlightCallOptions(
            timeout=timeout_seconds or self.timeouts.stream_seconds,
            write_options=pa.ipc.IpcWriteOptions(compression=codec),
        )

        def open_() -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader, Call]:
            with self.calling(dataset) as (client, call):
                writer, reader = client.do_put(descriptor, schema, options)
                immortal_in_children(writer)
                immortal_in_children(reader)
                return writer, reader, call

        return self.riding_out(open_, once=once)

    def why(self, dataset: str) -> str:
        """The reasons why the dataset's streams wait, in the server's words; its errors are part of the answer."""
        try:
            answer = self.action("why", {"dataset": dataset}, self.timeouts.why_seconds, once=True)
        except FlightShuffleError as error:
            return f"nothing ({error.message})"
        waits = answer.get("waits", [])
        if not waits:
            return "that no stream of the dataset waits"
        shown = "; ".join(json.dumps(wait, separators=(", ", ": ")) for wait in waits[:3])
        return shown + (f"; and {len(waits) - 3} more" if len(waits) > 3 else "")

    def call_options(self, timeout_seconds: float | None = None) -> flight.FlightCallOptions:
        """Call options with a deadline, by default ``call_seconds``."""
        return flight.FlightCallOptions(timeout=timeout_seconds or self.timeouts.call_seconds)


def misdirected(server: RemoteServer, location: str, start: str | None) -> InvalidRequest | None:
    """The error if ``server`` sends its clients to ``location``, where another one has answered, under ``start``; None
    if that is the server's own start, or it does not say which it has.
    """
    if start is None or location == server.location:
        return None
    try:
        own = server.action("locations", timeout_seconds=server.timeouts.why_seconds, once=True).get("start")
    except FlightShuffleError:
        return None
    return None if own in (None, start) else sent_elsewhere(server.location, location)


def sent_elsewhere(server: str, location: str) -> InvalidRequest:
    """The error of a ``server`` that sends its clients to another one, at ``location``."""
    return InvalidRequest(
        f"{location} is another server than {server}, which sends its clients there: start {server} with the right "
        "--advertise-host",
        server=server,
        location=location,
    )


_servers: weakref.WeakValueDictionary[tuple[Any, ...], RemoteServer] = weakref.WeakValueDictionary()


def shared_server(location: str, arguments: dict[str, Any]) -> RemoteServer:
    """The process's :class:`RemoteServer` for these arguments."""
    key = (location, *sorted(arguments.items()))
    server = _servers.get(key)
    if server is None:
        server = RemoteServer(location, **arguments)
        server._is_shared = server.patient = True  # the process that sent it here has reached it
        # Two threads may make one at the same time; both use the first.
        server = _servers.setdefault(key, server)
    return server
