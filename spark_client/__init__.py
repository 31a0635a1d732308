"""What runs in the Spark driver and inside its Python tasks: exchanges, broadcasts, put and get.

Importing this imports neither gRPC nor PySpark nor the server: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_client.broadcast import Broadcast
    from spark_client.client import DatasetInfo, ShuffleClient
    from spark_client.exchange import Pipeline
    from spark_client.host_files import Copies
    from spark_client.transport import Reading, Timeouts, Writing

_HOMES = {
    "Broadcast": "spark_client.broadcast",
    "Copies": "spark_client.host_files",
    "DatasetInfo": "spark_client.client",
    "Pipeline": "spark_client.exchange",
    "ShuffleClient": "spark_client.client",
    "Reading": "spark_client.transport",
    "Timeouts": "spark_client.transport",
    "Writing": "spark_client.transport",
}

__all__ = [
    "Broadcast",
    "Copies",
    "DatasetInfo",
    "Pipeline",
    "Reading",
    "ShuffleClient",
    "Timeouts",
    "Writing",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
