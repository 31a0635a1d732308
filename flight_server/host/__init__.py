"""What the processes of one host share, and what a process learns of its host."""

from .directories import IDLE_SECONDS, HostDirectory, default_bases, locked, sweep

__all__ = [
    "IDLE_SECONDS",
    "HostDirectory",
    "default_bases",
    "locked",
    "sweep",
]
