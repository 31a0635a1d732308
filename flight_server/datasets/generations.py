"""Generations: which incarnation of a dataset's name a ticket is for, and which start of a server made it."""

from __future__ import annotations

import itertools
import os
import secrets


class _Process:
    """What no other process has; a forked one draws anew."""

    def __init__(self) -> None:
        self.draw()

    def draw(self) -> None:
        self.prefix = secrets.token_hex(4)
        self.numbers = itertools.count(secrets.randbits(24))


_process = _Process()
os.register_at_fork(after_in_child=_process.draw)


def new_generation() -> str:
    """An opaque name that no other incarnation has, on this server or another."""
    return f"{_process.prefix}{next(_process.numbers) & 0xFFFFFFFF:08x}"


def from_this_process(generation: str) -> bool:
    """Whether this process made the generation; an earlier start of the server is another process."""
    return generation.startswith(_process.prefix)
