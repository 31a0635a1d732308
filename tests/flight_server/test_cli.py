"""The command line: what is said where, in which order settings count, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import structlog
import typer
from pyarrow import flight
from typer.testing import CliRunner, Result

from flight_server.__main__ import serve
from flight_server.config import Settings
from flight_server.host import machine
from tests.support.certificates import self_signed
from tests.support.server_process import ROOT, ServerProcess

DEADLINE_SECONDS = 60
COMMAND = [sys.executable, "-m", "flight_server"]
StartServer = Callable[..., ServerProcess]


def run(*arguments: str, **environment: str) -> Result:
    """Give the command line what it does not take; it must end before it serves."""
    command = typer.Typer()
    command.command()(serve)
    inherited: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith("FLIGHT_SERVER_")
    }
    try:
        return CliRunner().invoke(command, arguments, env={**inherited, **environment})
    finally:
        structlog.reset_defaults()  # it logs to a file of the runner's, which is closed now


def serve_in_vain(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Start a real server that is expected to end by itself."""
    return subprocess.run(
        [*COMMAND, "--port", "0", "--http-port", "-1", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


def test_the_version_is_printed() -> None:
    answer = run("--version")
    assert (answer.exit_code, answer.output) == (0, f"flight-server {version('flight-shuffle')}\n")


def test_the_ready_line_is_json_and_says_where(flight_server_process: StartServer) -> None:
    command = [str(Path(sys.executable).parent / "flight-server")]
    server = flight_server_process(command=command, http_port=0, memory_limit="64MiB")
    assert server.ready["event"] == "ready"
    assert server.ready["memory_limit_bytes"] == 64 << 20
    assert server.events("memory_limit_too_high") == []
    assert Path(server.ready["data_dir"]).is_dir()
    with flight.connect(server.ready["location"]) as client:
        assert list(client.list_flights()) == []
    assert server.ready["http"].startswith("http://127.0.0.1:")
    assert server.terminate() == 0
    assert not Path(server.ready["data_dir"]).exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_memory_limit_above_the_machine_s_memory_is_one_warning_at_the_start(
    workers: int, flight_server_process: StartServer
) -> None:
    memory_bytes = machine.memory_bytes()
    server = flight_server_process(workers=workers, memory_limit=memory_bytes + (1 << 20))
    (warning,) = server.events("memory_limit_too_high")
    assert warning["level"] == "warning"
    assert (warning["memory_limit_bytes"], warning["memory_bytes"]) == (
        memory_bytes + (1 << 20),
        memory_bytes,
    )


def test_the_ready_line_is_one_line_of_text_on_standard_output_and_the_end_of_the_parents_input_ends_it() -> (
    None
):
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--http-port", "-1", "--memory-limit", "64MiB", "--exit-with-parent"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert process.poll() is None
        process.stdin.close()
        rest = process.stdout.read()
        assert process.wait(DEADLINE_SECONDS) == 0
    assert line.startswith("flight-server is ready at grpc://127.0.0.1:")
    assert rest == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_moment_ends_it_cleanly(
    flight_server_process: StartServer, number: signal.Signals
) -> None:
    server = flight_server_process(http_port=-1, memory_limit="64MiB")
    server.signal(number)
    assert server.wait() == 0


def test_a_taken_port_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = serve_in_vain("--port", str(port))
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == (
        f"flight-server: 127.0.0.1:{port} is in use by another process: end that one, or give another --port "
        "(0 for any)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], ["port", "65535"]),
        (["--port", "-1"], ["port", "0"]),
        (["--memory-limit", "lots"], ["--memory-limit: 'lots' is no size", "64MiB"]),
        (["--memory-limit", "1KiB"], ["--memory-limit", str(8 << 20)]),
        (["--max-message", "0"], ["--max-message", "greater than or equal to 1"]),
        (["--memory-limit", "64MiB", "--max-message", "32MiB"], ["1/8 of --memory-limit"]),
        (["--lease-seconds", "0"], ["--lease-seconds", "greater than 0"]),
        (["--keepalive-seconds", "inf"], ["--keepalive-seconds", "finite"]),
        (["--log-format", "xml"], ["--log-format", "text", "json"]),
        (["--token", ""], ["--token", "at least 1 character"]),
        (["--data-dir", ""], ["--data-dir", "an empty text is no path"]),
        (["--source-roots", ""], ["--source-roots", "an empty text is no path"]),
        (["--tls-cert", "cert.pem"], ["--tls-cert and --tls-key go together"]),
        (["--tls-key", "key.pem"], ["--tls-cert and --tls-key go together"]),
        (["--tls-client-ca", "ca.pem"], ["--tls-client-ca goes with --tls-cert and --tls-key"]),
        (
            ["--tls-cert", "/nowhere/a.pem", "--tls-key", "/nowhere/b.pem"],
            ["--tls-cert: /nowhere/a.pem cannot be read: No such file or directory"],
        ),
        (
            ["--tls-cert", __file__, "--tls-key", __file__],
            ["--tls-cert and --tls-key", "no PEM certificate chain with its unencrypted key"],
        ),
        (["--config", "/proc"], ["the configuration file /proc is a directory"]),
        (["--config", "/nowhere/server.toml"], ["no configuration file", "/nowhere/server.toml"]),
    ],
)
def test_a_bad_value_is_one_clear_line(arguments: list[str], words: list[str]) -> None:
    is_one_clear_line(run(*arguments), *words)


def is_one_clear_line(ended: Result, *words: str) -> None:
    assert ended.exit_code == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.strip().splitlines()
    assert line.startswith("flight-server: ")
    for word in words:
        assert word in line


@pytest.mark.parametrize("arguments", [["--port", "eight"], ["--no-such-option"], ["operand"]])
def test_a_bad_command_line_shows_the_usage(arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert "Usage" in ended.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('memory_limit = "64MiB"\nmemorylimit = 3', "there is no setting 'memorylimit'"),
        ("[server]\nport = 1", "there is no setting 'server'"),
        ("memory_limit = 1e9", "--memory-limit: 1000000000.0 is no size"),
        ("lease_seconds = nan", "--lease-seconds: must be a finite number"),
        ("memory_limit =", "server.toml is not TOML"),
    ],
)
def test_a_bad_configuration_file_is_one_clear_line(tmp_path: Path, text: str, words: str) -> None:
    (file := tmp_path / "server.toml").write_text(text)
    is_one_clear_line(run("--config", str(file)), words)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FLIGHT_SERVER_MEMORY_LIMIT", "64MiBx", "--memory-limit: '64MiBx' is no size"),
        ("FLIGHT_SERVER_PORT", "tcp://10.0.0.7:8815", "--port: must be a valid integer"),
        ("FLIGHT_SERVER_SOURCE_ROOTS", "/data", "FLIGHT_SERVER_SOURCE_ROOTS is no JSON list"),
        ("FLIGHT_SERVER_MEMORY_LIMITS", "1GiB", "did you mean 'FLIGHT_SERVER_MEMORY_LIMIT'?"),
        (
            "FLIGHT_SERVER_PORT_8815_TCP_ADDR",
            "10.0.0.7",
            "there is no setting for FLIGHT_SERVER_PORT_8815_TCP",
        ),
    ],
)
def test_a_bad_value_in_the_environment_is_one_clear_line(name: str, value: str, words: str) -> None:
    is_one_clear_line(run(**{name: value}), words)


