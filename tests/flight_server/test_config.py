"""Settings: units, what follows from what, and which source counts. The command line is in ``test_cli``."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from flight_server import config
from flight_server.memory.accounts import MIN_MEMORY_LIMIT_BYTES


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("FLIGHT_SERVER_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64MiB", 64 << 20),
        ("64MB", 64_000_000),
        ("1g", 1 << 30),
        ("512M", 512 << 20),
        ("64Mi", 64 << 20),
        ("0.5t", 1 << 39),
        ("1GiB", 1 << 30),
        ("1.5GB", 1_500_000_000),
        (" 70 mib ", 70 << 20),
        ("0.1TiB", (1 << 40) // 10),
        ("99999999B", 99_999_999),
        ("99999999", 99_999_999),
        (123 << 20, 123 << 20),
    ],
)
def test_sizes_are_texts_with_units_or_bytes(text: str | int, size_bytes: int) -> None:
    assert config.load({"memory_limit": text}).memory_limit == size_bytes


NO_SIZES = [
    *("64MiBx", "10 MB foo", "64MiB;", "64 MiB MiB", "64MiB\n1", "64Mib it", "64Mbit", "64iB", "64i", "64mm"),
    *("0x4000000", "1_000_000_000", "1e9", "+64MiB", "٦٤MiB", ".5GiB", "1.GiB", "9" * 5000, 1e9, True, [1]),
]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("memory_limit", value) for value in NO_SIZES),
        *((name, "64x") for name in ("disk_limit", "segment_size", "max_message")),
    ],
)
def test_what_is_more_or_less_than_a_size_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match="is no size") as caught:
        config.load({name: value})
    (sentence,) = config.explained(caught.value)
    assert sentence.startswith(f"--{name.replace('_', '-')}: ")
    assert len(sentence) < 160


@pytest.mark.parametrize("text", ["", "64", "-1GiB", "1e400", MIN_MEMORY_LIMIT_BYTES - 1])
def test_a_size_that_is_none_or_too_small_is_refused(text: str | int) -> None:
    with pytest.raises(ValidationError, match="memory_limit"):
        config.load({"memory_limit": text})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "flight.example.org", ""])
def test_beyond_this_machine_the_start_is_refused_without_access_control(host: str) -> None:
    with pytest.raises(ValidationError) as refused:
        config.load({"host": host})
    (sentence,) = config.explained(refused.value)
    for word in (f"--host {host} ", "FLIGHT_SERVER_TOKEN", "--tls-client-ca", "--insecure"):
        assert word in sentence
    tls = {"tls_cert": "a", "tls_key": "b"}
    with pytest.raises(ValidationError):
        config.load({"host": host, **tls})
    for given in ({"token": "t"}, {"token_file": "f"}, {"insecure": True}, {**tls, "tls_client_ca": "c"}):
        assert config.load({"host": host, **given}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"])
def test_on_this_machine_alone_no_token_is_needed(host: str) -> None:
    assert config.load({"host": host}).token is None


def test_one_port_for_grpc_and_http_is_refused() -> None:
    with pytest.raises(ValidationError) as refused:
        config.load({"http_port": 8815})
    (sentence,) = config.explained(refused.value)
    assert "--port and --http-port are both 8815" in sentence
    assert config.load({"port": 0, "http_port": 0}).http_port == 0


@pytest.mark.parametrize("token", ["tökén", "tok\nen", " tok", "tok ", "tok\x7f"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ValidationError, match="printable ASCII") as caught:
        config.load({"token": token})
    (sentence,) = config.explained(caught.value)
    assert sentence.removeprefix("--token: a token").count("tok") == 0


def test_neither_the_settings_nor_their_errors_show_the_token() -> None:
    assert "S3CR3T" not in repr(config.load({"token": "S3CR3T"}))
    for wrong in ({"token": "S3CR3T "}, {"token": "S3CR3T", "tls_cert": "c"}):
        with pytest.raises(ValidationError) as refused:
            config.load(wrong)
        assert "S3CR3T" not in str(refused.value)


def test_what_kubernetes_sets_for_services_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for service in ("FLIGHT_SERVER", "FLIGHT_SERVER_HTTP", "FLIGHT_SERVER_OTHER"):
        address = f"{service}_PORT_8815_TCP"
        for name, text in {
            f"{service}_SERVICE_HOST": "10.0.0.7",
            f"{service}_SERVICE_PORT": "8815",
            f"{service}_SERVICE_PORT_GRPC": "8815",
            f"{service}_PORT": "tcp://10.0.0.7:8815",
            address: "tcp://10.0.0.7:8815",
            f"{address}_PROTO": "tcp",
            f"{address}_PORT": "8815",
            f"{address}_ADDR": "10.0.0.7",
        }.items():
            monkeypatch.setenv(name, text)
    monkeypatch.setenv("FLIGHT_SERVER_WORKERS", "2")
    settings = config.load({})
    assert (settings.port, settings.http_port, settings.workers) == (8815, 8816, 2)
    monkeypatch.setenv("FLIGHT_SERVER_PORT", "9000")
    assert config.load({}).port == 9000


@pytest.mark.parametrize("name", ["FLIGHT_SERVER_URL", "FLIGHT_SERVER_NAME", "FLIGHT_SERVER_"])
def test_a_variable_that_is_like_no_setting_but_for_the_prefix_is_refused_without_a_name(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "x")
    with pytest.raises(ValueError, match=f"^there is no setting for {name} in the environment, see --help$"):
        config.load({})


@pytest.mark.parametrize("ends_with", [{"exit_with_parent": True}, {"exit_with_process": 1}])
def test_a_server_that_ends_with_another_process_passes_over_the_variables_of_that_one(
    monkeypatch: pytest.MonkeyPatch, ends_with: dict[str, Any]
) -> None:
    monkeypatch.setenv("FLIGHT_SERVER_URL", "grpc://elsewhere:8815")
    monkeypatch.setenv("FLIGHT_SERVER_WORKERS", "2")
    assert config.load(ends_with).workers == 2
