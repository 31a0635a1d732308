"""``--workers``: several servers under one supervisor, as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from flight_server.config import load
from flight_server.storage import MARKER_NAME
from flight_server.supervisor import shares
from tests.flight_server.test_cli import run, serve_in_vain
from tests.support import durable
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess

DEADLINE_SECONDS = 60.0

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(flight_server_process: Start) -> Start:
    return partial(flight_server_process, workers=2)


def asked(location: str, action: str, **body: Any) -> dict[str, Any]:
    with flight.connect(location) as client:
        return durable.action(client, action, **body)


def children(pid: int) -> list[int]:
    """The processes that it has started, oldest first."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()))


def answers(location: str) -> bool:
    try:
        return bool(asked(location, "locations"))
    except flight.FlightUnavailableError:
        return False


def test_the_ready_line_and_each_worker_list_all_of_them(start: Start) -> None:
    supervisor = start(workers=3, memory_limit="192MiB")
    locations = supervisor.ready["locations"]
    assert len(set(locations)) == 3
    for location in locations:
        assert asked(location, "locations")["servers"] == locations
        known = asked(location, "statistics")
        assert known["memory"]["limit_bytes"] == 64 << 20
        assert [each["gone"] for each in known["servers"]] == [None] * 3
        assert known["servers"][0]["location"] == location
        assert sorted(each["location"] for each in known["servers"]) == sorted(locations)
        starts = {each["location"]: each["start"] for each in known["servers"]}
        assert all(starts[each] == asked(each, "locations")["start"] for each in locations)
    assert supervisor.terminate() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_worker_that_is_killed_comes_back_at_its_address_with_what_was_durable(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    supervisor = start(data_dir=tmp_path / "data")
    locations = supervisor.ready["locations"]
    for location in locations:
        with flight.connect(location) as client:
            durable.action(client, "create", dataset=location[-5:], durable=True)
            durable.put(client, durable.table(3), dataset=location[-5:])
    for pid in children(supervisor.pid):
        os.kill(pid, number)
    eventually(lambda: len(supervisor.events("worker_ended")), 2)
    eventually(lambda: all(map(answers, locations)), expected=True)
    for location in locations:
        with flight.connect(location) as client:
            assert durable.get(client, location[-5:]) == durable.table(3)
        assert asked(location, "locations")["servers"] == locations
    assert supervisor.terminate() == 0


def test_a_worker_that_was_drained_stays_away(start: Start) -> None:
    supervisor = start()
    first, second = supervisor.ready["locations"]
    asked(first, "drain")
    eventually(lambda: asked(second, "locations")["servers"], [second])
    asked(second, "drain")
    assert supervisor.wait() == 0


def test_the_workers_end_when_the_supervisor_is_killed(start: Start) -> None:
    supervisor = start()
    pids = [os.pidfd_open(pid) for pid in children(supervisor.pid)]
    supervisor.kill()
    eventually(lambda: all(map(has_ended, pids)), expected=True)
    for each in pids:
        os.close(each)


def has_ended(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)  # whether it is there
    except ProcessLookupError:
        return True
    return False


def test_it_ends_with_its_parent_when_it_is_told_to(start: Start) -> None:
    supervisor = start()
    assert supervisor.process.stdin is not None
    supervisor.process.stdin.close()
    assert supervisor.wait() == 0


def test_where_no_parent_can_be_watched_no_worker_is_left() -> None:
    ended = serve_in_vain("--workers", "2", "--exit-with-parent")
    assert (ended.returncode, ended.stderr) == (0, "")


SUPERVISOR = """
import os, selectors, signal, sys, time
from types import SimpleNamespace
from flight_server import supervisor
from flight_server.config import load
supervisor.FIRST_PAUSE_SECONDS = supervisor.LONGEST_PAUSE_SECONDS = 0.0
facts = {"location": "grpc://a:1", "http": None, "port": 1, "http_port": 2}
server = SimpleNamespace(facts=lambda: facts, signalled=False)
background = SimpleNamespace(keep=lambda *_, **__: None)
fellows = SimpleNamespace(join=lambda *_: None, post=None)
server.node = SimpleNamespace(background=background, observed=SimpleNamespace(fellows=fellows))
ends = os.memfd_create("ends")
def announced(_):
    os.write(ends, b"0")
"""
RUN = """
sys.exit(supervisor.Supervisor(load({"workers": 2}), serve, announced).run())
"""


def supervised(serve: str) -> subprocess.CompletedProcess[str]:
    """Runs two workers that serve nothing: each runs this function."""
    program = SUPERVISOR + serve + RUN
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )


