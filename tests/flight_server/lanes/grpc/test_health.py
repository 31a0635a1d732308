"""The health service's library, which is imported for the first call."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from flight_server.lanes.grpc import health
from flight_server.lanes.grpc.health import Health


class NoRequests:
    """Pending reads of calls that ask for the server as a whole."""

    async def request(self, _: Any) -> bytes:
        return b""


async def test_a_library_that_could_not_be_imported_is_imported_for_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pending: Any = NoRequests()
    checked = Health("service", pending)
    imported = health._imported

    def without_descriptors() -> tuple[ModuleType, ModuleType]:
        raise OSError("too many open files")

    monkeypatch.setattr(health, "_imported", without_descriptors)
    with pytest.raises(OSError, match="too many"):
        await checked._checked("Check", pending, None)
    monkeypatch.setattr(health, "_imported", imported)
    answer = await checked._checked("Check", pending, None)
    assert answer.status == answer.SERVING
