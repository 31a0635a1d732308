"""What `make` does first: find a Python, a Java, a browser and an engine of containers that will do, or say in a
sentence what to install.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import browser, container_engine, debian, java
from tests.support.server_process import ROOT

MAKE_VENV = ROOT / "tests" / "support" / "make_venv.sh"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str) -> Path:
    """A Java that knows nothing but its version, which it says as the real ones do: on standard error."""
    script(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-01-01' >&2")
    return home


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither JAVA_HOME nor PATH nor the system has a Java, and nothing can be installed."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(java, "SYSTEM_JAVAS", tmp_path / "jvm")


@pytest.mark.parametrize(
    ("version", "found"), [("1.8.0_412", False), ("11.0.2", False), ("17.0.15", True), ("25", True)]
)
def test_java_home_is_taken_if_its_java_is_new_enough(
    version: str, found: bool, no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java_home() == (home if found else None)


def test_an_old_java_in_front_does_not_hide_a_newer_one(
    no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "older", "1.8.0_412") / "bin"))
    home = fake_java(tmp_path / "jvm" / "java-21", "21.0.7")
    assert java.find_java_home() == home


def test_the_java_on_path_is_found_through_its_links(
    no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "somewhere" / "java-17", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    # The fake needs a shell.
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    assert java.find_java_home() == home


def test_without_java_one_sentence_says_what_to_install(
    no_java: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["java", "--install"])
    assert java.main() == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "openjdk-17-jre-headless" in said.err
    assert len(said.err.splitlines()) == 1


def test_debians_jre_is_installed_where_that_needs_no_password(
    no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first package does not exist, as on Debian 12; the second one brings a Java."""
    java_file = tmp_path / "jvm" / "java-17" / "bin" / "java"
    calls = tmp_path / "calls"
    script(
        tmp_path / "nothing" / "apt-get",
        f'echo "$@" >> {calls}\n'
        'case "$*" in *install*openjdk-21*) exit 100;; *install*openjdk-17*) ;; *) exit 0;; esac\n'
        f"/bin/mkdir -p {java_file.parent}\n"
        f"printf '#!/bin/sh\\necho openjdk version \\\\\"17.0.1\\\\\" >&2\\n' > {java_file}\n"
        f"/bin/chmod +x {java_file}",
    )
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["java", "--install"])
    assert java.main() == 0
    assert capfd.readouterr().out.strip() == str(java_file.parent.parent)
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["update", "install", "install"]


def test_nothing_is_installed_where_it_would_need_a_password(
    no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    script(tmp_path / "nothing" / "apt-get", f'echo "$@" >> {calls}')
    script(tmp_path / "nothing" / "sudo", "exit 1")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    debian.install("a Java runtime", ["openjdk-17-jre-headless"])
    assert not calls.exists()


def test_without_a_browser_one_sentence_says_what_to_install_and_nothing_fails(
    no_java: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["browser", "--install"])
    assert browser.main() == 0
    said = capsys.readouterr()
    assert "apt-get install chromium" in said.err
    assert len(said.err.splitlines()) == 1


def test_debians_browser_is_installed_where_there_is_none(
    no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    chromium = tmp_path / "nothing" / "chromium"
    script(
        tmp_path / "nothing" / "apt-get",
        f'case "$*" in *"install -y"*chromium) /bin/cp /bin/true {chromium};; esac',
    )
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["browser", "--install"])
    assert browser.main() == 0
    assert browser.find() == str(chromium)
    assert browser.MISSING not in capfd.readouterr().err


@pytest.mark.parametrize(("user", "lacks"), [(1000, "root"), (0, "dockerd, iptables-save, debootstrap")])
def test_without_an_engine_of_containers_one_sentence_says_what_is_missing(
    user: int, lacks: str, no_java: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    reason = container_engine.missing()
    assert reason is not None
    assert f"to start one needs {lacks}" in reason
    assert len(reason.splitlines()) == 1


def test_an_engine_without_compose_is_not_enough(
    no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "nothing" / "docker", 'test "$1" = version')
    reason = container_engine.missing()
    assert reason is not None
    assert "has no Compose" in reason


def test_a_python_that_is_too_old_is_refused_in_one_sentence(tmp_path: Path) -> None:
    old = script(tmp_path / "python3.8", "exit 1")
    answer = subprocess.run(
        [MAKE_VENV, tmp_path / "venv"], env={"PYTHON": str(old)}, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    assert "Python 3.11 or later" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert not (tmp_path / "venv").exists()


def test_the_first_python_that_will_do_makes_the_environment(tmp_path: Path) -> None:
    old = script(tmp_path / "python3.8", "exit 1")
    good = script(tmp_path / "python3.x", f'case "$1" in -c) exit 0;; *) echo "$@" > {tmp_path}/made;; esac')
    subprocess.run([MAKE_VENV, tmp_path / "venv"], env={"PYTHON": f"{old} {good}"}, check=True)
    assert (tmp_path / "made").read_text().split() == ["-m", "venv", str(tmp_path / "venv")]
