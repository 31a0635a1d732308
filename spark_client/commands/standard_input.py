"""Standard input, as a file that Arrow reads and Ctrl-C ends.

Arrow calls ``read`` from its own code, and of CSV in a thread of its own. A signal that comes just before such a read
begins to wait would not end it: Python looks for signals between its own instructions only. So each read waits for the
signal as well, which writes to a pipe.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Interruptible(io.RawIOBase):
    def __init__(self, descriptor: int, signals: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._signals = signals
        self._waiting = select.poll()
        for each in (descriptor, signals):
            self._waiting.register(each, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        ready = [descriptor for descriptor, _ in self._waiting.poll()]
        if self._signals in ready:  # and no KeyboardInterrupt: this is a thread of Arrow's
            raise InterruptedError
        return os.readv(self._descriptor, [buffer])


@contextmanager
def standard_input(*, buffered: bool) -> Iterator[Any]:
    """A binary file of what is left of standard input. In the main thread only, and of one caller at a time."""
    signals, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    try:
        raw = _Interruptible(sys.stdin.fileno(), signals)
        yield io.BufferedReader(raw) if buffered else raw
    finally:
        signal.set_wakeup_fd(before)
        os.close(signals)
        os.close(signalled)


def until_interrupted(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches. Raises KeyboardInterrupt for a read in a thread of Arrow's that Ctrl-C ended."""
    try:
        yield from batches
    except OSError:
        time.sleep(0)  # handles the signal here, where nothing has to be closed yet
        raise
