"""What Python shows of a mistake: the caller's line and the message, in at most 15 lines."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from flight_server.protocol import Conflict, NotFound
from spark_client import (
    AlreadyExists,
    FlightShuffleError,
    InvalidRequest,
    ShuffleClient,
    Timeouts,
    Unauthenticated,
    Unreachable,
    latest,
)
from spark_client.connection import short_traces
from spark_client.connection.traces import short_trace
from spark_client.datasource.stream_read import FlightStreamReader
from spark_client.datasource.writers import FlightStreamWriter
from spark_client.pyspark_parts import interrupts_kept
from tests.support.server_process import ServerProcess

MOST_LINES = 15
TABLE = pa.table({"id": [1, 2, 3]})
NOWHERE = "grpc://127.0.0.1:1"


def trace_of(call: Callable[[], Any]) -> tuple[BaseException, str]:
    """The error of the call, and what Python would print of it."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - each is looked at
        return error, traceback.format_exc()
    raise AssertionError("it raised nothing")


def without_server(call: Callable[[ShuffleClient], Any]) -> Callable[[ShuffleClient], None]:
    def with_another(_: ShuffleClient) -> None:
        with ShuffleClient(NOWHERE) as client:
            call(client)

    return with_another


def closed(client: ShuffleClient) -> None:
    client.close()
    client.get("d")


MISTAKES: dict[str, tuple[type[FlightShuffleError], Callable[[ShuffleClient], Any]]] = {
    "a taken name": (AlreadyExists, lambda client: client.put("taken", TABLE)),
    "an absent dataset": (NotFound, lambda client: client.get("no")),
    "an absent changelog": (NotFound, lambda client: client.changelog("no")),
    "an absent dataset that is dropped": (NotFound, lambda client: client.drop("no")),
    "an illegal name": (InvalidRequest, lambda client: client.put("a//b", TABLE)),
    "no data": (InvalidRequest, lambda client: client.put("new", 7)),
    "no server": (Unreachable, without_server(lambda client: client.get("d"))),
    "no server for a put": (Unreachable, without_server(lambda client: client.put("d", TABLE))),
    "no server for a broadcast": (Unreachable, without_server(lambda client: client.broadcast(TABLE))),
    "no address": (InvalidRequest, lambda _: ShuffleClient("127.0.0.1")),
    "an option of another type": (InvalidRequest, lambda _: ShuffleClient(NOWHERE, timeouts=3)),  # type: ignore[arg-type]
    "a keep rule without its key": (
        InvalidRequest,
        lambda client: client.changelog("new", TABLE.schema, keep=latest()),
    ),
    "a closed client": (InvalidRequest, closed),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_shown_in_a_few_lines_without_frames_of_the_package(
    mistake: str, empty_server: ServerProcess
) -> None:
    kind, call = MISTAKES[mistake]
    with ShuffleClient(empty_server.location) as client:
        client.put("taken", TABLE)
        error, text = trace_of(lambda: call(client))
    assert type(error) is kind
    assert len(text.splitlines()) <= MOST_LINES, text
    assert text.count("Traceback") == 1
    assert inside(text) == []


def inside(text: str) -> list[str]:
    """The frames of the package in a trace, but for the last."""
    frames = [line for line in text.splitlines() if line.startswith('  File "')]
    ours = [line for line in frames if "/spark_client/" in line and "/tests/" not in line]
    return [line for line in ours if "traces.py" not in line]


class NoStaging:
    """It has nothing to seal, and no changelog."""

    def make_changelog(self) -> None:
        pass

    def seal(self, *_: Any) -> None:
        raise Conflict("an earlier batch is lost") from ValueError("of the server")


def test_a_mistake_in_a_part_of_the_data_source_has_no_frames_of_the_package_either() -> None:
    ref: Any = SimpleNamespace(dataset="d", generation="g")
    no_staging: Any = NoStaging()
    stream = FlightStreamReader(ref, cast(Any, None))
    for call in (
        partial(stream.latestOffset, {"generation": "another", "partitions": 3}),
        partial(FlightStreamWriter(no_staging, False).commit, [], 0),
    ):
        _, text = trace_of(call)
        assert text.count("Traceback") == 1
        assert inside(text) == []


def test_a_time_that_is_no_number_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="Timeouts: call_seconds is a number, not 'soon'"):
        Timeouts(call_seconds="soon")  # type: ignore[arg-type]


