"""Commands against a server without datasets."""

from __future__ import annotations

import pytest

from tests.support.commands import Command
from tests.support.server_process import ServerProcess


@pytest.fixture
def command(empty_server: ServerProcess, capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    return Command(empty_server.location, capfdbinary)
