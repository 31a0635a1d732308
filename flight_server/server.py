"""Server: starts, drains and stops the parts of one server, and keeps its duties going (see ``background``).

Start: data directory and recovery, the gRPC port, then the HTTP port. A port that is taken is an error (SO_REUSEPORT is
off).

Drain: on SIGTERM, SIGINT, the action ``drain`` or the end of the parent, readiness turns off, and new datasets, puts
and reads are refused. Running calls have ``drain_grace_seconds``. Then clients of the gRPC lane and producers on the
bulk lane get UNAVAILABLE with the reason; connections of readers on the bulk lane are cut. A client that does not read
the reason is disconnected after one or two seconds. Durable data is on disk when :meth:`Server.run` returns.

HTTP/2 settings
    gRPC's own limit on messages (``message_limit_bytes``) bounds what gRPC can buffer for a call.

    A producer may send one stream window ahead of what the server has read: 1/512 of the memory limit, between 64 KiB
    and 4 MiB. gRPC holds these bytes of each stream, and the pool does not count them. gRPC's probing of the
    bandwidth-delay product is off: it lets a window grow to several times that at any memory limit. The cost is a
    ceiling of one window per round trip and stream: 4 MiB at 10 ms is 400 MB/s.

    A call that the loop has not accepted yet waits in the order of arrival, up to ``ACCEPT_PATIENCE_SECONDS``;
    ``turns`` keeps this wait short. By default gRPC cancels all calls that have waited for 30 s: the client sees a bare
    CANCELLED and the server nothing. It also cancels calls of any client at random when more than 1,000 wait, and all
    when more than 3,000 do, reset ones included. Both limits are off. Instead each connection may have
    ``CALLS_OF_A_CONNECTION``; a reset call counts until the server has disposed of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict
from typing import Any, Self

import grpc
import structlog

from flight_server import config
from flight_server.certificates import Pems
from flight_server.concurrency import in_slices, run_later, seconds_to_tick
from flight_server.host import remove_ended, sweep
from flight_server.lanes.grpc import LAST_WORDS_SECONDS, SERVICE, Health
from flight_server.lanes.http import AddressRefused, bind
from flight_server.memory import LOOK_SECONDS, Heap
from flight_server.node import Node
from flight_server.protocol import bracketed
from flight_server.reporting import CUT_SECONDS, SAMPLE_SECONDS, SUPPRESSED_SECONDS
from flight_server.storage import DataDir, raise_open_files_limit
from flight_server.tiering import delete_garbage, recover
from flight_server.transfer import NEWCOMERS_SECONDS, message_limit_bytes

ACCEPT_PATIENCE_SECONDS = 24 * 3600
CALLS_OF_A_CONNECTION = 10_000
NO_LIMIT = 2**31 - 1
DEFAULT_DISK_SHARE = 0.8
HOUSEKEEPING_SECONDS = 0.5
CERTIFICATES_SECONDS = 1.0
LATER_SECONDS = 0.05
LEASES_AT_ONCE = 100
"""Datasets between two passes of the event loop: one that ends takes 50 µs."""
SWEEP_SECONDS = 60.0
COPIES_SECONDS = 15.0
"""An idle process keeps a broadcast's copy for less."""
MIN_STREAM_WINDOW_BYTES = 64 << 10
MAX_STREAM_WINDOW_BYTES = 4 << 20

_log = structlog.get_logger("flight_server.server")


