"""Many streams become one: a thread for each, one accounted queue, its spill."""

from .merged import AsyncMergedStream, merge, merge_async

__all__ = [
    "AsyncMergedStream",
    "merge",
    "merge_async",
]
