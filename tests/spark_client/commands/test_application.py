"""The command as a whole: exit codes, one line for an error, no secrets, life without the extra."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_client.cli import main
from spark_client.commands import run
from spark_client.executors import shipping
from spark_client.version import __version__
from tests.support.certificates import self_signed
from tests.support.commands import Command
from tests.support.server_process import ServerProcess

NO_SERVER = "grpc://127.0.0.1:1"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"flight-shuffle {__version__}\n"


@pytest.mark.usefixtures("hasty")
def test_the_exit_code_says_what_went_wrong_and_one_line_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLIGHT_SHUFFLE_LOCATION", raising=False)
    monkeypatch.setattr(shipping, "zipped", lambda: b"")  # which takes a second
    for arguments, code, message in (
        (
            ["ls"],
            2,
            "no server is named: say -s grpc://host:8815 after the command's name, or set FLIGHT_SHUFFLE_LOCATION",
        ),
        (["ls", "-s", "host"], 2, "write 'grpc://host:8815'"),
        (["nothing"], 2, "No such command"),
        (["ls", "-s", NO_SERVER, "--tls-root-certs", "/none.pem"], 1, "/none.pem"),
        (["ls", "-s", NO_SERVER], 3, "no server answers"),
        (["zip", "client.whl"], 2, "ends with .zip"),
        (["zip", "/none/client.zip"], 1, "cannot be written"),
    ):
        assert run(arguments) == code
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines())) == ("", 1)
        assert message in said.err
    assert run([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_the_environment_names_server_and_token_and_no_secret_is_printed(
    flight_server_process: Callable[..., ServerProcess],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    server = flight_server_process(token="right-secret")
    monkeypatch.setenv("FLIGHT_SHUFFLE_LOCATION", server.location)
    monkeypatch.setenv("FLIGHT_SHUFFLE_TOKEN", "wrong-secret")
    assert run(["ls"]) == 1
    said = capsys.readouterr()
    assert "token" in said.err
    assert "secret" not in said.err + said.out
    (file := tmp_path / "token").write_text("right-secret\n")
    assert run(["ls", "--token-file", str(file)]) == 0
    monkeypatch.setenv("FLIGHT_SHUFFLE_TOKEN", "right-secret")
    assert run(["ls"]) == 0
    assert run(["ls", "--help"]) == 0
    assert "secret" not in capsys.readouterr().out


def test_an_untrusted_certificate_is_one_line_that_says_so(
    flight_server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    cert, key = self_signed(tmp_path)
    server = flight_server_process(tls_cert=cert, tls_key=key)
    program = [
        sys.executable,
        "-m",
        "spark_client.cli",
    ]  # gRPC writes to the descriptor, as its first call finds it
    ended = subprocess.run(
        [*program, "ls", "-s", server.location], capture_output=True, text=True, check=False
    )
    remedy = "give its authority as tls_root_certs, or look with `flight-shuffle doctor`"
    assert ended.stderr.startswith(
        f"flight-shuffle: the certificate at {server.location} is not trusted: {remedy} ("
    )
    assert (ended.returncode, len(ended.stderr.splitlines())) == (3, 1)


def test_an_error_of_ours_is_one_line_too(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("spark_client.ShuffleClient.datasets", broken)
    said = command("ls")
    assert (said.code, len(said.err.splitlines())) == (1, 1)
    assert "internal error: KeyError: 'x'" in said.err


def test_a_new_token_has_its_hash_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token"]) == 0
    token, line = capsys.readouterr().out.splitlines()
    assert len(token) >= 43
    assert line == f'tokens = ["sha256:{hashlib.sha256(token.encode()).hexdigest()}"]'


def test_ctrl_c_while_modules_are_imported_is_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name.startswith("spark_client.commands"):
                raise KeyboardInterrupt

    for name in [each for each in sys.modules if each.startswith("spark_client.commands")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main(["ls"])
    assert ended.value.code == 130


def test_without_the_extra_the_zip_is_written_and_other_commands_name_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [each for each in sys.modules if re.match(r"spark_client\.commands|typer|rich", each)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    main(["zip", str(tmp_path / "client.zip")])
    assert (tmp_path / "client.zip").stat().st_size > 100_000
    for arguments, message in (
        (["ls"], "pip install 'flight-shuffle[cli]'"),
        (["zip", "x.whl"], "with .zip"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
