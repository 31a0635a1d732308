"""The client for the Spark driver and its Python tasks, with all errors that it raises. Importing it loads neither gRPC
nor PySpark nor the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

from .version import __version__

if TYPE_CHECKING:
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
    name: f"spark_client.{module}"
    for module, names in {
        "broadcast.broadcasts": ("Broadcast",),
        "changelogs.changelog_handle": ("Changelog",),
        "changelogs.declared_rules": ("latest", "pair", "top_k", "until_closed"),
        "client": ("ShuffleClient",),
        "connection.calls": ("EmbeddedEnded", "ForkedProcess", "NoAnswer", "TimedOut", "Unreachable"),
        "connection.stream_options": ("Reading", "Timeouts", "Writing"),
        "dataset_calls": ("DatasetInfo",),
        "datasource.flight_source": ("FlightDataSource",),
        "datasource.staging": ("LostWrite",),
        "hosts.host_files": ("Copies",),
        "lanes.http": ("NoBulkLane",),
        "lanes.lane": ("BrokenStream", "Closed"),
        "lanes.read_stream": ("StreamStalled",),
        "pipeline.plan": ("Pipeline",),
    }.items()
    for name in names
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
