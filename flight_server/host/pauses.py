"""Pauses: keeps threads and garbage collection from stopping the event loop for long, in a process that only serves."""

from __future__ import annotations

import gc
import sys

SWITCH_SECONDS = 0.0005


def shorten_pauses() -> None:
    """Call once, after the imports.

    A thread that compacts or reads versions gives the interpreter's lock back after ``SWITCH_SECONDS``. The objects of
    all modules are left out of collections: one of them all takes some 50 ms, in which no thread runs.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
