"""Valid puts with bytes and messages changed at random: what the server accepts, pyarrow's client reads whole.

pyarrow's client ends a read silently at a message that it cannot decode. So each accepted put is read by it and
by a raw client, and compared: exactly the accepted frames, or an error.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from flight_server.protocol import AS_STORED, BATCHES_HEADER
from tests.support.raw_flight import RawFlight, Refused, path, put_messages
from tests.support.server_process import ServerProcess

PLAIN = pa.record_batch({"n": np.arange(50), "s": [f"row {n}" for n in range(50)], "b": [True, None] * 25})
NESTED = pa.record_batch(
    {
        "l": pa.array([[1, 2], None, []] * 10),
        "m": pa.array([[("k", 1)], [], None] * 10, pa.map_(pa.string(), pa.int32())),
        "t": pa.array([{"x": 1, "y": ["a"]}, None, {"x": None, "y": None}] * 10),
        "u": pa.UnionArray.from_dense(
            pa.array([0, 1, 0] * 10, pa.int8()),
            pa.array([n // 3 * 2 + n % 3 // 2 if n % 3 != 1 else n // 3 for n in range(30)], pa.int32()),
            [pa.array(range(20)), pa.array(["x"] * 10)],
        ),
        "v": pa.array(["a long enough text for a buffer of its own", "short", None] * 10, pa.string_view()),
        "r": pa.RunEndEncodedArray.from_arrays(pa.array([10, 30], pa.int32()), pa.array(["a", "b"])),
    }
)
WORDS = [
    pa.record_batch({"w": pa.array(words).dictionary_encode(), "n": pa.array(range(len(words)))})
    for words in (["a", "b", "a"], ["a", "b", None, "c"], ["x", "y"])
]
PUTS: dict[str, list[bytes]] = {
    "plain": put_messages(path("fuzz"), [PLAIN] * 3),
    "nested": put_messages(path("fuzz"), [NESTED] * 2),
    "dictionaries": put_messages(path("fuzz"), WORDS),
    "deltas": put_messages(path("fuzz"), WORDS, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)),
    "zstd": put_messages(path("fuzz"), [PLAIN] * 2, options=pa.ipc.IpcWriteOptions(compression="zstd")),
    "lz4": put_messages(path("fuzz"), [NESTED] * 2, options=pa.ipc.IpcWriteOptions(compression="lz4")),
}


@st.composite
def changed_puts(draw: st.DrawFn) -> list[bytes]:
    """A put with one to four changes, each in one message or of the order of messages."""
    messages = list(draw(st.sampled_from(sorted(PUTS.items())))[1])
    for _ in range(draw(st.integers(1, 4))):
        if not messages:
            break
        at = draw(st.integers(0, len(messages) - 1))
        messages[at : at + 1] = draw(changes(messages, at))
    return messages


@st.composite
def changes(draw: st.DrawFn, messages: list[bytes], at: int) -> list[bytes]:
    """What becomes of one message."""
    message = bytearray(messages[at])
    # Headers stand in front and are what decides; bodies are long.
    end = draw(st.sampled_from([min(len(message), 40), min(len(message), 400), len(message)]))
    place = draw(st.integers(0, max(0, end - 1)))
    kind = draw(
        st.sampled_from(["flip", "flip", "flip", "set", "cut", "insert", "delete", "twice", "drop", "other"])
    )
    if kind == "flip" and message:
        message[place] ^= 1 << draw(st.integers(0, 7))
    elif kind == "set":
        size = draw(st.sampled_from([1, 2, 4, 8]))
        message[place : place + size] = draw(st.binary(min_size=size, max_size=size))
    elif kind == "cut":
        del message[place:]
    elif kind == "insert":
        message[place:place] = draw(st.binary(min_size=1, max_size=9))
    elif kind == "delete":
        del message[place : place + draw(st.integers(1, 9))]
    elif kind == "twice":
        return [bytes(message)] * 2
    elif kind == "drop":
        return []
    elif kind == "other":
        return [messages[draw(st.integers(0, len(messages) - 1))]]
    return [bytes(message)]


AS_STORED_FRAMES = flight.FlightCallOptions(headers=[(BATCHES_HEADER.encode(), AS_STORED.encode())])


@pytest.fixture(scope="module")
def connection(server: ServerProcess) -> Iterator[tuple[RawFlight, flight.FlightClient]]:
    """A raw connection and pyarrow's own."""
    with RawFlight(server.location) as raw, flight.connect(server.location) as client:
        yield raw, client


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(messages=changed_puts())
def test_what_is_accepted_is_read_whole_and_the_rest_is_an_error(
    server: ServerProcess, connection: tuple[RawFlight, flight.FlightClient], messages: list[bytes]
) -> None:
    raw, client = connection
    names_before = set(raw.action("statistics")["datasets"])
    try:
        raw.put(messages)
        refused = None
    except Refused as error:
        refused = error
    assert server.returncode is None, server.tail()
    datasets = raw.action("statistics")["datasets"]
    try:
        for name in datasets.keys() - names_before:  # a changed descriptor may have named another one
            (state,) = datasets[name]["partition_states"]
            if refused is not None:
                assert refused.detail["error"] != "internal", server.tail()
                assert state == "failed"
                with pytest.raises((flight.FlightError, pa.ArrowException)):
                    client.do_get(flight.Ticket(name.encode())).read_all()
                continue
            assert state == "sealed"
            batches = list(client.do_get(flight.Ticket(name.encode()), AS_STORED_FRAMES))
            assert [len(batches), sum(each.data.num_rows for each in batches)] == [
                datasets[name]["frames"],
                datasets[name]["rows"],
            ]
            for batch in batches:
                batch.data.validate(full=True)
            stored = raw.get(name.encode())
            assert [message for message in messages if message in stored[1:]] != [] or not batches
            assert len(stored) >= 1 + len(batches)
    finally:
        for name in datasets.keys() - names_before:
            raw.action("drop", {"dataset": name})
