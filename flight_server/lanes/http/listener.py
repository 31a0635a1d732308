"""The HTTP listener.

    GET  /v1/datasets/{dataset}/partitions/{i}?generation=…&from=…    one partition      (``bulk_get``);
                                                                      reader=… (``places``)
    GET  /v1/datasets/{dataset}?generation=…                          all its partitions (``bulk_get``), or
                                                                      partitions=3,7&from=…
    HEAD of both                                                      generation, sealed, totals
    POST /v1/put                                                      takes a put        (``bulk_put``)
    POST /v1/hold                                                     as the action      (``bulk_versions``)
    GET  /v1/datasets?prefix=…                                        the datasets       (``reports``)
    GET  /v1/statistics?dataset=…, /v1/why?dataset=…                  as the actions of the same names; these
                                                                      three in pages: first=…&limit=…
    GET  /metrics                                                     Prometheus
    GET  /healthz, /readyz                                            alive; 503 while draining
    GET  /                                                            a page that shows the statistics

Names
    A dataset's name stands in the path as it is. A slash may be ``%2F``. A path to a dataset whose own name ends in
    ``/partitions/<number>`` has one meaning with it, see ``datasets.ambiguous_names``.

Errors
    Before the first byte of a stream: a status (see ``http_errors``) and the error's JSON. After it the connection is
    cut, and a client that asks again gets the error; an upgraded put gets it on its own connection. A bug answers only
    an id, as on the gRPC lane.

Access
    ``browsers`` says which requests of web pages are refused, ``auth`` how a request carries the token. The health URLs
    need neither, and the page ``/``, which has no data, no token.

Compression
    None: it would cost more than loopback and data-centre networks do. Arrow buffers that a producer has compressed go
    through as they are.

Connections
    TCP keepalive finds a vanished client of an idle stream within twice ``keepalive_seconds``. With bytes on the way
    the kernel's retransmission limit does; until then a reader holds no room (``outlet``). A connection that has sent
    no whole request is closed after ``stall_seconds``, one that is idle between two after ``IDLE_CONNECTION_SECONDS``.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import unquote

import structlog
from aiohttp import web

from flight_server.access import Doorkeeper, authorize
from flight_server.concurrency import Running, Turns
from flight_server.datasets import one_meaning
from flight_server.protocol import (
    HOLD,
    PUT_PATH,
    FlightShuffleError,
    InternalError,
    InvalidRequest,
    NotFound,
    check_attempt,
    check_dataset_name,
    check_range,
    dump_json,
    parse_partition,
)
from flight_server.reporting import metrics, reports
from flight_server.transfer import PutReceiver, Reads

from .bulk_get import ArrowStream, BulkRead
from .bulk_put import READ_BYTES, Intake
from .bulk_versions import HOLD_PATH, BulkVersionRead, answer_hold
from .http_errors import Runner, refusal
from .listening import bind
from .outlet import FIRST_UNSENT_BYTES, UNSENT_BYTES
from .read_queries import frame_number, listed_partitions, query_of, versions_of

BACKLOG = 1024
IDLE_CONNECTION_SECONDS = 75.0
SHUTDOWN_SECONDS = 1.0
NEWCOMER_BYTES = 512 << 10
"""Of a turn: two reads begin in one pass of the event loop. To begin one takes about as long as to send 1 MiB, so
readers that have begun keep a good part of the loop while a crowd comes."""
KEEPALIVE_PROBES = 3

_HEALTH = frozenset({"/healthz", "/readyz"})
_OPEN_TO_ALL = _HEALTH | {"/"}
# Only its own style and script, and requests to this server.
_PAGE_MAY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_DATASETS = "/v1/datasets/"
_RESOURCE = re.compile(r"(?P<dataset>.+?)(/partitions/(?P<partition>[^/]*))?")


_log = structlog.get_logger("flight_server.lanes.http.listener")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class HttpOptions:
    """How the HTTP lane listens. ``names``: of this server, beside its addresses."""

    names: Sequence[str]
    token: str | None
    stall_seconds: float
    keepalive_seconds: float


class HttpServer:
    """The listener and its handlers."""

    def __init__(
        self,
        reads: Reads,
        puts: PutReceiver,
        observed: reports.Observed,
        running: Running,
        options: HttpOptions,
    ) -> None:
        self._reads = reads
        self._puts = puts
        self._observed = observed
        self._running = running
        self._options = options
        self._catalogue = observed.catalogue
        self._page = resources.files(__package__).joinpath("dashboard.html").read_text("utf-8")
        self._metrics = metrics.Metrics(observed)
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._runner: Runner | None = None
        # Connections that have sent a request, and when each other one was first seen.
        self._asked: set[object] = set()
        self._silent_since: dict[object, float] = {}
        self._newcomers = Turns(both_ends=True)
        self._doorkeeper = Doorkeeper(options.names, observed.background, any_name=options.token is not None)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen; returns the port. Raises OSError: the address cannot be bound."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/v1/datasets", self._list)
        app.router.add_get(_DATASETS + "{rest:.+}", self._read)
        app.router.add_post(PUT_PATH, self._put)
        app.router.add_post(HOLD_PATH, self._hold)
        app.router.add_get("/v1/statistics", self._statistics)
        app.router.add_get("/v1/why", self._why)
        app.router.add_get("/metrics", self._scrape)
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/", self._dashboard)
        listener = self._listener(host, port, tls)
        self._runner = Runner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=IDLE_CONNECTION_SECONDS,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listener, ssl_context=tls, backlog=BACKLOG).start()
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Close every connection, after ``Running`` has ended the calls on them. Twice is fine."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def end_silent(self) -> None:
        """Close the connections that have sent no whole request head within ``stall_seconds``; aiohttp has no deadline
        for the first.
        """
        now = asyncio.get_running_loop().time()
        server = None if self._runner is None else self._runner.server
        connections = [] if server is None else server.connections
        self._asked.intersection_update(connections)
        self._silent_since = {
            each: self._silent_since.get(each, now) for each in connections if each not in self._asked
        }
        for connection in connections:
            since = self._silent_since.get(connection)
            if since is not None and now - since >= self._options.stall_seconds:
                connection.force_close()

    def _listener(self, host: str, port: int, tls: ssl.SSLContext | None) -> socket.socket:
        listener = bind(host, port, option="--http-port")
        try:
            # Connections inherit these; aiohttp turns keepalive on.
            seconds = int(self._options.keepalive_seconds)
            interval = max(1, seconds // KEEPALIVE_PROBES)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, seconds))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
            unsent_bytes = FIRST_UNSENT_BYTES if tls is None else UNSENT_BYTES  # see outlet
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._asked.add(request.protocol)
        try:
            async with self._running.call():
                if request.path not in _HEALTH:
                    await self._doorkeeper.check(request)
                if request.path not in _OPEN_TO_ALL:
                    authorize(self._options.token, request.headers.get("authorization"))
                return await handler(request)
        except FlightShuffleError as error:
            return _answer(request, error)
        except web.HTTPMethodNotAllowed as error:
            return refusal(
                InvalidRequest(
                    f"only GET and HEAD are served here: write with Arrow Flight, or POST to {PUT_PATH}"
                ),
                error,
            )
        except web.HTTPException as error:
            return refusal(NotFound(f"there is nothing at {request.path}; see /v1/datasets"), error)
        except ConnectionError:
            return web.Response()  # the client has left
        except Exception as bug:  # noqa: BLE001  # the text of an unknown exception must not go on the wire
            error_id = secrets.token_hex(6)
            _log.error("internal_error", error_id=error_id, path=request.path, exc_info=bug)
            return _answer(
                request,
                InternalError(
                    f"internal error {error_id}: the server's log has the cause under this id",
                    error_id=error_id,
                ),
            )

    async def _read(self, request: web.Request) -> web.StreamResponse:
        # From the raw path: a slash that is escaped belongs to the name.
        found = _RESOURCE.fullmatch(request.rel_url.raw_path.removeprefix(_DATASETS))
        if found is None:
            raise InvalidRequest("the path has no dataset's name")
        name = check_dataset_name(unquote(found["dataset"]))
        index: int | None = None
        catalogue, peer = self._catalogue, _peer(request)
        query = query_of(
            request,
            "generation",
            "from",
            "until",
            "reader",
            "as_of",
            "after",
            "follow",
            "partitions",
            "start",
        )
        versions = versions_of(query)
        wanted: BulkRead | BulkVersionRead
        generation, start = query.get("generation"), frame_number(query, "from") or 0
        if found["partition"] is not None:
            index = parse_partition(found["partition"])
            whole = f"{name}/partitions/{found['partition']}"
            name, index = one_meaning(catalogue, whole, name, index, generation)
        dataset = catalogue.find(name, generation, query.get("start"))
        listed = listed_partitions(query, dataset, index)
        if index is not None:
            dataset.partition(index)
        until = frame_number(query, "until")
        read = self._puts.kinds[dataset.kind].read(dataset, versions, until)
        if read is not None:
            wanted = BulkVersionRead(self._reads, dataset, read, peer)
        else:
            of_one = {"until", "reader"} if listed is not None else {"from", "until", "reader"}
            if index is None and not query.keys().isdisjoint(of_one):
                raise InvalidRequest("'from', 'until' and 'reader' go with one partition: …/partitions/0")
            check_range(start, until)
            reader = check_attempt(query["reader"], "reader") if "reader" in query else None
            wanted = BulkRead(self._reads, dataset, index, start, peer, reader, until, listed)
        dataset.touch()
        if request.method == "HEAD":
            wanted.check()
            return ArrowStream(await wanted.headers())
        catalogue.check_open()
        await self._newcomers.take(NEWCOMER_BYTES)
        return await wanted.answer(request)

    async def _put(self, request: web.Request) -> web.StreamResponse:
        self._catalogue.check_open()
        return await Intake(self._puts, request, self._scratch, _peer(request)).receive()

    async def _hold(self, request: web.Request) -> web.StreamResponse:
        return _json(await answer_hold(request, self._puts.kinds.actions[HOLD], self._options.stall_seconds))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        query = query_of(request, "prefix", "first", "limit")
        prefix = query.pop("prefix", "")
        return _json(await reports.datasets(self._observed, prefix, reports.Page.of_query(query, "datasets")))

    async def _statistics(self, request: web.Request) -> web.StreamResponse:
        page = reports.Page.of_query(query_of(request, "dataset", "first", "limit"), "statistics")
        return _json(await reports.statistics(self._observed, page))

    async def _why(self, request: web.Request) -> web.StreamResponse:
        page = reports.Page.of_query(query_of(request, "dataset", "first", "limit"), "why")
        return _json(await reports.why(self._observed, page))

    async def _scrape(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=await self._metrics.render(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _alive(self, _: web.Request) -> web.StreamResponse:
        return _json({"alive": True})

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        draining = self._catalogue.draining
        return _json({"ready": not draining, "draining": draining}, status=503 if draining else 200)

    async def _dashboard(self, _: web.Request) -> web.StreamResponse:
        return web.Response(
            text=self._page, content_type="text/html", headers={"Content-Security-Policy": _PAGE_MAY}
        )


def _peer(request: web.Request) -> str:
    """The client's address, as gRPC writes it."""
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    if not name:
        return "unknown"
    return f"ipv6:[{name[0]}]:{name[1]}" if ":" in name[0] else f"ipv4:{name[0]}:{name[1]}"


def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        body=dump_json(body),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def _answer(request: web.Request, error: FlightShuffleError) -> web.StreamResponse:
    """The error in the protocol of this connection: HTTP, or the one that it was upgraded to."""
    speaks = None if request.transport is None else request.transport.get_protocol()
    return speaks.refuse(error) if isinstance(speaks, Intake) else refusal(error)
