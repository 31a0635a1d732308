"""``doctor``: each planted fault is found, named, and has its remedy."""

from __future__ import annotations

import http.server
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyarrow import flight

from spark_client.commands import doctor, run
from spark_client.commands.connected import Link
from spark_client.commands.doctor import Finding, ServerChecks, python_of_tasks
from tests.support.bare_python import bare_python
from tests.support.certificates import expired, self_signed
from tests.support.server_process import ServerProcess

Start = Callable[..., ServerProcess]
HOUR_SECONDS = 3600.0


def http_port(server: ServerProcess) -> int:
    return urlsplit(server.http or "").port or 0


def at_loopback(server: ServerProcess) -> str:
    parts = urlsplit(server.location)
    return f"{parts.scheme}://127.0.0.1:{parts.port}"


@contextmanager
def answering(where: tuple[str, int], answer: bytes) -> Iterator[tuple[str, int]]:
    """A listener that answers each connection with these bytes, or with none: then it is silent."""
    with socket.create_server(where) as listener:
        taken: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    taken.append(listener.accept()[0])
                except OSError:
                    return
                if answer:
                    taken[-1].sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[:2]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in taken:
            each.close()


@contextmanager
def an_hour_ahead(where: tuple[str, int]) -> Iterator[None]:
    """An HTTP port whose host's clock is wrong."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time() + HOUR_SECONDS, usegmt=True)

        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with http.server.HTTPServer(where, Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


def checked(location: str, certificates: Path | None = None, token: str | None = None) -> dict[str, Finding]:
    """The finding of each check."""
    root = None if certificates is None else certificates.read_bytes()
    checks = ServerChecks(
        Link(location, {"token": token, "tls_root_certs": root}, as_json=False), location, 0.5
    )
    return {each.check: each for each in checks.findings()}


def test_planted_faults_are_found_and_each_has_its_remedy(
    flight_server_process: Start,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    cert, key = expired(tmp_path)
    token, python = "right-secret", bare_python(tmp_path / "venv")
    greedy = flight_server_process(token=token, memory_limit="1TiB", advertise_host="127.0.0.2")
    strange = flight_server_process(token="another-secret")
    ended = flight_server_process(tls_cert=cert, tls_key=key)
    late = flight_server_process(token=token, memory_limit="64MiB", advertise_host="127.0.0.3")
    # Two advertise an address of this host where something else has the HTTP port.
    servers = [at_loopback(each) for each in (greedy, strange, ended, late)]
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path / "none")
    (file := tmp_path / "token").write_text(token)
    options = ["--token-file", str(file), "--tls-root-certs", str(cert), "--pyspark-python", str(python)]
    with answering(("127.0.0.2", http_port(greedy)), b""), an_hour_ahead(("127.0.0.3", http_port(late))):
        code = run(["doctor", "-s", ",".join(servers), *options, "--seconds", "0.5", "--json"])
    said = capsys.readouterr()
    found = [json.loads(line) for line in said.out.splitlines()]
    assert code == 1
    assert "secret" not in said.out + said.err
    faults = {(each["server"], each["check"]): each for each in found if each["verdict"] != "ok"}
    expected = {
        (servers[0], "HTTP port"): (
            "bad",
            "of 127.0.0.2, which the server names, takes connections and is silent",
            "with the right --advertise-host, or find the proxy, firewall",
        ),
        (servers[0], "memory limit"): ("bad", "1.0 TiB", "--memory-limit"),
        (servers[1], "token"): ("bad", "is not this server's", "FLIGHT_SHUFFLE_TOKEN"),
        (servers[2], "gRPC port"): ("bad", "certificate has expired", "renew it"),
        (servers[3], "clock"): ("bad", "3600 s ahead", "time server"),
        (None, str(tmp_path / "none")): ("warn", "cannot be used", "mount one"),
        (None, "Spark's Python"): (
            "bad",
            f"{python}, which says \"ModuleNotFoundError: No module named '",
            "pip install",
        ),
    }
    assert expected.keys() <= faults.keys(), said.out
    for where, (verdict, text, remedy) in expected.items():
        assert faults[where]["verdict"] == verdict, faults[where]
        assert text in faults[where]["text"], faults[where]
        assert remedy in faults[where]["remedy"], faults[where]
    others = {where: each for where, each in faults.items() if where not in expected}
    assert {where[1] for where in others} <= {"memory limit"}, others


def test_a_server_without_faults_has_none(
    flight_server_process: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cert, key = self_signed(tmp_path)
    server = flight_server_process(tls_cert=cert, tls_key=key, memory_limit="64MiB")
    found = checked(server.location, cert)
    assert found.keys() == {"gRPC port", "token", "HTTP port", "clock", "memory limit"}
    assert {each.verdict for each in found.values()} == {"ok"}
    root = ["--tls-root-certs", str(cert)]
    assert run(["doctor", "-s", server.location, *root, "--pyspark-python", sys.executable]) == 0
    assert capsys.readouterr().out.startswith(f"{server.location}\nok    gRPC port: answers\n")
    # Only a Python that the command line names must be one for Spark's tasks.
    missing = str(tmp_path / "none")
    monkeypatch.setenv("PYSPARK_PYTHON", missing)
    assert run(["doctor", "-s", server.location, *root]) == 0
    assert f"warn  Spark's Python: PYSPARK_PYTHON is {missing}, which says " in capsys.readouterr().out
    assert run(["doctor", "-s", server.location, *root, "--pyspark-python", missing]) == 1


def test_what_a_port_speaks_is_told_apart(flight_server_process: Start, tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    plain, encrypted = flight_server_process(), flight_server_process(tls_cert=cert, tls_key=key)
    swapped = (plain.http or "").replace("http://", "grpc://")
    with (
        answering(("127.0.0.1", 0), b"SSH-2.0-OpenSSH\r\n") as other,
        answering(("127.0.0.1", 0), b"") as silent,
    ):
        for location, text in (
            (encrypted.location.replace("+tls", ""), "speaks TLS"),
            (plain.location.replace("grpc:", "grpc+tls:"), "speaks no TLS"),
            (swapped, "speaks another protocol: it answers b'HTTP/1"),
            (f"grpc://127.0.0.1:{other[1]}", "speaks another protocol: it answers b'SSH"),
            (f"grpc://127.0.0.1:{silent[1]}", "takes connections and is silent"),
            ("grpc://127.0.0.1:1", "refuses connections"),
            ("grpc://none.invalid:8815", "cannot be reached"),
        ):
            finding = checked(location, cert)["gRPC port"]
            assert (finding.verdict, text in finding.text) == ("bad", True), (location, finding)
            assert finding.remedy
    untrusted = checked(encrypted.location)["gRPC port"]
    assert "self-signed certificate" in untrusted.text.replace("self signed", "self-signed")


def test_a_proxy_between_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://user:secret@127.0.0.1:1")
    finding = checked("grpc://server.invalid:8815")["proxy"]
    assert (finding.verdict, "variable https_proxy" in finding.text) == ("warn", True)
    assert "no_proxy" in (finding.remedy or "")
    assert "secret" not in str(finding)


def test_another_flight_server_is_named_as_such() -> None:
    with flight.FlightServerBase("grpc://127.0.0.1:0") as server:
        found = checked(f"grpc://127.0.0.1:{server.port}")
    assert "speaks gRPC, and is another" in found["gRPC port"].text


def script(path: Path, line: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


@pytest.mark.long
def test_the_python_of_tasks_is_compared_with_this_one(tmp_path: Path) -> None:
    assert python_of_tasks(sys.executable, named=True).verdict == "ok"
    own = doctor._versions_of(sys.executable)
    assert own.startswith(f"Python {sys.version_info[0]}.{sys.version_info[1]}, pyarrow ")
    for said in (own.replace("Python 3", "Python 2"), own.replace("pyarrow ", "pyarrow 1"), "anything"):
        finding = python_of_tasks(str(script(tmp_path / "python", f"echo '{said}'")), named=True)
        assert (finding.verdict, f"says {said!r}" in finding.text) == ("bad", True), finding
        assert finding.remedy
    assert "No such file" in python_of_tasks("/none/python", named=False).text


def test_without_a_name_the_tasks_of_a_local_master_run_with_this_python() -> None:
    finding = python_of_tasks(None, named=False)
    assert (finding.verdict, finding.remedy) == ("ok", None)
    assert "PYSPARK_PYTHON is not set, so tasks of a local master run with this one" in finding.text
