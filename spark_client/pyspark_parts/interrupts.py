"""Ctrl-C during a call of the JVM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """An error that hides a ``KeyboardInterrupt`` of the block leaves it as one. The signal cuts off the answer of the
    JVM; PySpark's handler and Py4J then ask the connection, which has no answer for them, and raise that.
    """
    handled = sys.exc_info()[1]
    try:
        yield
    except Exception as error:
        found: BaseException | None = error
        while found is not None and found is not handled:
            if isinstance(found, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            found = found.__cause__ or found.__context__
        raise
