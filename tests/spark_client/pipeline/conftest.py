"""A client for plans alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_client import ShuffleClient


@pytest.fixture
def client() -> Iterator[ShuffleClient]:
    # No server listens there: a plan that asked it would fail.
    with ShuffleClient("grpc://127.0.0.1:1") as connected:
        yield connected
