"""A process that stands still for some seconds: it loses nothing, and answers nobody meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Silence:
    """Of one process, once; also a context manager after which the process goes on in any case."""

    def __init__(self, seconds: float) -> None:
        self._pid = 0
        self._began = threading.Lock()
        self._timer = threading.Timer(seconds, self._signal, (signal.SIGCONT,))

    def begin(self, pid: int) -> None:
        """The process stands still from now on. Only the first call counts."""
        if self._began.acquire(blocking=False):
            self._pid = pid
            self._signal(signal.SIGSTOP)
            self._timer.start()

    @property
    def is_over(self) -> bool:
        """Whether it has begun, and the process goes on."""
        return self._timer.finished.is_set()

    def wait(self) -> None:
        """Return when it goes on."""
        self._timer.join()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._began.locked():
            self._timer.join()
            self._signal(signal.SIGCONT)
