"""A node that reads files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.support.file_sources import Served
from tests.support.nodes import running_node


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    root = tmp_path / "root"
    root.mkdir()
    async with running_node(tmp_path, source_roots=[root], source_failure_seconds=0) as node:
        yield Served(node, root)
