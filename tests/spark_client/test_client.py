"""put, get and their async twins against a real server process."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol.errors import (
    AlreadyExists,
    InvalidRequest,
    NotFound,
    PartitionFailed,
    Unauthenticated,
)
from spark_client import Reading, ShuffleClient, Unreachable, Writing
from spark_client.connection import RemoteServer
from spark_client.lanes import put_stream
from spark_client.lanes.put_stream import open_writing
from tests.support.server_process import ServerProcess

TABLE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", None, "c"]})


@pytest.mark.parametrize(
    "data",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_reader(max_chunksize=1),
        TABLE.to_batches(max_chunksize=1),
        iter(TABLE.to_batches(max_chunksize=2)),
    ],
    ids=["table", "batch", "reader", "list", "iterator"],
)
def test_everything_that_has_batches_can_be_put(client: ShuffleClient, data: Any) -> None:
    client.put("d", data)
    assert client.get("d").read_all().combine_chunks().equals(TABLE)


@pytest.mark.parametrize(
    ("data", "name"),
    [([], "an empty iterable"), (7, "int"), ([TABLE], "Table"), (None, "NoneType")],
    ids=["empty list", "number", "list of tables", "None"],
)
def test_what_cannot_be_put_is_named(client: ShuffleClient, data: Any, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"cannot put {name}[,:]"):
        client.put("d", data)
    assert client.datasets() == []


@pytest.mark.parametrize("name", ["tokens", "embedded", "memory_limit"])
def test_an_argument_that_a_client_does_not_have_is_named(name: str) -> None:
    arguments: dict[str, Any] = {name: True}
    with pytest.raises(TypeError, match=rf"ShuffleClient\(\) got an unexpected keyword argument '{name}'"):
        ShuffleClient("grpc://127.0.0.1:1", **arguments)
    session: Any = None
    with pytest.raises(TypeError, match=rf"ShuffleClient.getOrCreate\(\) got an unexpected .* '{name}'"):
        ShuffleClient.getOrCreate(session, **arguments)


def test_an_error_of_the_callers_own_iterable_is_raised_as_it_is(client: ShuffleClient) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from (pa.record_batch({"x": 1 + value}) for value in ["a"])  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        client.put("d", batches())
    assert client.datasets() == []


def test_a_producer_that_fails_leaves_an_error_and_never_a_short_dataset(client: ShuffleClient) -> None:
    def failing() -> Iterator[Any]:
        yield TABLE.to_batches()[0]
        raise RuntimeError("the disk of the producer broke")

    with pytest.raises(RuntimeError, match="the disk of the producer broke"):
        client.put("d", failing())
    with pytest.raises(PartitionFailed, match=r"without its commit|its producer broke off"):
        client.get("d").read_all()
    client.put("d", TABLE)
    assert client.get("d").read_all().equals(TABLE)


def test_datasets_are_listed_by_prefix_and_dropped_by_name(client: ShuffleClient) -> None:
    client.put("a/one", TABLE)
    client.put("b", TABLE)
    (found,) = client.datasets("a/")
    assert (found.name, found.rows, found.partitions, found.schema) == ("a/one", 3, 1, TABLE.schema)
    assert found.size_bytes > 0
    client.drop("a/one")
    assert [each.name for each in client.datasets()] == ["b"]
    with pytest.raises(NotFound, match="a/one"):
        client.drop("a/one")


@pytest.mark.parametrize("name", ["", "/a", "a..b", "ä", "x" * 201])
def test_an_illegal_name_is_refused_before_anything_is_sent(name: str) -> None:
    with ShuffleClient("grpc://127.0.0.1:1") as nowhere:
        for call in (lambda: nowhere.put(name, TABLE), lambda: nowhere.get(name), lambda: nowhere.drop(name)):
            with pytest.raises(InvalidRequest, match="is not a dataset name"):
                call()


async def test_the_async_twins_put_and_get(client: ShuffleClient) -> None:
    async def batches() -> AsyncIterator[Any]:
        for batch in TABLE.to_batches(max_chunksize=1):
            yield batch

    assert await client.aput("from-async", batches()) == 3
    assert await client.aput("from-sync", TABLE) == 3
    for name in ("from-async", "from-sync"):
        async with await client.aget(name) as stream:
            assert await stream.schema() == TABLE.schema
            found = [batch async for batch in stream]
        assert pa.Table.from_batches(found).combine_chunks().equals(TABLE)


async def test_aput_of_no_batches_needs_a_schema(client: ShuffleClient) -> None:
    async def nothing() -> AsyncIterator[Any]:
        return
        yield

    with pytest.raises(InvalidRequest, match="cannot put NoneType"):
        await client.aput("d", nothing())
    assert await client.aput("d", TABLE.slice(0, 0)) == 0


async def test_a_cancelled_aput_leaves_an_error_and_never_a_short_dataset(client: ShuffleClient) -> None:
    waiting = asyncio.Event()

    async def endless() -> AsyncIterator[Any]:
        yield TABLE.to_batches()[0]
        waiting.set()
        await asyncio.Event().wait()

    putting = asyncio.create_task(client.aput("d", endless()))
    await asyncio.wait_for(waiting.wait(), 30)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    with pytest.raises(PartitionFailed):
        await asyncio.to_thread(lambda: client.get("d").read_all())


async def test_an_aput_that_is_cancelled_while_it_opens_leaves_no_stream_open(
    client: ShuffleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may_go_on = threading.Event(), threading.Event()
    opened: list[Any] = []

    def gated(*arguments: Any, **options: Any) -> Any:
        opening.set()
        assert may_go_on.wait(30)
        opened.append(
            open_writing(*arguments, **options)
        )  # referred to, so that only the client's own care ends it
        return opened[-1]

    monkeypatch.setattr(put_stream, "open_writing", gated)
    putting = asyncio.create_task(client.aput("d", TABLE))
    assert await asyncio.to_thread(opening.wait, 30)
    for _ in range(2):
        putting.cancel()
        await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert len(opened) == 1
    with pytest.raises(PartitionFailed):
        await asyncio.to_thread(lambda: client.get("d").read_all())


async def test_the_error_of_a_call_that_an_aput_was_cancelled_in_is_not_logged(
    client: ShuffleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, cancelled, logged = threading.Event(), threading.Event(), list[dict[str, Any]]()

    def cut_off(*_: Any) -> None:
        writing.set()
        assert cancelled.wait(30)
        raise Unreachable("the put was cancelled")

    monkeypatch.setattr(put_stream.PutStream, "write", cut_off)
    monkeypatch.setattr(put_stream.PutStream, "cancel", lambda _: cancelled.set())
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    putting = asyncio.create_task(client.aput("d", TABLE))
    assert await asyncio.to_thread(writing.wait, 30)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    del putting
    await asyncio.sleep(0)  # the step in which a call ends refers to it
    await asyncio.to_thread(gc.collect)
    assert logged == []


def test_the_token_is_sent_and_a_wrong_one_is_an_error(
    flight_server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = flight_server_process(http_port=0, token="secret")
    file = tmp_path / "token"
    file.write_text("secret\n")
    for token, reading, writing in (
        ("secret", Reading(), Writing()),
        (file, Reading("bulk"), Writing("bulk")),
        (file, Reading("grpc"), Writing("grpc")),
    ):
        with ShuffleClient(server.location, token=token, reading=reading, writing=writing) as client:
            client.put("d", TABLE, mode="overwrite")
            assert client.get("d").read_all().equals(TABLE)
    with ShuffleClient(server.location, token="wrong") as stranger, pytest.raises(Unauthenticated):
        stranger.datasets()


def test_a_client_does_not_travel_into_tasks() -> None:
    with (
        ShuffleClient("grpc://127.0.0.1:1") as client,
        pytest.raises(InvalidRequest, match="give the function"),
    ):
        pickle.dumps(client)


def test_closing_twice_is_fine_and_every_call_of_a_closed_client_says_so(client: ShuffleClient) -> None:
    client.close()
    client.close()
    calls: list[Callable[[], Any]] = [
        lambda: client.put("d", TABLE),
        lambda: asyncio.run(client.aput("d", TABLE)),
        lambda: client.get("d"),
        lambda: asyncio.run(client.aget("d")),
        lambda: client.drop("d"),
        client.datasets,
        client.statistics,
        client.why,
        lambda: client.broadcast(TABLE),
        lambda: client.pipeline(TABLE),
        lambda: client.ship(TABLE),
        lambda: client.release(TABLE),
        client.__enter__,
    ]
    for call in calls:
        with pytest.raises(InvalidRequest, match="this ShuffleClient is closed; make a new one"):
            call()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("localhost:8815", "grpc://localhost:8815"),
        ("localhost", "grpc://localhost:8815"),
        ("http://flight:8816", "grpc://flight:8815"),
        ("grpc://flight", "grpc://flight:8815"),
        ("", "grpc://host:8815"),
        (8815, "grpc://host:8815"),
    ],
)
def test_an_address_without_its_scheme_or_port_is_answered_with_the_right_form(
    given: Any, meant: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"no address of a server: write '{meant}'"):
        ShuffleClient(given)


@pytest.mark.parametrize(
    "location",
    ["grpc://h:1", "grpc+tcp://h:1", "grpc+tls://h.example:1/", "grpc://[::1]:1", "grpc+unix:///s"],
)
def test_an_address_of_every_form_is_taken(location: str) -> None:
    ShuffleClient(location).close()


def test_what_the_server_says_of_flight_and_json_is_said_of_python(client: ShuffleClient) -> None:
    client.put("d", TABLE)
    with pytest.raises(AlreadyExists, match=r"put\('d', \.\.\., mode='overwrite'\)") as exists:
        client.put("d", TABLE)
    assert '{"mode": "overwrite"}' in str(exists.value.__context__)
    assert exists.value.detail["dataset"] == "d"
    for call in (lambda: client.get("no"), lambda: client.drop("no")):
        with pytest.raises(NotFound, match=r"no dataset 'no': .* datasets\(\) lists") as missing:
            call()
        assert "list_flights" not in str(missing.value)
    with pytest.raises(InvalidRequest, match=r"mode is 'create', .* 'overwrite', .* not 'append'"):
        client.put("d", TABLE, mode=cast("Any", "append"))


def test_a_read_after_a_restart_is_told_of_the_restart(
    flight_server_process: Callable[..., ServerProcess],
) -> None:
    before = flight_server_process(http_port=0)
    port, http_port = (int(str(place).rpartition(":")[2]) for place in (before.location, before.http))
    with ShuffleClient(before.location) as client:
        shared = client.broadcast(TABLE, "countries")
        client.put("d", TABLE)
        ticket = client._server.flight_info("d").endpoints[0].ticket.ticket
        before.kill()
        flight_server_process(http_port=http_port, port=port)
        with pytest.raises(NotFound, match=r"'d' is not here: .* at 20.* server was restarted"):
            flight_read(client.location, ticket)
        with pytest.raises(NotFound, match=r"'d': it was never .* lost when the server was started, at 20"):
            client.get("d")
        with pytest.raises(NotFound, match="'countries' is gone: its server was restarted"):
            shared.table()
        client.put("d", TABLE)
        with pytest.raises(
            NotFound, match=r"of dataset 'd', which is not .* lost when the server was restarted"
        ):
            flight_read(client.location, ticket)


def flight_read(location: str, ticket: bytes) -> Any:
    server = RemoteServer(location)
    try:
        with server.calling() as (raw, call), call.errors():
            return raw.do_get(flight.Ticket(ticket)).read_all()
    finally:
        server.close()
