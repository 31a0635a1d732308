"""DatasetRef: one generation of a dataset and where it is read, as a value that is pickled into tasks.

Guarantee: :meth:`DatasetRef.read` gives the whole partition of this one generation, or an error (``merged``).

Only the driver asks the server: all partitions are read at the same locations. It also knows from the seal which
partitions have no rows: no task asks for those.

Servers
    A dataset has a portion for each server that holds a part of it, with the server's start; of one that any start of
    its server may hold, none. A read of one or more partitions opens one stream to each server
    (``lanes.PortionCursor``); of each partition the frames of a server come in order, those of several in the order of
    their arrival. So the reader of a partition, or of two that are to be joined, need not know which servers hold it.
    Only where the server counts a partition's readers, each has a stream of its own.

    Frames are numbered in each portion. In slices (:meth:`DatasetRef.plan`) those of the portion ``i`` have the numbers
    from ``i * PORTION_FRAMES`` on: so a slice names its portion, and may go on in the next ones.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

from pyarrow import flight

from flight_server.memory import MemoryPool
from flight_server.protocol import (
    PLAN,
    FlightShuffleError,
    PlanRequest,
    Ticket,
    bulk_path,
    is_object,
    parse_json,
)
from spark_client.connection import Closable, RemoteServer, about
from spark_client.lanes import PartitionCursor, PortionCursor, ReadStream
from spark_client.spill import TaskMemory, reading_budget

from .merged import MergedStream, merge

PORTION_FRAMES = 1 << 40
_PLANS_AT_ONCE = 32


@dataclass(frozen=True)
class Portion:
    """The part of a dataset that one server holds. All portions of a partition, in any order, are the partition.

    Args:
        locations: where it is read; without the paths of partitions.
        filled: a bit for each partition, from the lowest of the first byte on, which is 0 if the portion has no rows
            of it; None if that is not known.
        start: that of the server, if the dataset is spread over several.
    """

    locations: tuple[str, ...]
    filled: bytes | None = None
    start: str | None = None

    @property
    def servers(self) -> list[str]:
        """The locations of Flight servers that have it."""
        return [each for each in self.locations if each.startswith("grpc")]

    @property
    def stored(self) -> str | None:
        """The address of the object that has its rows, too."""
        return self.locations[-1] if is_object(self.locations[-1]) else None

    def has_rows(self, partition: int) -> bool:
        """False if it is known to have none of the partition."""
        filled, at = self.filled, partition >> 3
        return filled is None or (at < len(filled) and bool(filled[at] >> (partition & 7) & 1))


@dataclass(frozen=True)
class DatasetRef:
    """Thread-safe; equal for equal fields.

    Args:
        server: the one that is asked about the dataset; its credentials and options are used for all locations.
        most_bytes: bounds a merge's memory below the client's budget.
        reader: who reads, where retention counts readers: a task that is tried again under the same name is one reader.
    """

    server: RemoteServer
    dataset: str
    generation: str
    portions: tuple[Portion, ...]
    most_bytes: int | None = None
    reader: str | None = None

    @classmethod
    def find(cls, server: RemoteServer, dataset: str, generation: str | None = None) -> Self:
        """Ask the server for the locations of this generation, or of the name's present one. Raises NotFound: the
        server has no such dataset.
        """
        with about(dataset, server.location):
            ref = cls.of(server, dataset, server.flight_info(dataset))
        return ref if generation is None else replace(ref, generation=generation)

    @classmethod
    def of(cls, server: RemoteServer, dataset: str, info: flight.FlightInfo) -> Self:
        """From a FlightInfo: an endpoint for each portion of each partition, one partition after the other; or, of a
        dataset that is spread over servers, one for each server.
        """
        first: Ticket | None = None
        portions: list[Portion] = []
        for endpoint in info.endpoints:
            ticket = Ticket.parse(endpoint.ticket.ticket)
            first = first or ticket
            if ticket.partition != first.partition:
                break
            partition = (ticket.partition or 0) if ticket.partitions is None else None
            path = bulk_path(dataset, partition, ticket.generation, start=ticket.start)
            locations = (location.uri.decode().removesuffix(path) for location in endpoint.locations)
            portions.append(Portion(tuple(locations), start=ticket.start))
        if first is None:
            raise FlightShuffleError(
                f"{server.location} says of dataset {dataset!r} no place where it could be read",
                dataset=dataset,
            )
        return cls(server, dataset, first.generation or "", tuple(portions))

    @property
    def is_spread(self) -> bool:
        """Whether several servers hold portions of each partition."""
        return len(self.portions) > 1

    @property
    def shares_streams(self) -> bool:
        """Whether several partitions may be read over one stream for each server."""
        return self.reader is None

    def plan(self, partitions: Sequence[int], target_bytes: int) -> dict[int, list[tuple[int, int, int]]]:
        """The slices of these partitions, of at most about ``target_bytes``, each as first frame, end and stored bytes;
        together all frames, in the order of the portions. None where portions have objects: a slice is read at one
        place only.

        Raises:
            FlightShuffleError: as ``RemoteServer.action``, of any server that holds some of it.
        """
        if not self.portions or any(each.stored is not None for each in self.portions):
            return {}

        def pieces_of(portion: Portion) -> list[tuple[int, int, int, int]]:
            filled = tuple(each for each in partitions if portion.has_rows(each))
            if not filled:
                return []
            request = PlanRequest(self.dataset, target_bytes, self.generation, filled, portion.start)
            servers = portion.servers if portion.start is not None else []
            server = self.server.at(servers[0]) if servers else self.server
            pieces: list[tuple[int, int, int, int]] = server.action(PLAN, request.encode())["pieces"]
            return pieces

        with ThreadPoolExecutor(min(_PLANS_AT_ONCE, len(self.portions)), "plan") as threads:
            answers = [*threads.map(pieces_of, self.portions)]
        slices: dict[int, list[tuple[int, int, int]]] = {}
        for number, pieces in enumerate(answers):
            for partition, first, end, size_bytes in pieces:
                place, of_partition = number * PORTION_FRAMES, slices.setdefault(partition, [])
                if of_partition:  # so that no slice begins at the end of a portion
                    of_partition[-1] = (of_partition[-1][0], place + first, of_partition[-1][2])
                of_partition.append((place + first, place + end, size_bytes))
        return slices

    def stream(self, partition: int, first: int = 0, until: int | None = None) -> ReadStream:
        """The stream of the partition, or of its frames from ``first`` to before ``until``, not opened yet. Raises
        ValueError: the dataset has several portions: numbers of frames are those of one.
        """
        if len(self.portions) > 1:
            raise ValueError(f"dataset {self.dataset!r} is spread over servers: its frames have no numbers")
        return self._frame_stream(self.portions[0], partition, first, until)

    def read(self, partition: int, memory: TaskMemory | None = None) -> Generator[Any, None, None]:
        """The partition's batches as they arrive, each portion's in order. At the end ``memory`` counts those that
        waited on disk.
        """
        return self.read_each([partition], memory)

    def read_frames(
        self, partition: int, first: int, until: int, memory: TaskMemory | None = None
    ) -> Generator[Any, None, None]:
        """The batches of the partition's frames from ``first`` to before ``until``, as :meth:`read`, but in the order
        of the frames.
        """
        streams = []
        for number in range(first // PORTION_FRAMES, (until - 1) // PORTION_FRAMES + 1):
            portion, place = self.portions[number], number * PORTION_FRAMES
            end = until - place if until < place + PORTION_FRAMES else None
            if portion.has_rows(partition):
                streams.append(self._frame_stream(portion, partition, max(0, first - place), end))
        return self._merged(streams, memory)

    def read_each(
        self, partitions: Sequence[int], memory: TaskMemory | None = None
    ) -> Generator[Any, None, None]:
        """The batches of one or more partitions, one after the other, as :meth:`read`. All are read at once."""
        if self.reader is None:
            return self._merged(self.portion_streams(partitions), memory, parts=len(partitions))
        # The server counts the readers of each partition.
        streams = [
            self._frame_stream(portion, partition)
            for partition in partitions
            for portion in self.portions
            if portion.has_rows(partition)
        ]
        return self._merged(streams, memory)

    @staticmethod
    def spread_partitions(info: flight.FlightInfo) -> int | None:
        """How many partitions a dataset has that is spread over servers; None of another one, which has an endpoint for
        each.
        """
        facts: bytes = info.app_metadata
        return parse_json(facts, "the FlightInfo").get("partitions") if facts.startswith(b"{") else None

    def portion_streams(self, partitions: Sequence[int]) -> list[ReadStream]:
        """One stream for each server that may have rows of these partitions; the part of each is its place."""
        streams = []
        for portion in self.portions:
            parts = {each: place for place, each in enumerate(partitions) if portion.has_rows(each)}
            if parts:
                cursor = PortionCursor(
                    self.dataset, parts, generation=self.generation or None, start=portion.start
                )
                streams.append(self._stream(cursor, portion.locations))
        return streams

    def _frame_stream(
        self, portion: Portion, partition: int, first: int = 0, until: int | None = None
    ) -> ReadStream:
        # Of several slices of a partition each has its own name: the server takes one stream of a name at a time.
        reader = None if self.reader is None else f"{self.reader}.{first}-{'' if until is None else until}"
        ticket = Ticket(
            self.dataset, partition, self.generation or None, first, reader, until=until, start=portion.start
        )
        # An object has partitions, and no frames by their numbers.
        locations = [each for each in portion.locations if not is_object(each)]
        return self._stream(PartitionCursor(ticket), locations)

    def _stream(self, cursor: PartitionCursor | PortionCursor, locations: Sequence[str]) -> ReadStream:
        return ReadStream(self.server, cursor, locations=locations, lane=self.server.reading.lane)

    def _merged(
        self, streams: Sequence[ReadStream], memory: TaskMemory | None, parts: int | None = None
    ) -> Generator[Any, None, None]:
        if not streams:
            return
        with self.merge(streams, parts) as merged:
            try:
                yield from merged
            finally:
                if memory is not None:
                    memory.spilled_bytes += merged.spilled_bytes

    def merge(self, streams: Sequence[ReadStream], parts: int | None = None) -> MergedStream:
        """The streams as one, within the memory of a reader of this dataset; one after the other, or by ``parts``."""
        reading = self.server.reading
        budget_bytes = reading.budget_bytes
        if self.most_bytes is not None:
            budget_bytes = min(budget_bytes, self.most_bytes)
        pool = MemoryPool(reading_budget(budget_bytes), "merge")
        return merge(
            streams,
            pool=pool,
            scratch_dir=reading.scratch_dir,
            order="stream",
            timeouts=self.server.timeouts,
            parts=parts,
        )


class ShareRead(Closable):
    """Several partitions of a dataset, one after the other, over one stream for each server; for one thread.

    Each read gives its whole partition, or an error. Batches of later partitions arrive meanwhile, within the reader's
    memory (``merged``, *Parts*). A partition that is left before its end is dropped where all of it has arrived; else
    the streams end, and the next read opens new ones, because the rest may be large. Reads of other partitions, and of
    frames, are the dataset's own.

    Args:
        partitions: in the order in which they are read, each once; some may be passed over.
        memory: counts the batches that waited on disk.
    """

    def __init__(self, ref: DatasetRef, partitions: Sequence[int], memory: TaskMemory | None = None) -> None:
        self._ref = ref
        self._partitions = partitions
        self._places = {partition: place for place, partition in enumerate(partitions)}
        self._memory = memory
        self._merged: MergedStream | None = None
        self._first = 0  # the place of the first partition of the open streams
        self._next = 0  # the place of the first partition that was not read yet

    def read(self, partition: int, memory: TaskMemory | None = None) -> Generator[Any, None, None]:
        """As :meth:`DatasetRef.read`."""
        place = self._places.get(partition)
        if place is None or place < self._next:
            yield from self._ref.read(partition, memory)
            return
        self._next = place + 1
        if self._merged is None or not self._merged.skip_to(place - self._first):
            self.close()
            if streams := self._ref.portion_streams(self._partitions[place:]):
                self._merged, self._first = self._ref.merge(streams, len(self._partitions) - place), place
        if self._merged is not None:
            yield from self._merged.part(place - self._first)

    def read_frames(
        self, partition: int, first: int, until: int, memory: TaskMemory | None = None
    ) -> Generator[Any, None, None]:
        """As :meth:`DatasetRef.read_frames`."""
        return self._ref.read_frames(partition, first, until, memory)

    def close(self) -> None:
        """End the streams; a later read opens new ones. Twice is fine."""
        merged, self._merged = self._merged, None
        if merged is not None:
            merged.close()
            if self._memory is not None:
                self._memory.spilled_bytes += merged.spilled_bytes
