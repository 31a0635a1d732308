"""A process with a group of its own, and the lines that it writes.

Guarantee: after ``stop`` neither it nor any process of its group runs. Each wait has a deadline, and the error of a
missed one shows the log.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time

START_SECONDS = 240.0
STOP_SECONDS = 20.0


class LoggedProcess:
    """Standard output and error together are its log."""

    def __init__(self, command: list[str], environment: dict[str, str], *, has_input: bool = False) -> None:
        """``has_input``: its standard input is open until ``stop``; otherwise it is empty."""
        self.log: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line of the log that matches."""
        deadline = time.monotonic() + START_SECONDS
        with self._changed:
            while True:
                for line in self.log:
                    if found := re.search(pattern, line):
                        return found
                left = deadline - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    raise RuntimeError(f"no {pattern!r} in the log:\n" + "\n".join(self.log[-60:]))
                self._changed.wait(min(left, 0.5))

    def stop(self) -> None:
        """End it and all that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(STOP_SECONDS)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self.process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.log.append(line.rstrip())
                self._changed.notify_all()
