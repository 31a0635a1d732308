"""Merges many streams into one: a thread for each and one accounted queue. So a dataset is read by its ref."""

from .dataset_ref import DatasetRef, Portion, ShareRead
from .merge_queue import fresh
from .merged import AsyncMergedStream, in_thread, merge, merge_async
