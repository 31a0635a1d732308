"""Commands of a principal that may do little, on servers that want a certificate of each client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_client import ShuffleClient
from tests.support.certificates import Authority
from tests.support.commands import Command
from tests.support.server_process import ServerProcess
from tests.support.token_hashes import hash_of_token

NEEDS = 'only to principals with read or admin on ""'
GONE = "grpc+tls://127.0.0.1:1"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    (file := tmp_path / "tokens.toml").write_text(
        f'[principals.etl]\ntokens = ["{hash_of_token("etl-token")}"]\nwrite = ["ours/"]\nread = ["ours/"]\n'
    )
    return file


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.new(tmp_path, "ours")


@pytest.fixture
def servers(token_file: Path, authority: Authority) -> Iterator[list[ServerProcess]]:
    cert, key = authority.sign("server")
    started = [
        ServerProcess.start(
            token_file=token_file,
            tls_cert=cert,
            tls_key=key,
            tls_client_ca=authority.cert,
            memory_limit="64MiB",
        )
        for _ in range(2)
    ]
    yield started
    for each in started:
        each.close()


def test_a_principal_that_sees_a_part_on_servers_that_want_certificates(
    servers: list[ServerProcess],
    authority: Authority,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cert, key = authority.sign("client")
    for name, value in (
        ("TLS_ROOT_CERTS", authority.cert),
        ("TLS_CLIENT_CERT", cert),
        ("TLS_CLIENT_KEY", key),
        ("TOKEN", "etl-token"),
    ):
        monkeypatch.setenv(f"FLIGHT_SHUFFLE_{name}", str(value))
    one = Command(servers[0].location, capfdbinary)
    both = Command(",".join(each.location for each in servers), capfdbinary)
    with ShuffleClient(
        both.location,
        token="etl-token",
        tls_root_certs=authority.cert.read_bytes(),
        tls_client_cert=cert,
        tls_client_key=key,
    ) as client:
        client.put("ours/t", pa.table({"id": [1, 2]}))
        said = client.statistics()
        assert ({*said["datasets"]}, "servers" in said) == ({"ours/t"}, False)
    for command in (one, both):
        refused = command("servers")
        assert (refused.code, refused.out, NEEDS in refused.err) == (1, "", True)
    assert both("stat", "ours/t").code == 0
    (gone,) = Command(f"{both.location},{GONE}", capfdbinary)("servers", "--json").lines
    assert gone["location"] == GONE

    found = {each["check"]: each for each in one("doctor", "--json").lines}
    assert {found[name]["verdict"] for name in ("gRPC port", "HTTP port", "token")} == {"ok"}

    monkeypatch.delenv("FLIGHT_SHUFFLE_TLS_CLIENT_KEY")
    half = one("ls")
    assert (half.code, "go together" in half.err) == (2, True)
    monkeypatch.delenv("FLIGHT_SHUFFLE_TLS_CLIENT_CERT")
    assert one("ls").code == 3
    found = {each["check"]: each for each in one("doctor", "--json").lines}
    assert "wants a certificate of the client" in found["gRPC port"]["text"]
    assert "--tls-client-cert" in found["gRPC port"]["remedy"]
