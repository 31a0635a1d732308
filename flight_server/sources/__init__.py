"""Datasets of kind ``source``: the server pulls them itself, from files, S3 or another server, when they are read.

``node`` makes :class:`Sources` for the action ``create``.
"""

from .creation import Allowed, Sources
from .pulls import Pulling

__all__ = [
    "Allowed",
    "Pulling",
    "Sources",
]
