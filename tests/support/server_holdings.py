"""What a server holds for its clients, to be compared before and after a test."""

from __future__ import annotations

from typing import Any

from spark_client import ShuffleClient


def held(client: ShuffleClient) -> dict[str, Any]:
    """Datasets, memory by account, disk, and the waits of streams."""
    found = client.statistics()
    accounts = found["memory"]["accounts"]
    return {
        "datasets": sorted(found["datasets"]),
        "memory": {name: account["used_bytes"] for name, account in accounts.items()},
        "disk": found["disk"]["used_bytes"],
        "waits": found["waits"],
        "staged_writes": found["staged"]["count"],
    }
