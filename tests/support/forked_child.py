"""What a forked child of a test's process can do."""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Callable

_SECONDS = 30


def in_child(call: Callable[[], object]) -> None:
    """Make the call in a forked child, which ends with it; an error there, or a child that hangs, fails the test."""
    gc.collect()  # a child must not destroy the objects of other tests
    pid = os.fork()
    if pid == 0:
        signal.alarm(_SECONDS)
        code = 1
        try:
            call()
            code = 0
        except BaseException:  # noqa: BLE001 (the code tells the test)
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
