"""Names by which a server without a token may be asked."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import make_mocked_request

from flight_server.access import Doorkeeper, browsers
from flight_server.concurrency import Background
from flight_server.protocol import Forbidden


@pytest.fixture
async def background() -> AsyncIterator[Background]:
    made = Background(print)
    yield made
    await made.stop()


async def test_a_domain_that_no_name_server_told_is_asked_for_again(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "machine")
    names = ["machine", "machine", "machine.example.org"]
    monkeypatch.setattr(socket, "getfqdn", lambda: names.pop(0))
    keeper = Doorkeeper((), background, any_name=False)
    request = make_mocked_request("GET", "/v1/datasets", headers={"Host": "machine.example.org"})
    for _ in range(2):
        with pytest.raises(Forbidden, match="is no name of this server"):
            await keeper.check(request)
    assert len(names) == 2, "not with each request"
    monkeypatch.setattr(browsers, "ASK_AGAIN_SECONDS", 0.0)
    keeper._asks_domain_at = 0.0
    with pytest.raises(Forbidden):
        await keeper.check(request)
    await keeper.check(request)
    await keeper.check(request)
    assert names == []
