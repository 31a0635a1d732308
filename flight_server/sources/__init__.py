"""What a dataset of kind ``source`` is pulled from: files, S3, another server."""

from .creation import Allowed, Sources
from .pulls import Pulling

__all__ = [
    "Allowed",
    "Pulling",
    "Sources",
]
