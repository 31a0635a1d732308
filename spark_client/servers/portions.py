"""The portions of a dataset: which server holds which accepted attempts, and what it says that they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flight_server.protocol import ServerLost

from .driver_calls import ServerStart
from .partition_sizes import PartitionSizes


def server_lost(server: ServerStart, dataset: str, run: int) -> ServerLost:
    """The error of a server that is gone with its data. Its ``detail`` names ``server``, ``start``, ``dataset`` and
    ``run``.
    """
    start = f" (start {server.start})" if server.start else ""
    return ServerLost(
        f"the server {server.location}{start} is gone, and with it data of {dataset}; this was run {run} of the "
        "job that wrote it: run it again, or let the exchange offload it",
        server=server.location,
        start=server.start,
        dataset=dataset,
        run=run,
    )


@dataclass(slots=True)
class WrittenPortion:
    """What is accepted of a dataset on one server.

    Args:
        attempts: by producer.
        lives: the server is not lost.
        stored: an object in shared storage has it, too: it needs no server.
    """

    server: ServerStart
    attempts: dict[int, str] = field(default_factory=dict)
    lives: bool = True
    stored: bool = False


@dataclass(slots=True)
class SealTotals:
    """The sums of the servers' answers to the seals of one dataset."""

    sizes: PartitionSizes
    rows: int = 0
    frames: int = 0
    size_bytes: int = 0

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add what a portion has."""
        self.rows += answer["rows"]
        self.frames += answer["frames"]
        self.size_bytes += answer["bytes"]
        self.sizes.add(answer)


def portions_of(
    accepted: Mapping[tuple[int, str], ServerStart], also: ServerStart | None = None
) -> dict[ServerStart, WrittenPortion]:
    """The portions, by server.

    Args:
        accepted: the server that committed each producer's accepted attempt.
        also: a server that has a portion without attempts, too.
    """
    portions = {} if also is None else {also: WrittenPortion(also)}
    for (producer, attempt), server in accepted.items():
        portions.setdefault(server, WrittenPortion(server)).attempts[producer] = attempt
    return portions
