"""Merges many streams into one: a thread for each, one accounted queue, a scratch file. For ``client`` and ``jobs``.
``gathering`` uses its scratch file.
"""

from .merged import AsyncMergedStream, merge, merge_async
from .scratch import Parked, Scratch

__all__ = [
    "AsyncMergedStream",
    "Parked",
    "Scratch",
    "merge",
    "merge_async",
]
