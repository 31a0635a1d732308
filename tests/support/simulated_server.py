"""A server without I/O: what one start of it holds of datasets, and what it says to puts, reads and actions."""

from __future__ import annotations

import heapq
import io
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flight_server.protocol import (
    Conflict,
    DatasetRequest,
    NotFound,
    SealRequest,
    ServerLost,
    StaleTicket,
    index_of,
    object_of,
)
from spark_client.servers import Report, ServerStart

from .chains import Gate, Schedule

Rows = dict[tuple[int, str], Mapping[int, int]]
"""Of each producer's attempt: the number of rows of each partition."""


class Storage:
    """Shared storage: the rows of each object, by its address. It is its own file system."""

    def __init__(self) -> None:
        self.objects: dict[str, Rows] = {}

    def store_of(self, address: str) -> tuple[Storage, str]:
        return self, address

    def open_input_file(self, path: str) -> io.BytesIO:
        if path not in map(index_of, self.objects):
            raise FileNotFoundError(path)
        return io.BytesIO()

    def delete_dir(self, path: str) -> None:
        for address in [each for each in self.objects if each.startswith(f"{path}/")]:
            del self.objects[address]


@dataclass
class HeldDataset:
    """What a server has of one generation: the rows of each producer and attempt, and those that are sealed."""

    generation: str
    lease_seconds: float
    until_seconds: float
    committed: Rows = field(default_factory=dict)
    sealed: Rows | None = None
    stored: str | None = None


class SimulatedServer:
    """One start of a server. One that is ``stopped`` keeps what it has, and what it is asked for then it does later.

    Args:
        lease_ended: is told of each dataset whose lease ends.
    """

    def __init__(
        self,
        start: ServerStart,
        schedule: Schedule,
        storage: Storage,
        lease_seconds: float,
        lease_ended: Callable[[SimulatedServer, str, HeldDataset], None],
    ) -> None:
        self.start = start
        self.is_alive = True
        self.stopped: Gate | None = None
        self.datasets: dict[str, HeldDataset] = {}
        self.locations = (start.location,)
        self._schedule = schedule
        self._storage = storage
        self._lease_seconds = lease_seconds
        self._lease_ended = lease_ended
        self._dropped: dict[str, str] = {}

    def kill(self) -> None:
        self.is_alive = False
        self.datasets.clear()
        if self.stopped is not None:
            self.stopped.open()

    def put(self, report: Report, generation: str, rows: Mapping[int, int], least_seconds: float) -> None:
        """Commit the attempt; the first put creates the dataset. Raises StaleTicket."""
        name = report.dataset
        held = self.datasets.get(name)
        if held is None or _run(held.generation) < _run(generation):
            if _run(self._dropped.get(name, "00")) >= _run(generation):
                raise StaleTicket(f"{name} was dropped")
            self.datasets.pop(name, None)
            lease_seconds = max(self._lease_seconds, least_seconds)
            held = self.datasets[name] = HeldDataset(generation, lease_seconds, 0.0)
            self._touch(held)
            self._watch(name, held)
        held = self._find(name, generation)
        if held.sealed is not None:
            raise StaleTicket("sealed")
        self._touch(held)
        held.committed[report.producer, report.attempt] = rows

    def answer(self, action: str, body: bytes) -> dict[str, Any]:
        """Raises FlightShuffleError."""
        match action:
            case "locations":
                return {"start": self.start.start, "servers": [*self.locations]}
            case "seal":
                return self._seal(SealRequest.parse(body))
            case "renew":
                request = DatasetRequest.parse(body, "renew", needed=True)
                self._touch(self._find(request.dataset, request.generation))
                return {}
            case "drop":
                request = DatasetRequest.parse(body, "drop", needed=True)
                dataset, generation = request.dataset or "", request.generation or ""
                self._dropped[dataset] = max(self._dropped.get(dataset, ""), generation)
                self._find(dataset, generation)
                self._end(dataset)
                return {}
        raise AssertionError(action)

    def read(self, dataset: str, generation: str, start: str) -> Rows:
        """The sealed rows. Raises NotFound."""
        self._check_start(start)
        held = self._find(dataset, generation)
        assert held.sealed is not None
        self._touch(held)
        return held.sealed

    def _seal(self, request: SealRequest) -> dict[str, Any]:
        assert request.generation is not None
        assert request.attempts is not None
        self._check_start(request.start)
        held = self._find(request.dataset, request.generation)
        if not request.attempts.items() <= held.committed.keys():
            raise Conflict("an attempt is unknown here, not committed")
        rows = {each: held.committed[each] for each in request.attempts.items()}
        assert held.sealed in (None, rows)
        held.sealed = rows
        self._touch(held)
        sizes = sum(map(Counter, rows.values()), Counter[int]())
        count = sizes.total()
        read_locations = [*self.locations]
        if request.offload is not None:
            generation, start = request.generation, self.start.start
            held.stored = object_of(request.offload, request.dataset, generation, start)
            self._storage.objects[held.stored] = rows
            read_locations.append(held.stored)
        return {
            "rows": count,
            "frames": len(rows),
            "bytes": count,
            "start": self.start.start,
            "read_locations": read_locations,
            **summed({str(each): size for each, size in sizes.items()}, request.largest),
        }

    def _check_start(self, start: str | None) -> None:
        if start != self.start.start:
            raise ServerLost("another start answers")

    def _find(self, dataset: str | None, generation: str | None) -> HeldDataset:
        held = self.datasets.get(dataset or "")
        if held is None:
            raise NotFound(f"no {dataset}")
        if held.generation != generation:
            raise StaleTicket(f"{dataset} has another generation")
        return held

    # Leases.

    def _touch(self, held: HeldDataset) -> None:
        held.until_seconds = self._schedule.now_seconds + held.lease_seconds

    def _watch(self, name: str, held: HeldDataset) -> None:
        def look() -> None:
            if not self.is_alive or self.datasets.get(name) is not held:
                return
            if held.until_seconds > self._schedule.now_seconds:
                self._watch(name, held)
                return
            self._end(name)
            self._lease_ended(self, name, held)

        self._schedule.after(held.until_seconds - self._schedule.now_seconds, look)

    def _end(self, name: str) -> None:
        """With the dataset its object is deleted."""
        held = self.datasets.pop(name)
        self._storage.objects.pop(held.stored or "", None)


def _run(generation: str) -> int:
    return int(generation[-2:], 16)


def summed(sizes: Mapping[str, int], largest: int | None) -> dict[str, Any]:
    """The part of a server's answer to a seal that tells the sizes of partitions, as ``SealTotals`` takes it."""
    if largest is None:
        return {"partition_bytes": dict(sizes)}
    named = dict(heapq.nlargest(largest, sizes.items(), key=lambda each: each[1]))
    return {"partition_bytes": named, "rest_bytes": sum(sizes.values()) - sum(named.values())}
