"""The portions of a dataset: which server holds which accepted attempts, and what it says that they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flight_server.protocol import ServerLost

from .driver_calls import ServerStart
from .partition_sizes import PartitionSizes


def server_lost(server: ServerStart, dataset: str, run: int) -> ServerLost:
    """The error of a server that is gone with data that no other server has. Its ``detail`` names ``server``,
    ``start``, ``dataset`` and ``run``.
    """
    start = f" (start {server.start})" if server.start else ""
    return ServerLost(
        f"the server {server.location}{start} is gone, and with it data of {dataset} that no other server has; "
        f"this was run {run} of the job that wrote it: run it again, or keep two copies",
        server=server.location,
        start=server.start,
        dataset=dataset,
        run=run,
    )


@dataclass(slots=True)
class WrittenPortion:
    """What is accepted of a dataset, among what the tasks wrote that chose the server ``name``.

    Args:
        copies: the living servers that have all of the ``attempts``, which are by producer.
        sealed: one of them has sealed it.
        stored: an object in shared storage has it, too: it needs no copy.
    """

    name: ServerStart
    attempts: dict[int, str] = field(default_factory=dict)
    copies: list[ServerStart] = field(default_factory=list)
    sealed: bool = False
    stored: bool = False


@dataclass(slots=True)
class SealTotals:
    """The sums of the servers' answers to the seals of one dataset, each portion once."""

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
    accepted: Mapping[tuple[int, str], tuple[ServerStart, ...]],
    is_living: Callable[[ServerStart], bool],
    also: ServerStart | None = None,
) -> dict[ServerStart, WrittenPortion]:
    """The portions, by name. One without copies is lost.

    Args:
        accepted: the servers that committed each producer's accepted attempt, the one that names the portion first.
        also: a server that has a portion without attempts, too.
    """
    portions: dict[ServerStart, WrittenPortion] = {}
    holding = Counter[tuple[ServerStart, ServerStart]]()
    if also is not None:
        portions[also] = WrittenPortion(also)
        holding[also, also] = 0
    for (producer, attempt), servers in accepted.items():
        portions.setdefault(servers[0], WrittenPortion(servers[0])).attempts[producer] = attempt
        holding.update((servers[0], server) for server in servers)
    for (name, server), attempts in holding.items():
        if attempts == len(portions[name].attempts) and is_living(server):
            portions[name].copies.append(server)
    return portions
