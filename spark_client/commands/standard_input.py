"""Standard input, as a file that Arrow reads and Ctrl-C ends.

Arrow calls ``read`` from its own code, where Python does not look for signals: one that comes just before a read
begins to wait would not end it. So each read waits for signals as well, which write to a pipe. CSV is read ahead in a
thread of Arrow's, which must have left Python before the interpreter ends: otherwise it aborts the process.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa


class StandardInput(io.RawIOBase):
    """What is left of standard input; its descriptor stays open."""

    def __init__(self, signals: int, signalled: int) -> None:
        super().__init__()
        self._signals = signals
        self._signalled = signalled

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        source = sys.stdin.fileno()
        waiting = select.poll()
        for each in (source, self._signals):
            waiting.register(each, select.POLLIN)
        if any(ready == self._signals for ready, _ in waiting.poll()):
            raise InterruptedError  # in a thread of Arrow's; in the main thread Python has raised KeyboardInterrupt
        return os.readv(source, [buffer])

    def read_ahead(self, reader: Any) -> Iterator[Any]:
        """The batches of a reader that reads this in a thread. Raises KeyboardInterrupt."""
        try:
            yield from reader
        except OSError:
            time.sleep(0)  # lets Python handle the signal here, where nothing has to be closed yet
            raise

    def end(self, reader: Any) -> None:
        """End the thread's reads; returns when there are none."""
        os.write(self._signalled, b"\0")
        with suppress(OSError, pa.ArrowException):
            for _ in reader:
                pass


@contextmanager
def standard_input() -> Iterator[StandardInput]:
    """In the main thread, and one at a time."""
    signals, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    try:
        yield StandardInput(signals, signalled)
    finally:
        signal.set_wakeup_fd(before)
        os.close(signals)
        os.close(signalled)
