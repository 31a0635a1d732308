"""The options of a client: said once, checked by their types, and given to what has them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from flight_server.config import Settings
from flight_server.protocol import SIZE_SETTINGS, InvalidRequest
from spark_client import ShuffleClient
from spark_client.connection import Reading, Timeouts, Writing
from spark_client.hosts import Copies
from spark_client.settings import (
    CREDENTIALS,
    LEASE_SECONDS,
    ClientOptions,
    ServerSettings,
    StartingOptions,
    apart,
    of_calls,
    of_values,
)

ANY_SESSION: Any = None


def test_the_docstring_of_the_client_lists_each_option_once() -> None:
    text = str(ShuffleClient.__doc__)
    names = re.findall(r"^        ([a-z_, ]+):", text[text.index("Args:") :], re.MULTILINE)
    listed = [name for each in names for name in each.split(", ")]
    assert listed[0] == "location"
    assert sorted(listed[1:]) == sorted(ClientOptions.__optional_keys__)


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"timeouts": 3}, "the option timeouts is Timeouts or None, not int"),
        ({"token": b"secret"}, "the option token is str or Path or None, not bytes"),
        ({"copies": "/dev/shm"}, "the option copies is Copies or None, not str"),
        ({"lease_seconds": "90s"}, "the option lease_seconds is float or None, not str"),
    ],
)
def test_an_option_of_another_type_is_named_without_its_value(options: dict[str, Any], answer: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ShuffleClient("grpc://127.0.0.1:1", **options)
    assert refused.value.message == f"ShuffleClient(): {answer}"
    with pytest.raises(InvalidRequest, match=re.escape(f"ShuffleClient.getOrCreate(): {answer}")):
        ShuffleClient.getOrCreate(ANY_SESSION, **options)
    if "token" not in options:
        with pytest.raises(InvalidRequest, match=re.escape(f"ShuffleClient.embedded(): {answer}")):
            ShuffleClient.embedded(**options)
        with pytest.raises(InvalidRequest, match=re.escape(f"ShuffleClient.in_executors(): {answer}")):
            ShuffleClient.in_executors(ANY_SESSION, **options)


@pytest.mark.parametrize("kind", [Reading, Writing])
def test_a_lane_that_there_is_not_is_named(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="lane is 'auto', 'grpc' or 'bulk', not 'http'"):
        kind(lane="http")


def test_none_stands_for_the_default_and_a_whole_number_for_seconds() -> None:
    nothing: Any = dict.fromkeys(ClientOptions.__optional_keys__)
    with ShuffleClient("grpc://127.0.0.1:1", **nothing) as client, ShuffleClient(client.location) as plain:
        assert client._server.options == plain._server.options
        assert (client._copies, client._lease_seconds) == (Copies(), LEASE_SECONDS)
    with ShuffleClient("grpc://127.0.0.1:1", lease_seconds=7) as client:
        assert client._lease_seconds == 7


def test_a_client_that_starts_servers_leaves_them_their_settings_and_the_token() -> None:
    own, settings = apart("f()", {"reading": Reading(), "lease_seconds": 9.0, "token": "t", "port": 1})
    assert own == {"reading": Reading(), "lease_seconds": 9.0}
    assert settings == {"token": "t", "port": 1}
    assert of_calls(own) == {"reading": Reading()}


def test_texts_change_single_fields_of_the_options_below_them() -> None:
    base = of_values({"token": "t", "tries": 2}, {"timeouts": Timeouts(call_seconds=5.0)})
    assert base == {"token": "t", "timeouts": Timeouts(call_seconds=5.0, tries=2)}
    over = of_values({"token_file": Path("/run/token"), "budget_bytes": 1, "lane": "grpc"}, base)
    assert over["token"] == Path("/run/token")
    assert (over["timeouts"], over["reading"]) == (base["timeouts"], Reading("grpc", 1))
    assert over["writing"] is not None
    assert over["writing"].lane == "grpc"


def started(*_: object, **__: object) -> None:
    raise AssertionError("a process was started")


@pytest.mark.parametrize("name", SIZE_SETTINGS)
def test_a_size_of_an_embedded_server_is_checked_before_it_starts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", started)
    options: dict[str, Any] = {name: "1g"}
    with pytest.raises(AssertionError, match="started"):
        ShuffleClient.embedded(**options)
    for wrong in ("1x", "lots", -1, 1.5):
        options[name] = wrong
        with pytest.raises(
            InvalidRequest, match=rf"embedded\(\): the option {name}: .* is no size: .* as 1g"
        ):
            ShuffleClient.embedded(**options)


def test_the_servers_settings_are_known_to_the_client() -> None:
    assert {*Settings.model_fields} - {"lease_seconds"} == {*ServerSettings.__optional_keys__} - {"config"}
    own = {*ClientOptions.__optional_keys__} - {*CREDENTIALS}
    assert {*StartingOptions.__optional_keys__} == {*ServerSettings.__optional_keys__} | own


def test_the_servers_settings_that_are_sizes_are_known() -> None:
    sizes = {name for name, field in Settings.model_fields.items() if "ByteSize" in str(field.annotation)}
    assert sizes == {*SIZE_SETTINGS}


def test_a_size_of_the_client_is_a_number_or_a_text() -> None:
    text: Any = "256m"
    assert Reading(budget_bytes=text) == Reading(budget_bytes=256 << 20)
    assert Copies(limit_bytes=text).limit_bytes == 256 << 20
    for make in (
        lambda: Reading(gathered_bytes=cast("Any", "much")),
        lambda: Copies(limit_bytes=cast("Any", 0.5)),
    ):
        with pytest.raises(InvalidRequest, match=r"_bytes: .* is no size"):
            make()
