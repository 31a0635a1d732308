"""The client for the Spark driver and its Python tasks, with all errors that it raises. Importing it loads neither gRPC
nor PySpark nor the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from flight_server.protocol.errors import (
        AlreadyExists,
        BadFrame,
        Compacted,
        Conflict,
        CorruptFrame,
        DamagedMessage,
        DataQuarantined,
        DatasetDropped,
        Draining,
        FlightShuffleError,
        Forbidden,
        InternalError,
        InvalidRequest,
        NotFound,
        OutOfBudget,
        PartitionFailed,
        ProducerFailed,
        ProducerStalled,
        QuotaExceeded,
        QuotaInUse,
        ReaderTooSlow,
        ReadTrouble,
        Released,
        ServerLost,
        SourceUnavailable,
        StaleTicket,
        Unauthenticated,
        Unavailable,
        Unsupported,
    )
    from spark_client.broadcast import Broadcast
    from spark_client.changelogs import Changelog, latest, pair, top_k, until_closed
    from spark_client.client import ShuffleClient
    from spark_client.connection import (
        EmbeddedEnded,
        ForkedProcess,
        NoAnswer,
        Reading,
        TimedOut,
        Timeouts,
        Unreachable,
        Writing,
    )
    from spark_client.dataset_calls import DatasetInfo
    from spark_client.datasource import FlightDataSource, LostWrite
    from spark_client.hosts import Copies
    from spark_client.lanes import BrokenStream, Closed, NoBulkLane, StreamStalled
    from spark_client.pipeline import Pipeline

_HOMES = {
    "AlreadyExists": "flight_server.protocol.errors",
    "BadFrame": "flight_server.protocol.errors",
    "Broadcast": "spark_client.broadcast.broadcasts",
    "BrokenStream": "spark_client.lanes.lane",
    "Changelog": "spark_client.changelogs.changelog_handle",
    "Closed": "spark_client.lanes.lane",
    "Compacted": "flight_server.protocol.errors",
    "Conflict": "flight_server.protocol.errors",
    "Copies": "spark_client.hosts.host_files",
    "CorruptFrame": "flight_server.protocol.errors",
    "DamagedMessage": "flight_server.protocol.errors",
    "DataQuarantined": "flight_server.protocol.errors",
    "DatasetDropped": "flight_server.protocol.errors",
    "DatasetInfo": "spark_client.dataset_calls",
    "Draining": "flight_server.protocol.errors",
    "EmbeddedEnded": "spark_client.connection.calls",
    "FlightDataSource": "spark_client.datasource.flight_source",
    "FlightShuffleError": "flight_server.protocol.errors",
    "Forbidden": "flight_server.protocol.errors",
    "ForkedProcess": "spark_client.connection.calls",
    "InternalError": "flight_server.protocol.errors",
    "InvalidRequest": "flight_server.protocol.errors",
    "LostWrite": "spark_client.datasource.staging",
    "NoAnswer": "spark_client.connection.calls",
    "NoBulkLane": "spark_client.lanes.http",
    "NotFound": "flight_server.protocol.errors",
    "OutOfBudget": "flight_server.protocol.errors",
    "PartitionFailed": "flight_server.protocol.errors",
    "Pipeline": "spark_client.pipeline.plan",
    "ProducerFailed": "flight_server.protocol.errors",
    "ProducerStalled": "flight_server.protocol.errors",
    "QuotaExceeded": "flight_server.protocol.errors",
    "QuotaInUse": "flight_server.protocol.errors",
    "ReadTrouble": "flight_server.protocol.errors",
    "ReaderTooSlow": "flight_server.protocol.errors",
    "Reading": "spark_client.connection.stream_options",
    "Released": "flight_server.protocol.errors",
    "ServerLost": "flight_server.protocol.errors",
    "ShuffleClient": "spark_client.client",
    "SourceUnavailable": "flight_server.protocol.errors",
    "StaleTicket": "flight_server.protocol.errors",
    "StreamStalled": "spark_client.lanes.read_stream",
    "TimedOut": "spark_client.connection.calls",
    "Timeouts": "spark_client.connection.stream_options",
    "Unauthenticated": "flight_server.protocol.errors",
    "Unavailable": "flight_server.protocol.errors",
    "Unreachable": "spark_client.connection.calls",
    "Unsupported": "flight_server.protocol.errors",
    "Writing": "spark_client.connection.stream_options",
    "latest": "spark_client.changelogs.declared_rules",
    "pair": "spark_client.changelogs.declared_rules",
    "top_k": "spark_client.changelogs.declared_rules",
    "until_closed": "spark_client.changelogs.declared_rules",
}

__all__ = [
    "AlreadyExists",
    "BadFrame",
    "Broadcast",
    "BrokenStream",
    "Changelog",
    "Closed",
    "Compacted",
    "Conflict",
    "Copies",
    "CorruptFrame",
    "DamagedMessage",
    "DataQuarantined",
    "DatasetDropped",
    "DatasetInfo",
    "Draining",
    "EmbeddedEnded",
    "FlightDataSource",
    "FlightShuffleError",
    "Forbidden",
    "ForkedProcess",
    "InternalError",
    "InvalidRequest",
    "LostWrite",
    "NoAnswer",
    "NoBulkLane",
    "NotFound",
    "OutOfBudget",
    "PartitionFailed",
    "Pipeline",
    "ProducerFailed",
    "ProducerStalled",
    "QuotaExceeded",
    "QuotaInUse",
    "ReadTrouble",
    "ReaderTooSlow",
    "Reading",
    "Released",
    "ServerLost",
    "ShuffleClient",
    "SourceUnavailable",
    "StaleTicket",
    "StreamStalled",
    "TimedOut",
    "Timeouts",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "Unsupported",
    "Writing",
    "latest",
    "pair",
    "top_k",
    "until_closed",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
