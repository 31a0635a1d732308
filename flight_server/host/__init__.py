"""The host and the process: shared directories, available memory, short pauses, and libraries kept out.

``spark_client.hosts``, the server and its configuration use it.
"""

from .directories import IDLE_SECONDS, HostDirectory, default_bases, locked, sweep
from .pauses import shorten_pauses

__all__ = [
    "IDLE_SECONDS",
    "HostDirectory",
    "default_bases",
    "locked",
    "shorten_pauses",
    "sweep",
]
