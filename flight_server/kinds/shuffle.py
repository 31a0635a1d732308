"""Shuffle: an attempt of a producer gathers frames for any partition, and counts only once it has committed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flight_server.datasets import Attempt, Dataset, Sealed, is_earlier_run
from flight_server.frames import Frame, SchemaMessage
from flight_server.protocol import (
    Commit,
    Conflict,
    CreateRequest,
    FlightShuffleError,
    InvalidRequest,
    Kind,
    NotFound,
    PutCommand,
    PutCreate,
    SealRequest,
    StaleTicket,
    check_generation,
    parse_partition,
)
from flight_server.tiering import Durability

from .kind import DatasetKind
from .seals import seal
from .sinks import FrameSink, check_no_deletes, committed

_LATER_RUN = "was replaced by a later run of the job that writes it"


class ShuffleKind(DatasetKind):
    """Datasets of kind ``shuffle``, also staged ones. ``locations``: where this server is reached."""

    def __init__(self, durability: Durability, locations: Callable[[], list[str]]) -> None:
        super().__init__(durability.catalogue)
        self._durability = durability
        self._locations = locations

    async def create(self, request: CreateRequest, schema: SchemaMessage | None) -> tuple[Dataset, bool]:
        """Raises as :meth:`Catalogue.stage` and :meth:`Catalogue.find`, too."""
        if request.mode is not None:
            return self.catalogue.stage(request, schema)
        self._check_run(request)
        if (earlier := self._earlier_run(request)) is not None:
            self.catalogue.check_open()
            with suppress(NotFound, StaleTicket):  # another call did it meanwhile
                await self.catalogue.remove(earlier.name, earlier.generation, why=_LATER_RUN)
        return self._created(request, schema)

    def sink(self, command: PutCommand, dataset: Dataset | None, schema: SchemaMessage) -> AttemptSink:
        if command.create is not None:
            dataset, _ = self._created(_request(command, command.create), schema)
            dataset.renew()
        assert dataset is not None
        if command.generation is not None:
            self.catalogue.find(command.dataset, command.generation)
        check_no_deletes(self.catalogue, command)
        server = None if command.create is None else {"locations": self._locations()}
        return AttemptSink(self._durability, command, dataset, schema, server)

    async def seal(self, dataset: Dataset, request: SealRequest) -> Sealed:
        return await seal(self._durability, dataset, request)

    def _created(self, request: CreateRequest, schema: SchemaMessage | None) -> tuple[Dataset, bool]:
        self._check_run(request)
        if (earlier := self._earlier_run(request)) is not None:
            self.catalogue.drop(earlier.name, earlier.generation, _LATER_RUN)
        elif request.generation is not None and self.catalogue.get(request.dataset) is not None:
            self.catalogue.find(request.dataset, request.generation)  # raises if another one has the name
        return self.catalogue.create(request, schema)

    def _check_run(self, request: CreateRequest) -> None:
        generation = request.generation
        if generation is not None and self.catalogue.dropped_runs.has(request.dataset, generation):
            raise Conflict.about(
                request.dataset,
                f": the driver has dropped generation {generation}, which this put is for: its job has ended",
                generation=generation,
            )

    def _earlier_run(self, request: CreateRequest) -> Dataset | None:
        """The dataset of the name, if it is of an earlier run of the write that the request is of."""
        known = self.catalogue.get(request.dataset)
        if known is None or request.generation is None:
            return None
        return known if is_earlier_run(known.generation, request.generation) else None


def _request(command: PutCommand, create: PutCreate) -> CreateRequest:
    return CreateRequest(
        command.dataset,
        Kind.SHUFFLE,
        partitions=create.partitions,
        lease_seconds=create.lease_seconds,
        generation=check_generation(command.generation),
    )


class AttemptSink(FrameSink):
    """One attempt of one shuffle producer. A commit that fails, also the last one, whose answer is that of the seal, is
    not made: its frames are released.

    ``server``: what the commit's answer says of this server, which has the
    dataset by puts alone: it is dropped with its last attempt, if that fails.
    """

    def __init__(
        self,
        durability: Durability,
        command: PutCommand,
        dataset: Dataset,
        schema: SchemaMessage,
        server: dict[str, Any] | None = None,
    ) -> None:
        if command.producer is None or command.attempt is None:
            raise InvalidRequest.about(
                dataset.name,
                'is a shuffle: put with {"dataset": …, "producer": task index, "attempt": id of this try}',
            )
        if command.partition is not None:
            raise InvalidRequest.about(
                dataset.name,
                f"producer {command.producer} attempt {command.attempt}: a shuffle's partition is each batch's "
                "app_metadata, not a part of the descriptor",
            )
        self._durability = durability
        self._server = server or {}
        self.dataset = dataset
        dataset.check_schema(schema)
        self._attempt: Attempt = dataset.begin_attempt(command.producer, command.attempt)
        dataset.describe(schema)
        self._committed = False

    @property
    def silent_seconds(self) -> float:
        """Until the lease ends that a client renews, which so waits for the attempt."""
        return self.dataset.renewed_seconds if self._attempt.is_open else 0.0

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
        dataset, attempt = self.dataset, self._attempt
        answer = committed(dataset, attempt.rows, attempt.total_bytes, **self._server)
        if dataset.sealing:
            with self._durability.waits.enter("disk", dataset=dataset.name, producer=attempt.producer):
                while dataset.sealing:  # it takes further commits if the disk refuses the seal
                    await dataset.changes.next()
        if dataset.commit(attempt, totals):
            try:
                await seal(self._durability, dataset, SealRequest(dataset.name))
            except BaseException:
                # In the step in which the seal ends: no other seal accepts it.
                dataset.attempts.discard(attempt)
                raise
        self._committed = True
        return answer

    async def end(self) -> None:
        if not self._committed:
            raise InvalidRequest(
                f"{self._attempt}: the producer ended without its commit message; nothing of it was kept",
                dataset=self.dataset.name,
                producer=self._attempt.producer,
            )

    def abort(self, cause: FlightShuffleError) -> None:
        if self._committed:
            return
        dataset, attempts = self.dataset, self.dataset.attempts
        attempts.discard(self._attempt)
        if self._server and not (len(attempts) or attempts.accepted is not None or dataset.dropped):
            # Its driver learns only of servers that tasks have committed to.
            with suppress(NotFound):
                why = f"was removed with its only attempt ({cause})"
                self._durability.catalogue.drop(dataset.name, dataset.generation, why)
