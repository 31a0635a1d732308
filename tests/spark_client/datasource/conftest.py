"""Datasets that leave nothing behind, and the context of a task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from spark_client import ShuffleClient
from tests.support.polling import eventually


@pytest.fixture
def client(client: ShuffleClient) -> Iterator[ShuffleClient]:
    yield client
    for info in client.datasets():
        client.drop(info.name)
    statistics = client.statistics
    eventually(lambda: (statistics()["staged"]["count"], statistics()["memory"]["used_bytes"]), (0, 0))


@pytest.fixture
def task() -> Iterator[TaskContext]:
    """As in a Spark task: partition 0, attempt 7 of no query."""
    context = TaskContext._getOrCreate()
    context._partitionId, context._taskAttemptId, context._localProperties = 0, 7, {}
    yield context
    TaskContext._taskContext = None
