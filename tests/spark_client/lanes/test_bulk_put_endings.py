"""How a put on the bulk lane ends from this side: abandoned, forgotten, interrupted, forked."""

from __future__ import annotations

import signal
import threading

import pyarrow as pa
import pytest

from flight_server.protocol.errors import InvalidRequest
from spark_client.connection import ForkedProcess, RemoteServer
from spark_client.lanes.bulk_put import Duplex
from spark_client.lanes.lane import Closed
from tests.support.forked_child import in_child
from tests.support.put_source import (
    SMALL,
    UPGRADED,
    PutSide,
    PutSource,
    committed,
    opened,
    said,
    write_forever,
)


def test_a_put_that_is_abandoned_ends_its_connection_without_an_end_marker(server: RemoteServer) -> None:
    came: list[bytes] = []

    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        while True:
            came.append(side.message())

    with PutSource(serve) as source:
        with opened(server, source) as stream:
            stream.write(SMALL)
        stream.close()
        with pytest.raises(Closed, match="the put to dataset 'd' has ended"):
            stream.write(SMALL)
    assert len(came) == 2
    assert b"" not in came


def test_a_batch_of_another_schema_ends_the_put(server: RemoteServer) -> None:
    ended = threading.Event()

    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        side.broken_off()
        ended.set()

    with PutSource(serve) as source:
        stream = opened(server, source)
        with pytest.raises(InvalidRequest, match=r"'d' cannot take the batch.*different schema"):
            stream.write(pa.record_batch({"n": ["text"]}))
        assert ended.wait(20)


def test_another_thread_can_end_a_write_that_waits(server: RemoteServer) -> None:
    upgraded = threading.Event()

    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        upgraded.set()
        assert done.wait(20)

    done = threading.Event()
    with PutSource(serve) as source:
        stream = opened(server, source)
        assert upgraded.wait(20)
        timer = threading.Timer(0.3, stream.cancel)
        timer.start()
        with pytest.raises(Closed, match="was cancelled"):
            write_forever(stream)
        done.set()
        timer.join()


def test_a_signal_ends_a_write_that_waits(server: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        assert done.wait(20)
        ends.append(side.broken_off())

    wait = Duplex._wait

    def wait_and_be_interrupted(self: Duplex, events: int, until_seconds: float) -> bool:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return wait(self, events, until_seconds)

    monkeypatch.setattr(Duplex, "_wait", wait_and_be_interrupted)
    done = threading.Event()
    ends: list[bool] = []
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with PutSource(serve) as source:
            stream = opened(server, source)
            with pytest.raises(Interrupted):
                write_forever(stream)
            # Half of a message may have gone: nothing can follow it.
            with pytest.raises(Closed):
                stream.write(SMALL)
            done.set()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ends == [True], "a reset, which a server sees that was reading nothing"


def test_a_forked_child_neither_uses_nor_ends_the_put_of_its_parent(server: RemoteServer) -> None:
    def serve(side: PutSide) -> None:
        side.send(UPGRADED)
        side.messages()
        side.send(committed(20) + said(b"K"))

    with PutSource(serve) as source:
        stream = opened(server, source)
        stream.write(SMALL)

        def child() -> None:
            with pytest.raises(ForkedProcess):
                stream.write(SMALL)
            stream.cancel()
            stream.close()

        in_child(child)
        stream.write(SMALL)
        assert stream.commit()["rows"] == 20
