"""Generations: which incarnation of a dataset's name a ticket is for, and which process made it."""

from __future__ import annotations

import itertools
import os
import secrets


class _Process:
    """A random prefix of this process; a forked child draws its own."""

    def __init__(self) -> None:
        self.draw()

    def draw(self) -> None:
        self.prefix = secrets.token_hex(4)
        self.numbers = itertools.count(secrets.randbits(24))


_process = _Process()
os.register_at_fork(after_in_child=_process.draw)


def new_generation() -> str:
    """An opaque name that no other incarnation on any server has: this process's random bits and a number."""
    return f"{_process.prefix}{next(_process.numbers) & 0xFFFFFFFF:08x}"


def from_this_process(generation: str) -> bool:
    """Whether this process, so this start of the server, made it."""
    return generation.startswith(_process.prefix)
