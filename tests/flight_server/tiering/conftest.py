"""The node of the tests of seals and overwrites."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from flight_server.node import Node
from tests.support.sealing import durable_node


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """With durable datasets."""
    async with durable_node(tmp_path) as node:
        yield node
