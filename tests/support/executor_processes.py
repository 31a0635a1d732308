"""The processes of a cluster's hosts: executors, their Python workers, and the servers that tasks have started."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spark_client import ShuffleClient
from tests.support.processes import parent


def servers_of(client: ShuffleClient) -> list[int]:
    """The processes of the servers that demand the client's token, without the driver's."""
    found = []
    secret = client.headers["authorization"].removeprefix("Bearer ")
    token = f"FLIGHT_SERVER_TOKEN={secret}".encode()
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            try:
                command = (directory / "cmdline").read_bytes()
                if b"--exit-with-process" in command and token in (directory / "environ").read_bytes().split(
                    b"\0"
                ):
                    found.append(int(directory.name))
            except OSError:
                pass  # it has ended, or is another user's
    return found


def executor_of(server: int) -> int:
    """The JVM that a server ends with."""
    options = Path(f"/proc/{server}/cmdline").read_text().split("\0")
    return int(options[options.index("--exit-with-process") + 1])


@dataclass(frozen=True)
class TaskHost:
    """Where a task runs: its own process, its executor, its executor's server, and all process groups of its host."""

    task: int
    executor: int
    server: int
    groups: tuple[int, ...]

    @classmethod
    def of(cls, client: ShuffleClient, task: int) -> TaskHost:
        """That of a task's process."""
        executor = task
        while Path(f"/proc/{executor}/comm").read_text() != "java\n":
            executor = parent(executor)
        (server,) = (each for each in servers_of(client) if executor_of(each) == executor)
        # Spark's worker has one with its executors, and Python's daemon one with its workers.
        return cls(task, executor, server, (os.getpgid(executor), os.getpgid(task), server))

    def signal(self, victim: str, number: signal.Signals) -> None:
        """To the ``task``, ``executor``, ``server`` or the whole ``host``."""
        if victim != "host":
            os.kill(getattr(self, victim), number)
            return
        # A killed host's server, and its Python, end with the executor.
        for group in self.groups if number is signal.SIGSTOP else self.groups[:1]:
            os.killpg(group, number)

    def wake(self) -> None:
        """Those that were stopped go on."""
        for group in self.groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGCONT)
