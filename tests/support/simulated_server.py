"""A server without I/O: what one start of it holds of datasets, and what it says to puts, seals, drops and renewals."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flight_server.protocol import InvalidRequest, NotFound, ServerLost, StaleTicket
from spark_client.connection import Unreachable
from spark_client.servers import Report, Seal, ServerStart


@dataclass
class HeldDataset:
    """What a server has of one generation: the rows of each producer and attempt, and those that are sealed.

    ``known``: the driver was told of something that is in it.
    """

    generation: str
    committed: dict[tuple[int, str], Mapping[int, int]] = field(default_factory=dict)
    sealed: dict[tuple[int, str], Mapping[int, int]] | None = None
    known: bool = False


@dataclass
class SimulatedServer:
    """One start of a server. A task's rows are counts by partition. ``cut`` off, it keeps what it has."""

    start: ServerStart
    lives: bool = True
    cut: bool = False
    datasets: dict[str, HeldDataset] = field(default_factory=dict)
    drawn: int = 0

    def create(self, dataset: str) -> str:
        self._check()
        self.drawn += 1
        generation = f"{self.start.start}/{self.drawn}"
        self.datasets[dataset] = HeldDataset(generation)
        return generation

    def put(self, report: Report, rows: Mapping[int, int], *, creates: bool) -> None:
        """Raises NotFound, StaleTicket, or Unreachable."""
        self._check()
        held = self.datasets.get(report.dataset)
        if creates and (held is None or _run(held.generation) < _run(report.generation)):
            held = self.datasets[report.dataset] = HeldDataset(report.generation)
        held = self._find(report.dataset, report.generation)
        if held.sealed is not None:
            raise StaleTicket("sealed")
        held.committed[report.producer, report.attempt] = rows

    def seal(self, call: Seal) -> dict[str, Any]:
        """Raises as :meth:`put`, InvalidRequest, and ServerLost: it is another start that is to seal."""
        self._check()
        if call.server.start not in ("", self.start.start):
            raise ServerLost("another start answers")
        held = self._find(call.dataset, call.generation)
        if not call.attempts.items() <= held.committed.keys():
            # It was dropped, and a put of a cancelled job has created it again.
            raise InvalidRequest("an attempt is not there")
        found = {each: held.committed[each] for each in call.attempts.items()}
        assert held.sealed in (None, found)
        held.sealed = found
        sizes = sum(map(Counter, found.values()), Counter[int]())
        rows = sum(sizes.values())
        answer = {"rows": rows, "frames": len(found), "bytes": rows}
        return {**answer, **summed({str(each): size for each, size in sizes.items()}, call.largest)}

    def drop(self, dataset: str, generation: str) -> None:
        self._check()
        self._find(dataset, generation)
        del self.datasets[dataset]

    def renew(self, dataset: str, generation: str) -> None:
        self._check()
        self._find(dataset, generation)

    def _check(self) -> None:
        if not self.lives or self.cut:
            raise Unreachable(f"{self.start.location} cannot be reached")

    def _find(self, dataset: str, generation: str) -> HeldDataset:
        held = self.datasets.get(dataset)
        if held is None:
            raise NotFound(f"no {dataset}")
        if held.generation != generation:
            raise StaleTicket(f"{dataset} has another generation")
        return held


def _run(generation: str) -> int:
    return int(generation[-2:], 16)


def summed(sizes: Mapping[str, int], largest: int | None) -> dict[str, Any]:
    """The part of a server's answer to a seal that tells the sizes of partitions, as ``PartitionSizes`` wants it."""
    if largest is None:
        return {"partition_bytes": dict(sizes)}
    named = dict(heapq.nlargest(largest, sizes.items(), key=lambda each: each[1]))
    return {"partition_bytes": named, "rest_bytes": sum(sizes.values()) - sum(named.values())}