def test_a_client_ca_without_certificates_is_refused(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    ended = run("--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", __file__)
    assert ended.exit_code == 2
    assert ended.stderr == f"flight-server: --tls-client-ca: {__file__} has no PEM certificates\n"


def test_a_data_directory_that_cannot_be_one_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = serve_in_vain("--data-dir", str(tmp_path / "file"))
    assert ended.returncode == 2
    (line,) = ended.stderr.strip().splitlines()
    assert line.startswith("flight-server: --data-dir: the data directory ")
    assert "file is not a directory" in line


LOGGING = """
import logging, sys
from flight_server import __main__, config
__main__._configure_logs(config.load({"log_format": sys.argv[1]}))
logging.getLogger("asyncio").warning("SSL connection is %s", "closed")
logging.getLogger("asyncio").info("of no interest")
try:
    raise RuntimeError("of a callback")
except RuntimeError:
    logging.getLogger("asyncio").exception("it failed")
"""


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_what_libraries_log_has_the_form_of_the_log(log_format: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOGGING, log_format], capture_output=True, text=True, check=True
    )
    assert ran.stdout == ""
    if log_format == "json":
        closed, failed = map(json.loads, ran.stderr.splitlines())
        assert closed.pop("timestamp")
        assert closed == {"event": "SSL connection is closed", "level": "warning", "logger": "asyncio"}
        assert (failed["level"], failed["event"]) == ("error", "it failed")
        assert failed["exception"].endswith("RuntimeError: of a callback")
    else:
        first, second, *traceback = ran.stderr.splitlines()
        assert "[warning  ] SSL connection is closed" in first
        assert "[error    ] it failed" in second
        assert traceback[-1] == "RuntimeError: of a callback"


def test_flags_count_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    (file := tmp_path / "server.toml").write_text('memory_limit = "of the file"')
    arguments: list[str] = ["--config", str(file)]
    assert "'of the file' is no size" in run(*arguments).stderr
    environment = {"FLIGHT_SERVER_MEMORY_LIMIT": "of the environment"}
    assert "'of the environment' is no size" in run(*arguments, **environment).stderr
    assert (
        "'of the flag' is no size" in run(*arguments, "--memory-limit", "of the flag", **environment).stderr
    )


def test_help_names_every_setting() -> None:
    ended = run("--help", COLUMNS="300", TERMINAL_WIDTH="300")
    assert ended.exit_code == 0
    text = " ".join(ended.stdout.replace("│", " ").split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert (field.description or "-") in text
    for said in ("default: 8815", "default: 32.0MiB", "default: 86400", "default: on", "default: text"):
        assert said in text
