"""The reports as JSON that is made when there is room for it (``transfer.answer_room``), and the most that each has."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from flight_server.datasets import Caller
from flight_server.protocol import dump_json
from flight_server.transfer import MadeAnswer

from .pages import ListedPage, Page
from .reports import Observed, datasets, statistics, why

_ENTRY_BYTES = 4096
"""Of a dataset, a partition or an attempt in ``statistics``: its JSON, and as much of its objects."""
_ROW_BYTES = 512
"""Of a wait, or a dataset in the shorter list."""


def statistics_answer(server: Observed, page: ListedPage, caller: Caller) -> MadeAnswer:
    """Raises NotFound for an unknown dataset."""
    if page.dataset is None:
        entries = min(page.limit, len(server.catalogue))
    else:
        dataset = caller.find(page.dataset)
        counts = (dataset.partition_count, len(dataset.attempts), len(dataset.servers))
        entries = sum(min(page.limit, count) for count in counts)
    return MadeAnswer(entries * _ENTRY_BYTES, lambda: _as_json(statistics(server, page, caller)))


def why_answer(server: Observed, page: Page, caller: Caller) -> MadeAnswer:
    """The answer to ``why``."""
    size_bytes = min(page.limit, len(server.waits)) * _ROW_BYTES
    return MadeAnswer(size_bytes, lambda: _as_json(why(server, page, caller)))


def datasets_answer(server: Observed, prefix: str, page: Page, caller: Caller) -> MadeAnswer:
    """The answer of ``/v1/datasets``."""
    size_bytes = min(page.limit, len(server.catalogue)) * _ROW_BYTES
    return MadeAnswer(size_bytes, lambda: _as_json(datasets(prefix, page, caller)))


async def _as_json(report: Awaitable[dict[str, Any]]) -> bytes:
    return dump_json(await report)
