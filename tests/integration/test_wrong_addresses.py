"""A server that sends its clients to another one, by a wrong ``--advertise-host``, or to none: errors name both
addresses and the setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from spark_client import BrokenStream, InvalidRequest, Reading, ShuffleClient, Timeouts, Unreachable, Writing
from spark_client.connection import RemoteServer
from spark_client.jobs import Shuffles
from spark_client.servers import Holder, HolderKind
from tests.support.server_process import ServerProcess

TABLE = pa.table({"n": range(1000)})
SENT_ELSEWHERE = (
    r"^http://127\.0\.0\.2:{port}\S* is another server than {server}, .* the right --advertise-host$"
)
NOWHERE = r"\(.*http://nowhere\.invalid:\d+, where {server} sends its clients by its --advertise-host"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """Beside another one at 127.0.0.2, whose ports are its own, so that its advertised addresses are the other's."""
    with ExitStack() as others:
        while True:
            other = others.enter_context(ServerProcess.start(host="127.0.0.2", insecure=True))
            ports = [urlsplit(address).port for address in (other.location, other.http or "")]
            try:
                server = ServerProcess.start(port=ports[0], http_port=ports[1], advertise_host="127.0.0.2")
            except RuntimeError as error:
                # Ports that are free at one address may be taken at the next one.
                if "is in use by another process" not in str(error):
                    raise
            else:
                break
        with server:
            yield server


@pytest.fixture
def location(server: ServerProcess) -> str:
    """Where the clients ask it."""
    return server.location.replace("127.0.0.2", "127.0.0.1")


def sent_elsewhere(location: str, server: ServerProcess) -> str:
    return SENT_ELSEWHERE.format(server=location, port=urlsplit(server.http or "").port)


@pytest.mark.parametrize("lane", ["auto", "bulk"])
def test_a_read_at_another_server_s_address_says_so(lane: Any, location: str, server: ServerProcess) -> None:
    with ShuffleClient(location, reading=Reading(lane=lane), writing=Writing(lane="grpc")) as client:
        client.put(f"read-{lane}", TABLE)
        with pytest.raises(InvalidRequest, match=sent_elsewhere(location, server)) as refused:
            client.get(f"read-{lane}").read_all()
        assert refused.value.detail["server"] == location
    with ShuffleClient(location, reading=Reading(lane="grpc")) as client:
        assert client.get(f"read-{lane}").read_all() == TABLE


def test_a_put_that_another_server_has_taken_is_an_error(location: str, server: ServerProcess) -> None:
    with (
        ShuffleClient(location) as client,
        pytest.raises(InvalidRequest, match=sent_elsewhere(location, server)),
    ):
        client.put("put", TABLE)


def test_a_driver_whose_rows_went_to_another_server_says_so_and_writes_them_no_more(
    location: str, server: ServerProcess
) -> None:
    shuffles = Shuffles(RemoteServer(location), 60.0)
    try:
        with pytest.raises(InvalidRequest, match=f"is another server than {location}, .* --advertise-host"):
            shuffles.write_table("driver", TABLE, Holder(HolderKind.RUN))
    finally:
        shuffles.close()


def test_a_server_that_was_started_again_is_no_other_one() -> None:
    with ServerProcess.start() as server, ShuffleClient(server.location) as client:
        client.put("before", TABLE)
        with server.restart():
            client.put("after", TABLE)
            assert client.get("after").read_all() == TABLE


def test_an_address_that_leads_nowhere_is_named_with_the_server_that_gives_it() -> None:
    with ServerProcess.start(advertise_host="nowhere.invalid") as server:
        location = server.location.replace("nowhere.invalid", "127.0.0.1")
        named = NOWHERE.format(server=location)
        with ShuffleClient(location) as client:
            client.put("d", TABLE)
            assert client.get("d").read_all() == TABLE  # over gRPC
        reading, writing = Reading(lane="bulk"), Writing(lane="bulk")
        with ShuffleClient(location, timeouts=Timeouts(tries=1), reading=reading, writing=writing) as client:
            with pytest.raises(BrokenStream, match=named):
                client.get("d").read_all()
            with pytest.raises(Unreachable, match=named):
                client.put("e", TABLE)
