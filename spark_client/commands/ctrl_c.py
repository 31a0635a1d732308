"""Remembers Ctrl-C: gRPC loses a KeyboardInterrupt that is raised in Python that runs for it (pyarrow's middleware)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_seen = threading.Event()


def _interrupt(*_: object) -> None:
    _seen.set()
    raise KeyboardInterrupt


@contextmanager
def remembered() -> Iterator[None]:
    """In the block, if this is the main thread and Ctrl-C is not ignored."""
    _seen.clear()
    handled = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handled is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handled)


def seen() -> bool:
    """Whether it came since the block began."""
    return _seen.is_set()