class Server:
    """One server. ``await start()``, then ``await run()`` until it has drained; or ``async with``."""

    def __init__(self, settings: config.Settings) -> None:
        self.settings = settings
        self.node = Node(settings)
        self.catalogue = self.node.catalogue
        self._data_dir: DataDir | None = None
        self._health = Health(SERVICE, self.node.pending_reads)
        self._grpc: grpc.aio.Server | None = None
        self._http = self.node.http_server()
        self._certificates = self.node.certificates
        self._grace_seconds = 0.0
        self.signalled = False
        self._port, self._http_port = settings.port, settings.http_port
        self._heap = Heap(self.catalogue.budget.memory)
        # Stops the parts that exist, the last one started first.
        self._parts = AsyncExitStack()
        self._parts.push_async_callback(asyncio.to_thread, self._close_data_dir)
        self._parts.push_async_callback(asyncio.to_thread, self.catalogue.close)
        self._parts.push_async_callback(asyncio.to_thread, self._close_kinds)
        self._parts.push_async_callback(self.catalogue.disk.end_commits)
        self._parts.push_async_callback(self.node.background.stop)

    @property
    def location(self) -> str:
        assert self.node.locations.grpc is not None
        return self.node.locations.grpc

    def facts(self) -> dict[str, Any]:
        """Its ports, locations, limit and directory, for who waits for its start."""
        locations = self.node.locations
        return {
            "location": self.location,
            "http": locations.http,
            "port": self._port,
            "http_port": self._http_port,
            "memory_limit_bytes": int(self.settings.memory_limit),
            "data_dir": str(self.catalogue.disk.data_dir),
        }

    async def start(self) -> None:
        """Start every part; after an error none runs. Raises OSError: of the address or the data directory."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings = self.settings
        raise_open_files_limit()
        # Awaited to its end also when this start is cancelled, so that stop() closes what the thread has opened.
        opening = asyncio.ensure_future(asyncio.to_thread(self._open_data_dir))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening])
            raise
        self._grpc = grpc.aio.server(options=self._options())
        self._parts.push_async_callback(self._stop_lanes)
        self._grpc.add_generic_rpc_handlers((self.node.flight_service().handlers(),))
        self._health.offer(self._grpc)
        self._port = self._listen()
        scheme = "grpc" if self._certificates is None else "grpc+tls"
        self.node.locations.grpc = f"{scheme}://{bracketed(self._advertised_host())}:{self._port}"
        if settings.http_port >= 0:
            tls = None if self._certificates is None else self._certificates.context()
            self._http_port = await self._http.start(settings.host, settings.http_port, tls)
            scheme = "http" if tls is None else "https"
            self.node.locations.http = f"{scheme}://{bracketed(self._advertised_host())}:{self._http_port}"
        await self._grpc.start()
        for kind in self.node.kinds.values():
            await kind.start(self.node.background, HOUSEKEEPING_SECONDS)
        self._heap.start()
        self._keep_duties()

    def drain_on_signals(self) -> None:
        """From now on SIGTERM and SIGINT drain the server, and set ``signalled``. Twice is fine."""

        def drain() -> None:
            self.signalled = True
            self.node.drain_requested.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, drain)

    async def run(self) -> None:
        """Serve until a drain is requested; then stop."""
        self.drain_on_signals()
        if self.settings.exit_with_parent:
            self.node.background.keep(self._watch_parent, "parent")
        if self.settings.exit_with_process is not None:
            self.node.background.keep(self._watch_process, "process")
        try:
            await self.node.drain_requested.wait()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().remove_signal_handler(number)
            await self.stop(self.settings.drain_grace_seconds)
            if self.settings.copies_of is not None:
                bases = self.settings.host_file_dirs
                await asyncio.to_thread(remove_ended, bases, self.settings.copies_of, COPIES_SECONDS)

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Drain for at most ``grace_seconds``, then stop every part. Twice is fine."""
        self.catalogue.draining = True
        for kind in self.node.kinds.values():
            kind.drain()
        self._health.drain()
        await self.node.running.end(grace_seconds)
        self._grace_seconds = min(grace_seconds, LAST_WORDS_SECONDS)
        await self._parts.aclose()
        await self.node.calls.tell_suppressed()
        await asyncio.to_thread(self.node.calls.flush_spans)

    async def _stop_lanes(self) -> None:
        # Within this time a client that reads gets its last message, or the reason for the end of its call.
        assert self._grpc is not None
        server, self._grpc = self._grpc, None
        await asyncio.gather(server.stop(self._grace_seconds), self._http.stop())

    def _open_data_dir(self) -> None:
        named = self.settings.data_dir
        self._data_dir = DataDir.temporary() if named is None else DataDir.claim(named)
        path = self._data_dir.path
        self.catalogue.disk.use(
            path,
            owner=self._data_dir.owner,
            lasting=not self._data_dir.is_temporary,
            held=self._data_dir.held,
        )
        recovered = recover(self.catalogue)
        for kind in self.node.kinds.values():
            kind.recover()
        delete_garbage(self.catalogue)
        disk = self.catalogue.budget.disk
        if self.settings.disk_limit is None:
            free_bytes = shutil.disk_usage(path).free
            disk.limit_bytes = (
                disk.used_bytes + int(free_bytes * DEFAULT_DISK_SHARE) // self.settings.worker_count
            )
        if recovered.datasets or recovered.quarantined:
            _log.info("recovered", **asdict(recovered))

    def _close_kinds(self) -> None:
        self.node.offloads.close()
        for kind in self.node.kinds.values():
            kind.close()

    def _close_data_dir(self) -> None:
        if self._data_dir is not None:
            self._data_dir.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def _listen(self) -> int:
        assert self._grpc is not None
        settings = self.settings
        bind(settings.host, settings.port, option="--port").close()
        address = f"{bracketed(settings.host)}:{settings.port}"
        try:
            if self._certificates is not None:
                return int(self._grpc.add_secure_port(address, _credentials(self._certificates.pems)))
            return int(self._grpc.add_insecure_port(address))
        except RuntimeError:
            raise AddressRefused(f"gRPC cannot listen on {address} (--port); its log says why") from None

    def _options(self) -> list[tuple[str, int]]:
        keepalive_ms = int(self.settings.keepalive_seconds * 1000)
        return [
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", -1),
            (
                "grpc.max_receive_message_length",
                message_limit_bytes(self.node.max_message_bytes, self.node.max_schema_bytes),
            ),
            # For a new connection to begin HTTP/2; gRPC's default is 2 minutes.
            ("grpc.server_handshake_timeout_ms", int(self.settings.stall_seconds * 1000)),
            # No compressed messages (bit 0 is "identity"): a small one could become many times max_message.
            ("grpc.compression_enabled_algorithms_bitset", 1),
            ("grpc.max_metadata_size", 64 << 10),
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", keepalive_ms),
            # gRPC waits this long for the answer to a ping, beside the keepalive timeout; its default is a minute.
            ("grpc.http2.ping_timeout_ms", keepalive_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.server_max_unrequested_time_in_server", ACCEPT_PATIENCE_SECONDS),
            ("grpc.server.max_pending_requests", NO_LIMIT),
            ("grpc.server.max_pending_requests_hard_limit", NO_LIMIT),
            ("grpc.max_concurrent_streams", CALLS_OF_A_CONNECTION),
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", self._stream_window_bytes()),
        ]

    def _stream_window_bytes(self) -> int:
        limit_bytes = int(self.settings.memory_limit)
        return max(MIN_STREAM_WINDOW_BYTES, min(MAX_STREAM_WINDOW_BYTES, limit_bytes // 512))

    def _advertised_host(self) -> str:
        if self.settings.advertise_host is not None:
            return self.settings.advertise_host
        everywhere = self.settings.host in ("0.0.0.0", "::")  # noqa: S104  # a comparison, not a binding
        return socket.gethostname() if everywhere else self.settings.host

    def _keep_duties(self) -> None:
        keep, node = self.node.background.keep, self.node
        keep(node.spiller.run, "spiller")
        for name, duty in (
            ("stalled_readers", _at_once(node.eviction.look)),
            ("arriving", _at_once(node.arriving.look)),
            ("leases", self._expire),
            ("offloads", node.offloads.forget_ended),
            ("silent_connections", self._http.end_silent),
            ("token_file", node.authenticator.reload),
            ("refused_files", _at_once(node.catalogue.disk.disposal.try_again)),
        ):
            keep(duty, name, every_seconds=HOUSEKEEPING_SECONDS)
        keep(node.eviction.watch_newcomers, "newcomers", every_seconds=NEWCOMERS_SECONDS)
        keep(node.loop_lag.look, "loop_lag", every_seconds=0.0)
        keep(node.calls.cut_spans, "spans", every_seconds=CUT_SECONDS)
        keep(node.calls.tell_suppressed, "log_lines", every_seconds=SUPPRESSED_SECONDS)
        keep(node.history.sample, "history", every_seconds=SAMPLE_SECONDS)
        keep(self._heap.look, "heap", every_seconds=LOOK_SECONDS)
        keep(self._do_later, "later", every_seconds=LATER_SECONDS)
        if self._certificates is not None:
            keep(self._certificates.refresh, "certificates", every_seconds=CERTIFICATES_SECONDS)
        keep(self._sweep_host, "host_files", every_seconds=SWEEP_SECONDS)

    async def _do_later(self) -> None:
        """What waits to be done; if nothing did, again at the next tick only."""
        if not await run_later():
            await asyncio.sleep(seconds_to_tick())

    async def _expire(self) -> None:
        async for dataset in in_slices(self.catalogue.expire(), LEASES_AT_ONCE):
            if dataset is not None:
                self.node.counters.datasets_expired += 1
                _log.info("dataset_expired", dataset=dataset.name, generation=dataset.generation)
                del dataset

    async def _sweep_host(self) -> None:
        """Remove the files of dead clients on this host, where no living client may do so."""
        bases = self.settings.host_file_dirs
        removed = await asyncio.to_thread(sweep, bases) if bases else []
        if removed:
            _log.info("host_files_swept", files=len(removed))

    async def _watch_parent(self) -> None:
        """Drain when standard input ends: the parent process holds its other end."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        with suppress(ValueError, OSError):
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
            while await reader.read(4096):
                pass
        self.node.drain_requested.set()

    async def _watch_process(self) -> None:
        """Drain when the process ends, or has ended."""
        with suppress(ProcessLookupError):
            assert self.settings.exit_with_process is not None
            process = os.pidfd_open(self.settings.exit_with_process)
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(process, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(process)
                os.close(process)
        self.node.drain_requested.set()


def _at_once(work: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    """A duty that calls ``work``, which does not wait."""

    async def duty() -> None:
        work()

    return duty


def _credentials(newest: Callable[[], Pems]) -> grpc.ServerCredentials:
    """Of the gRPC port, whose certificates may change while it listens: gRPC's threads ask for the ``newest`` when a
    connection begins. Whether clients must present a certificate does not change.
    """
    used = newest()

    def newer() -> Any:
        nonlocal used  # gRPC asks under a lock of its own
        pems = newest()
        if pems == used:
            return None
        used = pems
        return _configured(pems)

    wants_client = used[2] is not None
    return grpc.dynamic_ssl_server_credentials(
        _configured(used), newer, require_client_authentication=wants_client
    )


def _configured(pems: Pems) -> Any:
    cert, key, client_ca = pems
    return grpc.ssl_server_certificate_configuration([(key, cert)], client_ca)
