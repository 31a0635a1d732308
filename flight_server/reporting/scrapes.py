"""The answer to Prometheus. Its library, 4 MiB and up to a tenth of a second, is imported for the first scrape."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .metrics import Metrics
    from .reports import Observed


async def scrape(server: Observed) -> tuple[bytes, str]:
    """The text of all metrics, and its content type. Cancelling is safe."""
    metrics = (await asyncio.to_thread(_imported))(server)
    return await metrics.render(), metrics.content_type


def _imported() -> type[Metrics]:
    from .metrics import Metrics  # noqa: PLC0415  # as said above

    return Metrics
