"""What is said where an executor cannot run a server; the rest needs Spark (``tests/integration/spark``)."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections import deque
from contextlib import suppress
from importlib import util
from pathlib import Path

import psutil
import pytest

from flight_server.protocol import InvalidRequest, Unavailable
from spark_client.executors import ExecutorServers, executor_servers
from spark_client.executors.executor_servers import RunningServers, cores_of, start_of
from tests.support.polling import eventually

SERVERS = ExecutorServers("a token", "127.0.0.1", {"memory_limit": "64MiB"})


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An executor's local directory; this process stands for its JVM."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    monkeypatch.setattr(executor_servers, "executor_process", os.getpid)
    monkeypatch.setattr(executor_servers, "_known", {})
    return tmp_path


def test_outside_of_a_task_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    with pytest.raises(InvalidRequest, match="no Python worker of a Spark executor"):
        SERVERS.here()


def test_missing_packages_are_named_with_what_brings_them(
    executor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = util.find_spec
    monkeypatch.setattr(
        executor_servers.importlib.util, "find_spec", lambda name: None if name == "grpc" else found(name)
    )
    with pytest.raises(InvalidRequest, match=r"has no grpc\. Install the wheel with its extra server in"):
        SERVERS.here()


def test_a_small_address_space_is_refused(executor: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
    with pytest.raises(InvalidRequest, match=r"1024 MiB \(spark.executor.pyspark.memory\)"):
        SERVERS.here()


def test_a_server_that_cannot_start_is_said_with_its_last_lines(executor: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"refuses its settings; .*--memory-limit"):
        ExecutorServers("another", "127.0.0.1", {"memory_limit": "1KiB"}).here()


def test_its_files_are_for_their_user_alone_and_a_fork_finds_it(executor: Path) -> None:
    running = SERVERS.here()
    try:
        (folder,) = executor.glob("flight-shuffle-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not any(b"a token" in file.read_bytes() for file in folder.iterdir() if file.is_file())
        assert b"a token" not in Path(f"/proc/{running.pid}/cmdline").read_bytes()
        executor_servers._known.clear()
        assert SERVERS.here() == running
    finally:
        os.kill(running.pid, 15)
        os.waitpid(running.pid, 0)
    assert not running.alive


def test_a_process_that_has_a_number_again_is_not_the_server_that_had_it() -> None:
    pid = os.getpid()
    started = start_of(pid)
    assert started is not None
    assert RunningServers(("grpc://127.0.0.1:1",), pid, started).alive
    assert not RunningServers(("grpc://127.0.0.1:1",), pid, started - 1).alive


def test_what_is_done_once_in_an_executor_is_done_by_the_first_process_that_does_not_fail(
    executor: Path,
) -> None:
    (executor / f"flight-shuffle-{SERVERS.application}").mkdir()
    with suppress(ValueError), SERVERS.once(["a"]) as news:
        raise ValueError(news)
    seen = []
    for things in (["a", "b"], ["b", "c"], ["c"], ["b", "c"]):
        with SERVERS.once(things) as news:
            seen.append(news)
    assert seen == [["a", "b"], ["c"], [], []]


def test_servers_of_a_closed_client_end_before_a_later_one_of_its_driver_starts_its_own(
    executor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_servers, "_closed", deque[str]())
    closed, other, later = "of a closed one", "of an open one", "of a later one"
    running = []

    def start(token: str) -> ExecutorServers:
        servers = ExecutorServers(token, "127.0.0.1", {"memory_limit": "64MiB"})
        running.append(servers.here())
        return servers

    try:
        first = start(closed)
        start(other)
        first.close()
        start(later)
        assert [each.alive for each in running] == [False, True, True]
    finally:
        for each in running:
            with suppress(ProcessLookupError):
                os.kill(each.pid, 15)
            os.waitpid(each.pid, 0)


@pytest.mark.long
def test_a_server_whose_starter_was_killed_is_ended_before_the_next_one_starts(executor: Path) -> None:
    program = (
        "import os; from spark_client.executors import ExecutorServers, executor_servers as its;"
        "its.embedded.serving = lambda process, *_: (print(process.pid, flush=True), os.kill(os.getpid(), 9));"
        f"its.executor_process = lambda: {os.getpid()};"
        'ExecutorServers("a token", "127.0.0.1", {"memory_limit": "64MiB"}).here()'
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    running = SERVERS.here()
    try:
        unknown = Path("/proc", killed.stdout.strip(), "stat")
        assert not unknown.exists() or unknown.read_text().split()[2] == "Z"
        assert SERVERS.here() == running
    finally:
        os.kill(running.pid, 15)
        os.waitpid(running.pid, 0)


def test_directories_that_cannot_be_written_are_said_as_the_reason(
    tmp_path: Path, executor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "file"))
    with pytest.raises(Unavailable, match="Not a directory") as raised:
        SERVERS.here()
    assert executor_servers.reason_of(raised.value) == raised.value.message


def test_an_executor_has_a_server_for_each_four_of_its_cores_and_they_end_together(
    executor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_servers.machine, "cores", lambda: 16)
    monkeypatch.setattr(executor_servers, "cores_of", lambda _: 9)
    several = ExecutorServers("another token", "127.0.0.1", {"memory_limit": "512MiB"})
    running = several.here()
    workers = psutil.Process(running.pid).children()
    try:
        assert len(workers) == len(running.locations) == 2
        executor_servers._known.clear()
        assert several.here(tries=1) == running, "both answer"
        workers[1].kill()
        assert several.here(tries=1) == running, "its supervisor starts it again"
        # One that stands still ends all: it may be the reason why the task was tried again.
        workers[0].suspend()
        monkeypatch.setattr(executor_servers, "ANSWER_SECONDS", 0.5)
        assert several.here() == running, "it was not asked"
        second = several.here(tries=1)
        assert second.pid != running.pid
        assert os.waitpid(running.pid, 0)[1] == signal.SIGKILL
        psutil.wait_procs(workers, 30)
        assert not any(each.is_running() for each in workers)
        running = second
    finally:
        os.kill(running.pid, signal.SIGTERM)
        os.waitpid(running.pid, 0)


def test_the_cores_are_those_that_spark_gives_an_executor_on_its_command_line() -> None:
    words = ["-c", "input()", "--executor-id", "0", "--cores", "6", "--app-id", "x"]
    with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE) as process:
        # For a moment after it was started the kernel shows no command line of it.
        eventually(lambda: cores_of(process.pid) or 0, 6)
        process.communicate(b"\n")
    assert cores_of(os.getpid()) is None


def test_a_server_drains_when_the_process_that_it_is_told_of_ends() -> None:
    other = subprocess.Popen(["sleep", "60"])
    command = [sys.executable, "-m", "flight_server", "--port", "0", "--http-port", "-1"]
    with subprocess.Popen(
        [*command, "--exit-with-process", str(other.pid)], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert b"ready" in server.stdout.readline()
        other.kill()
        # Before it is waited for: an executor's parent may take its time.
        assert server.wait(60) == 0
        other.wait()
