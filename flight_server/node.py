"""Node: makes the parts of one server and connects them; ``server`` starts them.

Each part knows only parts that are made above it, and gets settings as plain values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from flight_server.access import Authenticator, Principal
from flight_server.certificates import Certificates
from flight_server.concurrency import Background, LoopLag, Running, Waits
from flight_server.config import Settings
from flight_server.datasets import Catalogue, Counters
from flight_server.kinds import Kinds, ShuffleKind, StreamKind
from flight_server.kinds.changelog import ChangelogKind
from flight_server.kinds.source import Pulling, SourceKind
from flight_server.lanes.grpc import Actions, FlightService, PendingReads
from flight_server.lanes.http import HttpOptions, HttpServer
from flight_server.memory import Budget
from flight_server.protocol import Kind, Unauthenticated
from flight_server.reporting import Calls, Fellows, History, Locations, Observed
from flight_server.storage import Disk
from flight_server.tiering import Admission, Durability, Spiller
from flight_server.tracing import configured
from flight_server.transfer import (
    AnswerRoom,
    Arriving,
    Delivery,
    Eviction,
    Offloads,
    PutReceiver,
    Reads,
    message_limit_bytes,
)


def new_catalogue(settings: Settings) -> Catalogue:
    """An empty catalogue with pools and a disk of its own."""
    disk_limit = settings.disk_limit
    budget = Budget(int(settings.memory_limit), None if disk_limit is None else int(disk_limit))
    return Catalogue(
        budget,
        Disk(budget.disk, segment_bytes=int(settings.segment_size)),
        lease_seconds=settings.lease_seconds,
        max_datasets=settings.max_datasets,
    )


def _log_error(event: str, **facts: object) -> None:
    # The logger is asked for at each event: logging may be configured after the node is made.
    structlog.get_logger("flight_server.concurrency.background").error(event, **facts)


class Node:
    """The parts of one server. Raises TokenFileRefused: see :class:`Authenticator`; ValueError: see
    :class:`Certificates`.
    """

    def __init__(self, settings: Settings, catalogue: Catalogue | None = None) -> None:
        self.catalogue = new_catalogue(settings) if catalogue is None else catalogue
        self.budget = budget = self.catalogue.budget
        self.max_message_bytes = int(settings.max_message or budget.max_message_bytes)
        self.max_schema_bytes = int(settings.max_schema or budget.max_schema_bytes)
        self.catalogue.schemas.max_bytes = self.max_schema_bytes
        self.locations = Locations()
        self.waits = Waits()
        self.counters = Counters()
        self.background = Background(_log_error)
        self.running = Running()
        self.calls = Calls(self.running, self.counters, configured("flight-server"))
        self.loop_lag = LoopLag()
        self.authenticator = Authenticator(settings.token, settings.token_file)
        self.authenticator.on_reload = self._end_calls_of
        self.authenticator.on_refusal = partial(self.counters.reload_failed, "tokens")
        self.certificates = None if settings.tls_cert is None else Certificates(settings)
        if self.certificates is not None:
            self.certificates.on_refusal = partial(self.counters.reload_failed, "tls")
        self.spiller = Spiller(self.catalogue)
        self.admission = Admission(
            budget, self.waits, self.spiller, deadline_seconds=settings.budget_deadline_seconds
        )
        self.durability = Durability(
            self.catalogue, self.waits, self.spiller, deadline_seconds=settings.budget_deadline_seconds
        )
        self.arriving = Arriving(
            budget.memory, message_limit_bytes(self.max_message_bytes, self.max_schema_bytes)
        )
        self.pending_reads = PendingReads(self.arriving, settings.stall_seconds)
        self.delivery = Delivery(self.waits, self.counters, stall_seconds=settings.stall_seconds)
        self.eviction = Eviction(budget, self.delivery, self.spiller)
        reads = partial(
            Reads,
            self.catalogue,
            self.waits,
            schema_seconds=settings.schema_seconds,
            resume_seconds=settings.resume_seconds,
        )
        self.reads = reads(self.delivery, self.counters)
        unseen = Counters()  # its reads are none of clients
        self.offloads = Offloads(
            settings.offload_to,
            reads(Delivery(self.waits, unseen, stall_seconds=settings.stall_seconds), unseen),
            self.catalogue.disk,
            self.counters,
            deadline_seconds=settings.budget_deadline_seconds,
        )
        self.changelogs = ChangelogKind(
            self.catalogue,
            self.background,
            self.waits,
            admission=self.admission,
            deadline_seconds=settings.budget_deadline_seconds,
            max_lag_seconds=settings.hold_lag_seconds,
            max_message_bytes=self.max_message_bytes,
        )
        self.pulling = Pulling(
            self.admission,
            self.background,
            self.counters,
            budget,
            failure_seconds=settings.source_failure_seconds,
            idle_seconds=settings.put_idle_seconds or None,
            roots=settings.source_roots,
            s3=settings.source_s3,
            flight=settings.source_flight,
            max_message_bytes=self.max_message_bytes,
            full_validation=settings.full_validation,
            keepalive_seconds=settings.keepalive_seconds,
        )
        self.kinds = Kinds(
            {
                Kind.STREAM: StreamKind(self.durability),
                Kind.SHUFFLE: ShuffleKind(self.durability, lambda: self.locations.known),
                Kind.SOURCE: SourceKind(self.catalogue, self.pulling),
                Kind.CHANGELOG: self.changelogs,
            }
        )
        self.puts = PutReceiver(
            self.admission,
            self.kinds,
            self.catalogue,
            self.counters,
            AnswerRoom(budget.answers, self.waits, self.delivery, settings.budget_deadline_seconds),
            arriving=self.arriving,
            max_message_bytes=self.max_message_bytes,
            max_schema_bytes=self.max_schema_bytes,
            full_validation=settings.full_validation,
            idle_seconds=settings.put_idle_seconds or None,
            stall_seconds=settings.stall_seconds,
        )
        self.history = History(self.catalogue, self.counters, self.spiller, self.waits)
        self.observed = Observed(
            self.catalogue,
            self.waits,
            self.spiller,
            self.background,
            self.counters,
            self.delivery,
            self.kinds,
            Fellows(self.catalogue, self.locations, self.history),
            self.running,
            self.loop_lag,
            self.history,
            self.authenticator,
            self.certificates,
        )
        self.drain_requested = asyncio.Event()
        self.actions = Actions(
            self.observed,
            self.locations,
            self.offloads,
            self.reads.loading,
            drain_requested=self.drain_requested,
            drain_grace_seconds=settings.drain_grace_seconds,
        )
        self._settings = settings

    def _end_calls_of(self, lost: Callable[[Principal], bool]) -> None:
        why = Unauthenticated(
            "the server's --token-file has changed: this principal has lost a permission, or is gone"
        )
        self.running.end_of(lost, why)

    def flight_service(self) -> FlightService:
        return FlightService(
            self.reads,
            self.puts,
            self.actions,
            self.locations,
            self.calls,
            authenticator=self.authenticator,
            pending=self.pending_reads,
            joins=self._settings.full_validation,
        )

    def http_server(self) -> HttpServer:
        settings = self._settings
        names = (settings.host, settings.advertise_host, *settings.allowed_hosts)
        options = HttpOptions(
            names=[name for name in names if name],
            authenticator=self.authenticator,
            stall_seconds=settings.stall_seconds,
            keepalive_seconds=settings.keepalive_seconds,
            client_certificates=settings.tls_client_ca is not None,
        )
        return HttpServer(self.reads, self.puts, self.observed, self.calls, options)
