"""Merges many streams into one: a thread for each and one accounted queue."""

from .merged import AsyncMergedStream, merge, merge_async
