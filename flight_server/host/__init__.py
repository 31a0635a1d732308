"""The host that a process runs on: shared directories, available memory, and libraries kept out of the process.

``spark_client.hosts``, the server and its configuration use it.
"""

from .directories import IDLE_SECONDS, HostDirectory, default_bases, locked, sweep

__all__ = [
    "IDLE_SECONDS",
    "HostDirectory",
    "default_bases",
    "locked",
    "sweep",
]