@pytest.mark.long
def test_the_end_of_a_worker_may_be_seen_before_that_of_its_socket() -> None:
    ended = supervised("""
class LateAndBackwards(selectors.DefaultSelector):
    def select(self, timeout=None):
        super().select(timeout)
        time.sleep(0.05)
        return super().select(0)[::-1]
selectors.DefaultSelector = LateAndBackwards
def serve(settings, announce):
    announce(server)
    while not os.fstat(ends).st_size:
        time.sleep(0.01)
    os.write(ends, b"1")
    if os.fstat(ends).st_size > 10:
        os.kill(os.getppid(), signal.SIGTERM)
    return 3
""")
    assert ended.stderr == ""
    assert ended.stdout.count("worker_ended") > 5


def test_an_unforeseen_error_of_a_worker_is_written() -> None:
    ended = supervised("""
def serve(settings, announce):
    raise LookupError("unforeseen")
""")
    assert ended.returncode == 1
    assert "LookupError: unforeseen" in ended.stderr


@pytest.mark.long
def test_a_signal_that_a_worker_gets_before_it_has_handlers_ends_it() -> None:
    ended = supervised("""
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
def serve(settings, announce):
    print("a worker has begun")
    return 0
""")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


def test_where_a_worker_cannot_start_none_runs_and_the_reason_is_said(tmp_path: Path) -> None:
    (tmp_path / "data" / "worker-1").mkdir(parents=True)
    (tmp_path / "data" / "worker-1" / "other").touch()
    ended = serve_in_vain("--workers", "2", "--data-dir", str(tmp_path / "data"))
    assert ended.returncode == 2
    assert "worker-1" in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("before", "words"),
    [(["worker-0", "worker-1", "worker-2"], "has data of 3 workers"), ([MARKER_NAME], "of one server")],
)
def test_a_data_directory_of_other_servers_is_refused(tmp_path: Path, before: list[str], words: str) -> None:
    for name in before:
        (tmp_path / name).mkdir()
    ended = run("--workers", "2", "--data-dir", str(tmp_path))
    assert ended.exit_code == 2
    assert words in ended.stderr


def test_shares_too_small_for_a_server_are_refused() -> None:
    ended = run("--workers", "64", "--memory-limit", "64MiB")
    assert ended.exit_code == 2
    assert "is too small for 64 --workers" in ended.stderr


@pytest.mark.parametrize(
    ("port", "http_port", "expected"),
    [
        (8815, 8816, [(8815, 8816), (8817, 8818), (8819, 8820)]),
        (8816, 8815, [(8816, 8815), (8818, 8817), (8820, 8819)]),
        (8000, 9000, [(8000, 9000), (8001, 9001), (8002, 9002)]),
        (8000, -1, [(8000, -1), (8001, -1), (8002, -1)]),
        (0, 0, [(0, 0), (0, 0), (0, 0)]),
        (0, 9000, [(0, 9000), (0, 9001), (0, 9002)]),
    ],
)
def test_workers_have_ports_of_their_own(port: int, http_port: int, expected: list[tuple[int, int]]) -> None:
    found = shares(load({"workers": 3, "port": port, "http_port": http_port}))
    assert [(each.port, each.http_port) for each in found] == expected
