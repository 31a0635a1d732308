"""Runs the collector at almost every allocation while a thread hands work to an executor; as a module, a server so.

A finalizer that waits for a lock stands still for ever if the collector runs it in a thread that holds that lock. The
collector may run at any allocation, so without this such a fault shows once in thousands of calls.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

SERVER = (sys.executable, "-m", "tests.support.collecting")
_submit = ThreadPoolExecutor.submit


def install() -> None:
    """For the rest of the process."""
    usual = gc.get_threshold()

    def submit(
        self: ThreadPoolExecutor, work: Callable[..., Any], /, *given: Any, **more: Any
    ) -> Future[Any]:
        gc.set_threshold(1, 1, 1)
        try:
            return _submit(self, work, *given, **more)
        finally:
            gc.set_threshold(*usual)

    ThreadPoolExecutor.submit = submit  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    from flight_server.__main__ import main

    install()
    main()
