"""``top``: what it shows, on a terminal and without one; the terminal is as it was afterwards."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_client import ShuffleClient
from tests.support.commands import Command

COMMAND = (sys.executable, "-m", "spark_client.cli")
ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.fixture
def client(command: Command) -> Iterator[ShuffleClient]:
    with ShuffleClient(command.location) as found:
        yield found


def test_without_a_terminal_it_prints_once(client: ShuffleClient, command: Command) -> None:
    client.put("t", pa.table({"n": range(1000)}))
    said = command("top", "--interval", "0.05")
    assert said.code == 0
    assert "\x1b" not in said.out
    for text in ("puts/s", "memory", "frames", "disk", "serving", command.location):
        assert text in said.out


def test_json_has_rates_pools_waits_readers_and_servers(command: Command) -> None:
    said = command("top", "--interval", "0.05", "--count", "2", "--json")
    assert len(said.lines) == 2
    for each in said.lines:
        assert each.keys() == {"per_second", "memory", "disk", "waits", "slowest_readers", "servers"}
        assert each["per_second"]["bytes_in"] == 0
        assert each["servers"][0]["location"] == command.location


def test_a_stream_that_waits_is_shown(client: ShuffleClient, command: Command) -> None:
    from spark_client.commands.printing import console
    from spark_client.commands.top import Look, _shown

    look = Look.take(client)
    waits = [
        {
            "waiting_for": "reader",
            "seconds": 3.0,
            "dataset": "open",
            "partition": 0,
            "producer": 1,
            "peer": "p",
        }
    ]
    readers = [{"dataset": "open", "partition": 0, "peer": "slow-peer", "lag_bytes": 1 << 20}]
    gone = {"location": "grpc://gone:1", "gone": "it has ended"}
    said = {**look.statistics, "slowest_readers": readers, "servers": [*look.statistics["servers"], gone]}
    with (screen := console()).capture() as captured:
        screen.print(_shown(Look(look.seconds + 1, said, waits), look))
    for text in ("1 streams wait", "3 s", "slow-peer", "1.0 MiB", "gone: it has ended"):
        assert text in captured.get()


@pytest.mark.parametrize("ended_by", ["q", "ctrl-c"])
def test_a_key_ends_it_and_the_terminal_is_as_it_was(command: Command, ended_by: str) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(
        [*COMMAND, "top", "-s", command.location], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        seen = b""
        while b"serving" not in seen:
            seen += os.read(ours, 65_536)
        assert ENTER_SCREEN in seen
        assert termios.tcgetattr(theirs) != before
        if ended_by == "q":
            os.write(ours, b"q")
        else:
            process.send_signal(signal.SIGINT)
        # A terminal takes what is written; the command waits until it has.
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.05)[0]:
                seen += os.read(ours, 65_536)
        assert process.returncode == (0 if ended_by == "q" else 130)
    assert seen.rstrip().endswith(LEAVE_SCREEN) or LEAVE_SCREEN in seen.rpartition(ENTER_SCREEN)[2]
    assert b"Traceback" not in seen
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
