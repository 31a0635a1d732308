"""Generations: which incarnation of a dataset's name a ticket is for, and which start of a server made it."""

from __future__ import annotations

import itertools
import secrets

_PROCESS = secrets.token_hex(4)
_numbers = itertools.count(secrets.randbits(24))


def new_generation() -> str:
    """An opaque name that no other incarnation has, on this server or another."""
    return f"{_PROCESS}{next(_numbers) & 0xFFFFFFFF:08x}"


def from_this_process(generation: str) -> bool:
    """Whether this process made the generation; an earlier start of the server is another process."""
    return generation.startswith(_PROCESS)