def test_a_mistake_in_asyncio_has_no_frames_of_the_package_either(empty_server: ServerProcess) -> None:
    async def absent(client: ShuffleClient) -> None:
        await client.aget("no")

    with ShuffleClient(empty_server.location) as client:
        error, text = trace_of(lambda: asyncio.run(absent(client)))
    assert type(error) is NotFound
    assert text.count("Traceback") == 1
    assert inside(text) == []


@pytest.mark.parametrize("token", [None, "another"])
def test_no_or_a_wrong_token_is_shown_in_a_few_lines(
    token: str | None, flight_server_process: Callable[..., ServerProcess]
) -> None:
    server = flight_server_process(token="the-right-one")
    with ShuffleClient(server.location, token=token) as client:
        for call in (lambda: client.get("d"), lambda: client.put("d", TABLE), client.datasets):
            error, text = trace_of(call)
            assert type(error) is Unauthenticated
            assert len(text.splitlines()) <= MOST_LINES, text
            assert server.location in str(error)
            assert "--token-file" in str(error)


def test_what_an_error_was_made_of_stays_for_programs_and_the_log(
    empty_server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        ShuffleClient(empty_server.location) as client,
        caplog.at_level(logging.DEBUG, "spark_client.traces"),
    ):
        error, _ = trace_of(lambda: client.get("no"))
    assert isinstance(error.__context__, NotFound)
    assert error.__cause__ is None
    assert "in flight_info" in caplog.text


def test_an_error_of_a_function_of_the_callers_keeps_its_frames(empty_server: ServerProcess) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        raise InvalidRequest("of the caller's own")

    with ShuffleClient(empty_server.location) as client:
        _, text = trace_of(lambda: client.put("d", batches()))
    assert "in batches" in text
    assert "put_stream" not in text


def test_a_ctrl_c_is_shown_without_the_errors_that_hid_it() -> None:
    @short_trace
    def public() -> None:
        with interrupts_kept():
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                raise RuntimeError("an error while sending")  # noqa: B904  # as Py4J

    error, text = trace_of(public)
    assert type(error) is KeyboardInterrupt
    assert text.count("Traceback") == 1, text
    assert len(text.splitlines()) <= MOST_LINES, text


def test_a_bug_keeps_its_whole_trace() -> None:
    @short_trace
    def public() -> None:
        inner()

    def inner() -> None:
        raise RuntimeError("a bug")

    _, text = trace_of(public)
    assert "in inner" in text


def test_the_methods_of_a_class_keep_their_signatures_and_kinds() -> None:
    @short_traces
    class Plain:
        def method(self, one: int, *, two: str = "2") -> str:
            """Its docstring."""
            return f"{one}{two}{self._inside()}"

        @classmethod
        def made(cls) -> Plain:
            return cls()

        @staticmethod
        def fixed() -> int:
            return 1

        same = method

        @property
        def place(self) -> str:
            """Another docstring."""
            raise InvalidRequest("it has none")

        def _inside(self) -> str:
            return "inside"

    assert Plain.made().method(1, two="x") == "1xinside"
    assert Plain.fixed() == 1
    assert Plain.same is Plain.method
    assert Plain.place.__doc__ == "Another docstring."
    _, text = trace_of(lambda: Plain().place)
    assert "raise _shortened" in text
    assert str(inspect.signature(Plain.method)) == "(self, one: 'int', *, two: 'str' = '2') -> 'str'"
    assert Plain.method.__doc__ == "Its docstring."
    assert not hasattr(Plain._inside, "__wrapped__")
