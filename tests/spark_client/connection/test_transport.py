"""One server's connections and calls: translated errors, no connection before the first call, all closed at the end."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_server.protocol.errors import (
    ERROR_TRAILER,
    FlightShuffleError,
    Forbidden,
    InvalidRequest,
    NotFound,
    OutOfBudget,
    Unauthenticated,
    Unavailable,
)
from spark_client.connection import Call, RemoteServer, TimedOut, Timeouts, Unreachable
from spark_client.connection.calls import translate
from tests.support.proxy import Proxy


def called(error: BaseException, trailer: str = "") -> FlightShuffleError:
    return translate(error, Call("grpc://h:1", {ERROR_TRAILER: trailer} if trailer else {}))


def test_the_servers_json_decides_the_class_whatever_pyarrow_made_of_it() -> None:
    json_text = OutOfBudget("the disk is full", disk_limit_bytes=7).to_json()
    error = called(flight.FlightInternalError("noise. gRPC client debug context: x"), json_text)
    assert type(error) is OutOfBudget
    assert error.message == "the disk is full"
    assert error.detail == {"disk_limit_bytes": 7}


def test_extra_info_is_read_where_there_is_no_trailer() -> None:
    info = OutOfBudget("full").to_json().encode()
    assert type(called(flight.FlightUnavailableError("noise", info))) is OutOfBudget


@pytest.mark.parametrize("trailer", ["not JSON", "[]", "{}"])
def test_a_trailer_that_is_not_ours_is_ignored(trailer: str) -> None:
    assert type(called(flight.FlightUnavailableError("gone"), trailer)) is Unreachable


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (flight.FlightUnavailableError("x"), Unreachable),
        (flight.FlightInternalError("Stream removed"), Unreachable),
        (flight.FlightCancelledError("x"), Unreachable),
        (flight.FlightTimedOutError("x"), TimedOut),
        (
            OSError("Flight returned timeout error, with message: Deadline Exceeded. Detail: TimedOut"),
            TimedOut,
        ),
        (ConnectionResetError("x"), Unreachable),
        (flight.FlightUnauthenticatedError("x"), Unauthenticated),
        (flight.FlightUnauthorizedError("x"), Forbidden),
        (pa.ArrowKeyError("x"), NotFound),
        (pa.ArrowInvalid("x"), InvalidRequest),
        (pa.ArrowNotImplementedError("x"), InvalidRequest),
    ],
)
def test_without_the_servers_json_pyarrows_class_decides(
    error: BaseException, kind: type[FlightShuffleError]
) -> None:
    assert type(called(error)) is kind


def test_only_the_sentence_is_shown_and_where_it_came_from() -> None:
    error = called(
        flight.FlightUnavailableError(
            "Flight returned unavailable error, with message: down for repair. gRPC client debug context: "
            "UNAVAILABLE:{...}. Client context: IOError: Server never sent a data message. Detail: Internal"
        )
    )
    assert error.message == "the connection failed: down for repair (grpc://h:1)"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_refused_connection_is_an_error_that_names_the_address() -> None:
    with Proxy("127.0.0.1", 1) as gone:
        location = gone.location
    server = RemoteServer(location)
    remedy = "start `flight-server` there, or look with `flight-shuffle doctor`"
    with pytest.raises(Unreachable, match=rf"^no server answers at {location}: {remedy} \(.* refused\)$"):
        server.action("why")
    server.close()


def test_an_error_about_a_token_names_the_server_and_where_each_client_has_it() -> None:
    text = Unauthenticated(
        "this server wants a token: send the header 'authorization: Bearer <token>'"
    ).to_json()
    error = called(pa.ArrowException("x"), text)
    assert type(error) is Unauthenticated
    assert error.message.startswith("grpc://h:1: this server wants a token: send the header 'authorization: ")
    assert {"token=,", "spark.flight.shuffle.tokenFile,", "--token-file"} < {*error.message.split()}
    assert error.detail["server"] == "grpc://h:1"
    text = Unauthenticated("this server wants a client certificate: present one over TLS").to_json()
    error = called(pa.ArrowException("x"), text)
    assert error.message == "grpc://h:1: this server wants a client certificate: present one over TLS"


def test_a_peer_that_never_answers_is_an_error_at_the_calls_deadline(silent_port: int) -> None:
    server = RemoteServer(f"grpc://127.0.0.1:{silent_port}", timeouts=Timeouts(call_seconds=0.2))
    with pytest.raises(Unavailable):
        server.flight_info("d")
    server.close()


def test_asking_why_never_raises(silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timeouts, "why_seconds", 0.2)
    server = RemoteServer(f"grpc://127.0.0.1:{silent_port}", timeouts=Timeouts())
    assert "nothing" in server.why("d")
    server.close()


def test_a_server_is_shared_for_equal_arguments_and_comes_back_from_pickle() -> None:
    given = RemoteServer("grpc://h:1", token="t", timeouts=Timeouts(call_seconds=3))
    server = pickle.loads(pickle.dumps(given))
    again = pickle.loads(pickle.dumps(server))
    assert again is server
    assert again.at("grpc://h:1") is again
    other = again.at("grpc://other:2")
    assert (other.location, other.token, other.timeouts) == ("grpc://other:2", "t", Timeouts(call_seconds=3))


def test_the_servers_of_other_addresses_are_a_clients_own_and_are_closed_with_it() -> None:
    server = RemoteServer("grpc://h:1", token="t")
    other = server.at("grpc://other:2")
    assert other.token == "t"
    assert other.at("grpc://h:1") is server
    assert server.at("grpc://other:2") is other
    third = other.at("grpc://third:3")
    assert server.at("grpc://third:3") is third
    assert not third.patient
    stranger = RemoteServer("grpc://h:1", token="t")
    assert stranger.at("grpc://other:2") is not other
    closed: list[str] = []
    for each in (server, other, third):
        each.attached("thing", partial(SimpleNamespace, close=partial(closed.append, each.location)))
    server.close()
    assert sorted(closed) == ["grpc://h:1", "grpc://other:2", "grpc://third:3"]
    assert server.at("grpc://other:2") is not other


def test_a_token_in_a_file_is_read_where_it_is_used_and_is_not_in_a_pickle(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("geheim-1\n")
    server = RemoteServer("grpc://127.0.0.1:1", token=file)
    pickled = pickle.dumps(server)
    assert b"geheim" not in pickled
    there: RemoteServer = pickle.loads(pickled)
    assert there.token == "geheim-1"
    file.write_text("geheim-2")
    assert there.token == "geheim-2"
    for text, answer in (("", "is empty"), (None, "in the driver and in every task: .*No such file")):
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(Unauthenticated, match=answer) as refused:
            there.action("statistics")
        assert str(file) in refused.value.message


def test_the_token_is_never_shown() -> None:
    assert "secret" not in repr(RemoteServer("grpc://h:1", token="secret"))
