"""The HTTP listener.

    GET  /v1/datasets/{dataset}/partitions/{i}?generation=…&from=…    one partition      (``bulk_get``);
                                                                      reader=… (``places``)
    GET  /v1/datasets/{dataset}?generation=…                          all its partitions (``bulk_get``), or
                                                                      partitions=3,7&from=…
    HEAD of both                                                      generation, sealed, totals
    POST /v1/put                                                      takes a put        (``bulk_put``)
    POST /v1/hold                                                     as the action, for the page
    GET  /v1/datasets?prefix=…                                        the datasets       (``reports``)
    GET  /v1/statistics?dataset=…, /v1/why?dataset=…                  as the actions of the same names; these
                                                                      three in pages: first=…&limit=…
    GET  /v1/rows?dataset=…&generation=…                              its columns and first rows (``first_rows``)
    GET  /v1/history                                                  traffic, pools and waits over the last minutes
    GET  /metrics                                                     Prometheus
    GET  /healthz, /readyz                                            alive; 503 while draining
    POST /login, /logout                                              a browser's session        (``logins``)
    GET  /, /page/…                                                   a page that shows the reports  (``dashboard``)

Names
    A dataset's name stands in the path as it is. A slash may be ``%2F``. A path to a dataset whose own name ends in
    ``/partitions/<number>`` has one meaning with it, see ``datasets.callers``.

Errors
    Before the first byte of a stream: a status (see ``connections``) and the error's JSON. After it the connection is
    cut, and a client that asks again gets the error; an upgraded put gets it on its own connection. A bug answers only
    an id, as on the gRPC lane.

Access
    ``browsers`` says which requests of web pages are refused, ``operations`` the right that each request needs,
    ``authenticator`` and ``logins`` how it carries a token. The health URLs need no client certificate either.

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
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aiohttp import web

from flight_server.access import (
    ANONYMOUS,
    AUTHORIZATION,
    OPERATIONS,
    SECOND_AUTHORIZATION,
    Authenticator,
    Doorkeeper,
    Operation,
    Principal,
    Resource,
    open_stream,
)
from flight_server.concurrency import Turns
from flight_server.datasets import Caller
from flight_server.memory import Pace
from flight_server.protocol import (
    ALL,
    HOLD,
    PUT_PATH,
    FlightShuffleError,
    InvalidRequest,
    NotFound,
    Ticket,
    Unauthenticated,
    check_dataset_name,
    parse_partition,
    with_numbers,
)
from flight_server.reporting import (
    Calls,
    ListedPage,
    Observed,
    Page,
    ServedCall,
    datasets_answer,
    first_rows_answer,
    statistics_answer,
    why_answer,
)
from flight_server.tiering import Reader
from flight_server.transfer import PutReceiver, Reads

from .bulk_get import ArrowStream, BulkRead, BulkVersionRead
from .bulk_put import READ_BYTES, Intake
from .connections import Runner, disconnect_left, refusal
from .dashboard import PAGE_PATH, Dashboard
from .json_answers import json_answer, peer_of, send_report, small_body
from .listening import bind
from .logins import LOGIN_PATH, LOGOUT_PATH, Logins
from .outlet import FIRST_UNSENT_BYTES, UNSENT_BYTES

if TYPE_CHECKING:
    from flight_server.reporting.metrics import Metrics

BACKLOG = 1024
HOLD_PATH = "/v1/hold"
IDLE_CONNECTION_SECONDS = 75.0
SHUTDOWN_SECONDS = 1.0
NEWCOMER_BYTES = 512 << 10
"""Of a turn: two reads begin in one pass of the event loop. To begin one takes about as long as to send 1 MiB, so
readers that have begun keep a good part of the loop while a crowd comes."""
KEEPALIVE_PROBES = 3

_HEALTH = frozenset({"/healthz", "/readyz"})
_ELSEWHERE = Operation("a path that is none", None, Resource.NOTHING)
_DATASETS = "/v1/datasets/"
_RESOURCE = re.compile(r"(?P<dataset>.+?)(/partitions/(?P<partition>[^/]*))?")
_NUMBERS = ("from", "until", "as_of", "after")
_TEXTS = ("generation", "reader", "follow", "partitions", "start")


# Newer versions of aiohttp warn of keys that are plain texts, and older ones have no others.
_CALL: Any = getattr(web, "RequestKey", lambda name, _: name)("call", ServedCall)

Handler = Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class HttpOptions:
    """How the HTTP lane listens. ``names``: of this server, beside its addresses."""

    names: Sequence[str]
    authenticator: Authenticator
    stall_seconds: float
    keepalive_seconds: float
    client_certificates: bool


class HttpServer:
    """The listener and its handlers."""

    def __init__(
        self,
        reads: Reads,
        puts: PutReceiver,
        observed: Observed,
        calls: Calls,
        options: HttpOptions,
    ) -> None:
        self._reads = reads
        self._puts = puts
        self._observed = observed
        self._calls = calls
        self._options = options
        self._catalogue = observed.catalogue
        self._dashboard = Dashboard()
        self._logins = Logins(options.authenticator, options.stall_seconds)
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._runner: Runner | None = None
        self._secure = False
        # Connections that have sent a request, and when each other one was first seen.
        self._requesters: set[object] = set()
        self._silent_since: dict[object, float] = {}
        self._newcomers = Turns(both_ends=True)
        self._routes: dict[Any, tuple[Operation, Handler]] = {}
        self._doorkeeper = Doorkeeper(
            options.names, observed.background, any_name=options.authenticator.wants_token
        )

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen; returns the port. Raises OSError: the address cannot be bound."""
        app = web.Application(middlewares=[self._guard])
        handlers: dict[str, Handler] = {
            "GET /v1/datasets": self._list,
            f"GET {_DATASETS}{{rest:.+}}": self._read,
            f"POST {PUT_PATH}": self._put,
            f"POST {HOLD_PATH}": self._hold,
            "GET /v1/statistics": self._statistics,
            "GET /v1/why": self._why,
            "GET /v1/rows": self._rows,
            "GET /v1/history": self._history,
            "GET /metrics": self._scrape,
            "GET /healthz": self._alive,
            "GET /readyz": self._ready,
            f"POST {LOGIN_PATH}": self._logins.log_in,
            f"POST {LOGOUT_PATH}": self._logins.log_out,
            "GET /": self._dashboard.home,
            f"GET {PAGE_PATH}": self._dashboard.file,
        }
        for call, handler in handlers.items():
            method, _, path = call.partition(" ")
            add: Any = app.router.add_get if method == "GET" else app.router.add_post  # GET serves HEAD, too
            add(path, handler)
            self._routes[handler] = OPERATIONS[call], handler
        listener = self._listener(host, port, tls)
        self._secure = tls is not None
        self._runner = Runner(
            app,
            self._calls,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=IDLE_CONNECTION_SECONDS,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listener, ssl_context=tls, backlog=BACKLOG).start()
        bound = int(listener.getsockname()[1])
        self._logins.listen_at(bound, secure=tls is not None)
        return bound

    async def stop(self) -> None:
        """Close every connection, after ``Running`` has ended the calls on them. Twice is fine."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def end_silent(self) -> None:
        """Close the connections that have sent no whole request head within ``stall_seconds``, for which aiohttp has no
        deadline, and see ``connections``, "Ended inputs".
        """
        now = asyncio.get_running_loop().time()
        server = None if self._runner is None else self._runner.server
        connections: list[Any] = [] if server is None else server.connections
        if self._secure:
            disconnect_left(connections)
        self._requesters.intersection_update(connections)
        self._silent_since = {
            each: self._silent_since.get(each, now) for each in connections if each not in self._requesters
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
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._requesters.add(request.protocol)
        resource = request.match_info.route.resource
        where = "" if resource is None else f" {resource.canonical}"
        call = request[_CALL] = ServedCall("http", request.method + where, peer_of(request))
        self._calls.begin(call, request.headers.get)
        try:
            operation, served = self._routes.get(request.match_info.handler, (_ELSEWHERE, None))
            if request.path not in _HEALTH:
                if self._options.client_certificates and not request.get_extra_info("peercert"):
                    raise Unauthenticated("this server wants a client certificate: present one over TLS")
                await self._doorkeeper.check(request)
            principal = ANONYMOUS if operation.is_open else self._principal(request)
            call.principal = principal.name
            async with self._calls.running.call(principal):
                with self._catalogue.usages.calls_of(principal):
                    caller = Caller(self._catalogue, principal, operation, call.peer)
                    return await (handler(request) if served is None else served(request, caller))
        except web.HTTPMethodNotAllowed as error:
            wrong = InvalidRequest(
                f"only GET and HEAD are served here: write with Arrow Flight, or POST to {PUT_PATH}"
            )
            return refusal(self._calls.failed(call, wrong), error)
        except web.HTTPException as error:
            nothing = NotFound(f"there is nothing at {request.path}; see /v1/datasets")
            return refusal(self._calls.failed(call, nothing), error)
        except ConnectionError:
            self._calls.left(call)
            return web.Response()  # the client has left
        except asyncio.CancelledError:
            self._calls.left(call)
            raise
        except Exception as error:  # noqa: BLE001  # the text of an unknown exception must not go on the wire
            return _answer(request, self._calls.failed(call, error))
        finally:
            self._calls.ended(call)

    def _principal(self, request: web.Request) -> Principal:
        """Raises as :meth:`Authenticator.principal`."""
        second = request.headers.get(SECOND_AUTHORIZATION)
        credentials = request.headers.get(AUTHORIZATION) if second else self._logins.authorization(request)
        return self._options.authenticator.principal(credentials, second)

    async def _read(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        # From the raw path: a slash that is escaped belongs to the name.
        matched = _RESOURCE.fullmatch(request.rel_url.raw_path.removeprefix(_DATASETS))
        if matched is None:
            raise InvalidRequest("the path has no dataset's name")
        name = check_dataset_name(unquote(matched["dataset"]))
        call: ServedCall = request[_CALL]
        call.dataset = name
        ticket = _ticket(request, name, matched["partition"])
        call.partition = ticket.partition
        dataset, index = caller.resolve(ticket)
        read = self._puts.kinds[dataset.kind].read(dataset, ticket.versions, ticket.until)
        pace = Pace(proven=read is None and not request.secure)  # see outlet
        reader = Reader(dataset.name, index, caller.peer, pace, ticket.reader)
        bulk_read: BulkRead | BulkVersionRead
        if read is not None:
            bulk_read = BulkVersionRead(self._reads, dataset, read, reader)
        else:
            bulk_read = BulkRead(self._reads, dataset, ticket, reader)
        dataset.touch()
        if request.method == "HEAD":
            bulk_read.check()
            return ArrowStream(await bulk_read.headers())
        self._catalogue.check_open()
        await self._newcomers.take(NEWCOMER_BYTES)
        with open_stream():
            return await bulk_read.answer(request, call)

    async def _put(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        self._catalogue.check_open()
        intake = Intake(self._puts, request, self._scratch, caller)
        request[_CALL].producer = intake.producer
        return await intake.receive()

    async def _hold(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        body = await small_body(request, self._options.stall_seconds)
        return json_answer(await self._puts.kinds.actions[HOLD](body, caller))

    async def _list(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        query = _query(request, "prefix", "first", "limit")
        prefix = query.pop("prefix", "")
        page = Page.of_query(query, "datasets")
        return await send_report(
            self._puts.answer_room, request, datasets_answer(self._observed, prefix, page, caller)
        )

    async def _statistics(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        query = _query(request, "dataset", "first", "limit", "contains", "order")
        page = ListedPage.of_query(query, "statistics")
        return await send_report(
            self._puts.answer_room, request, statistics_answer(self._observed, page, caller)
        )

    async def _why(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        page = Page.of_query(_query(request, "dataset", "first", "limit"), "why")
        return await send_report(self._puts.answer_room, request, why_answer(self._observed, page, caller))

    async def _rows(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        query = _query(request, "dataset", "generation")
        name = check_dataset_name(query.get("dataset", ""))
        request[_CALL].dataset = name
        dataset = caller.find(name, query.get("generation"))
        answer = first_rows_answer(self._reads, self._puts.kinds, dataset, caller.peer)
        return await send_report(self._puts.answer_room, request, answer)

    async def _history(self, request: web.Request, _: Caller) -> web.StreamResponse:
        _query(request)
        return json_answer(self._observed.history.listed())

    async def _scrape(self, *_: object) -> web.StreamResponse:
        metrics = (await asyncio.to_thread(_metrics))(self._observed)
        return web.Response(body=await metrics.render(), headers={"Content-Type": metrics.content_type})

    async def _alive(self, *_: object) -> web.StreamResponse:
        return json_answer({"alive": True})

    async def _ready(self, *_: object) -> web.StreamResponse:
        draining = self._catalogue.draining
        return json_answer({"ready": not draining, "draining": draining}, status=503 if draining else 200)


def _query(request: web.Request, *known: str) -> dict[str, str]:
    """The query's values. Raises InvalidRequest: an unknown key, or one that comes twice."""
    query = dict(request.query)
    unknown = ", ".join(repr(key) for key in sorted(query.keys() - set(known)))
    if unknown:
        raise InvalidRequest(f"the query has an unknown key {unknown}; known are {', '.join(known)}")
    if len(request.query) != len(query):
        raise InvalidRequest("a key comes twice in the query")
    return query


