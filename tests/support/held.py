"""What a server holds of messages, by its own statistics."""

from __future__ import annotations

from typing import Any


def message_bytes(statistics: dict[str, Any]) -> int:
    """All that is reserved in RAM but what is kept of datasets, partitions and frames until they go."""
    memory = statistics["memory"]
    return int(memory["used_bytes"] - memory["accounts"]["frames"]["accounts"]["metadata"]["used_bytes"])
