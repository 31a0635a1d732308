"""Owners of holds, in words for the people who see the hold; see ``protocol.HoldRequest``."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from pathlib import Path

from flight_server.protocol import MAX_OWNER_CHARACTERS


def owner(*parts: str | None) -> str:
    """The parts that there are as one text that a hold takes."""
    text = ", ".join(part for part in parts if part)
    return "".join(each if each.isprintable() else " " for each in text)[:MAX_OWNER_CHARACTERS]


def user() -> str | None:
    """The name of this process's user, if it has one."""
    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):  # a container's user may have no name
        return None


def owner_of_process() -> str:
    """Of this process: its program, number, host and user."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    return owner(f"{program}, process {os.getpid()} on {socket.gethostname()}", user())
