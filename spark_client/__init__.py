"""The client for the Spark driver and its Python tasks. Importing it loads neither gRPC nor PySpark nor the server."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from spark_client.broadcast import Broadcast
    from spark_client.changelogs import Changelog, latest, pair, top_k, until_closed
    from spark_client.client import ShuffleClient
    from spark_client.connection import Reading, Timeouts, Writing
    from spark_client.dataset_calls import DatasetInfo
    from spark_client.datasource import FlightDataSource
    from spark_client.hosts import Copies
    from spark_client.pipeline import Pipeline

_HOMES = {
    "Broadcast": "spark_client.broadcast.broadcasts",
    "Changelog": "spark_client.changelogs.changelog_handle",
    "Copies": "spark_client.hosts.host_files",
    "DatasetInfo": "spark_client.dataset_calls",
    "FlightDataSource": "spark_client.datasource.flight_source",
    "Pipeline": "spark_client.pipeline.plan",
    "ShuffleClient": "spark_client.client",
    "Reading": "spark_client.connection.stream_options",
    "Timeouts": "spark_client.connection.stream_options",
    "Writing": "spark_client.connection.stream_options",
    "latest": "spark_client.changelogs.declared_rules",
    "pair": "spark_client.changelogs.declared_rules",
    "top_k": "spark_client.changelogs.declared_rules",
    "until_closed": "spark_client.changelogs.declared_rules",
}

__all__ = [
    "Broadcast",
    "Changelog",
    "Copies",
    "DatasetInfo",
    "FlightDataSource",
    "Pipeline",
    "Reading",
    "ShuffleClient",
    "Timeouts",
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
    return sorted({*globals(), *__all__})