def _ticket(request: web.Request, dataset: str, partition: str | None) -> Ticket:
    """The ticket that a path with its query is; without a partition it is for all of them. Raises InvalidRequest."""
    query = _query(request, *_NUMBERS, *_TEXTS)
    body: dict[str, Any] = {**with_numbers(query, _NUMBERS), "dataset": dataset}
    if "follow" in query:
        body["follow"] = {"true": True, "false": False}.get(query["follow"], query["follow"])
    if "partitions" in query:
        body["partitions"] = [parse_partition(text) for text in query["partitions"].split(",")]
    elif partition is None and not query.keys().isdisjoint({"from", "until", "reader"}):
        raise InvalidRequest("'from', 'until' and 'reader' go with one partition: …/partitions/0")
    if partition is not None:
        body["partition"] = parse_partition(partition)
    ticket = Ticket.of(body, "the query")
    one = ticket.partition is not None or ticket.versions is not None
    return ticket if one or ticket.partitions is not None else replace(ticket, partitions=ALL)


def _metrics() -> type[Metrics]:
    # Prometheus's library, 4 MiB and up to a tenth of a second, is imported for the first scrape.
    from flight_server.reporting.metrics import Metrics  # noqa: PLC0415  # as said above

    return Metrics


def _answer(request: web.Request, error: FlightShuffleError) -> web.StreamResponse:
    """The error in the protocol of this connection: HTTP, or the one that it was upgraded to."""
    speaks = None if request.transport is None else request.transport.get_protocol()
    return speaks.refuse(error) if isinstance(speaks, Intake) else refusal(error)
