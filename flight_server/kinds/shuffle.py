"""Shuffle: an attempt of a producer gathers frames for any partition, and counts only once it has committed."""

from __future__ import annotations

from typing import Any

from flight_server.datasets import Attempt, Dataset, Sealed
from flight_server.frames import Frame, SchemaMessage
from flight_server.protocol import (
    Commit,
    CreateRequest,
    FlightShuffleError,
    InvalidRequest,
    PutCommand,
    SealRequest,
    parse_partition,
)
from flight_server.tiering import Durability

from .kind import DatasetKind
from .seals import seal
from .sinks import FrameSink, check_no_deletes


class ShuffleKind(DatasetKind):
    """Datasets of kind ``shuffle``, also staged ones."""

    def __init__(self, durability: Durability) -> None:
        super().__init__(durability.catalogue)
        self._durability = durability

    async def create(self, request: CreateRequest, schema: SchemaMessage | None) -> tuple[Dataset, bool]:
        """Raises as :meth:`Catalogue.stage`, too."""
        if request.mode is not None:
            return self.catalogue.stage(request, schema)
        return await super().create(request, schema)

    def sink(self, command: PutCommand, dataset: Dataset | None, schema: SchemaMessage) -> AttemptSink:
        assert dataset is not None
        if command.generation is not None:
            self.catalogue.find(command.dataset, command.generation)
        check_no_deletes(self.catalogue, command)
        return AttemptSink(self._durability, command, dataset, schema)

    async def seal(self, dataset: Dataset, request: SealRequest) -> Sealed:
        return await seal(self._durability, dataset, request)


class AttemptSink(FrameSink):
    """One attempt of one shuffle producer."""

    def __init__(
        self, durability: Durability, command: PutCommand, dataset: Dataset, schema: SchemaMessage
    ) -> None:
        if command.producer is None or command.attempt is None:
            raise InvalidRequest(
                f"dataset {dataset.name!r} is a shuffle: put with "
                '{"dataset": …, "producer": task index, "attempt": id of this try}',
                dataset=dataset.name,
            )
        if command.partition is not None:
            raise InvalidRequest(
                f"dataset {dataset.name!r} producer {command.producer} attempt {command.attempt}: a shuffle's "
                "partition is each batch's app_metadata, not a part of the descriptor",
                dataset=dataset.name,
            )
        self._durability = durability
        self.dataset = dataset
        dataset.check_schema(schema)
        self._attempt: Attempt = dataset.begin_attempt(command.producer, command.attempt)
        dataset.describe(schema)
        self._committed = False

    def place(self, metadata: bytes) -> int:
        try:
            index = parse_partition(metadata.decode("ascii", "backslashreplace"))
        except InvalidRequest as error:
            raise InvalidRequest(
                f"{self._attempt}: each batch's app_metadata must be its partition; {error.message}",
                dataset=self.dataset.name,
            ) from None
        if index >= self.dataset.partition_count:
            raise InvalidRequest(
                f"{self._attempt}: a batch is for partition {index}, but there are partitions 0 to "
                f"{self.dataset.partition_count - 1}",
                dataset=self.dataset.name,
                partition=index,
            )
        return index

    def publish(self, partition: int, frame: Frame) -> None:
        self._attempt.publish(partition, frame)

    async def commit(self, totals: Commit) -> dict[str, Any]:
        answer = {
            "committed": True,
            "rows": self._attempt.rows,
            "bytes": self._attempt.total_bytes,
            "generation": self.dataset.generation,
        }
        complete = self.dataset.commit(self._attempt, totals)
        self._committed = True
        if complete:
            await seal(self._durability, self.dataset, SealRequest(self.dataset.name))
        return answer

    async def end(self) -> None:
        if not self._committed:
            raise InvalidRequest(
                f"{self._attempt}: the producer ended without its commit message; nothing of it was kept",
                dataset=self.dataset.name,
                producer=self._attempt.producer,
            )

    def abort(self, cause: FlightShuffleError) -> None:
        if not self._committed:
            self.dataset.attempts.discard(self._attempt)
