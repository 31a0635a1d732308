"""Merges many streams into one: a thread for each, one accounted queue, a scratch file. For ``client`` and ``jobs``."""

from .merged import AsyncMergedStream, merge, merge_async

__all__ = [
    "AsyncMergedStream",
    "merge",
    "merge_async",
]
