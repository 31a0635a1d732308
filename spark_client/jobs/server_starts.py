"""The code of tasks that start the servers of their executors, for exchanges that need several from the beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_client.connection import RemoteServer
from spark_client.executors import ExecutorServers

from .task_reports import text_array

STARTED_DDL = "location string, start string"


@dataclass(frozen=True)
class StartTask:
    """Yields a row for each of its executor's servers. ``server``: its options are those of the call."""

    server: RemoteServer
    executors: ExecutorServers

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Raises as :meth:`ExecutorServers.here`."""
        for _ in batches:
            for location in self.executors.here().locations:
                start = self.server.at(location).action("locations")["start"]
                yield pa.RecordBatch.from_arrays(
                    [text_array(location), text_array(start)], names=["location", "start"]
                )
