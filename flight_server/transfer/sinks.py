"""Sinks: where a put's frames go, to the partition of a stream's producer or to a shuffle producer's attempt.

Stream
    Readers get the partition frame by frame. The clean end of the put seals it; with an ``attempt`` in the descriptor
    only a commit does, because a client library may cleanly end a stream that its user never finished. A put into a
    partition that has or had a producer is refused, unless it is the dataset's only one and has failed: then it makes a
    new generation.

Overwrite
    The new generation takes the name when it is sealed, so of several the last one sealed has it. Where there is no old
    one, or that has failed and is not on disk, it takes it at once. One that says which ``generation`` it replaces is
    refused if the name leads to another one by then.

Changelog
    The rows of a put, or the keys of a delete, become one version when it commits or, without an attempt, when it ends
    cleanly.

Shuffle
    An attempt gathers frames for any partition, and counts only once it has committed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from flight_server.datasets import Attempt, Dataset, Partition, check_as_durable
from flight_server.frames import Frame, SchemaMessage
from flight_server.kinds.changelog import Store
from flight_server.memory import Reservation
from flight_server.protocol import (
    Commit,
    Conflict,
    CreateRequest,
    FlightShuffleError,
    InvalidRequest,
    Kind,
    PutCommand,
    SealRequest,
    parse_partition,
)
from flight_server.tiering import Durability

from .seals import seal

FAILED_LEASE_SECONDS = 300.0


class Sink(Protocol):
    """Takes the frames of one put."""

    dataset: Dataset

    def place(self, metadata: bytes) -> int:
        """The partition of a batch with this app_metadata."""

    def publish(self, partition: int, frame: Frame) -> None:
        """Store a frame of a partition."""

    async def commit(self, totals: Commit) -> dict[str, Any]:
        """Take the producer's commit; returns its answer."""

    async def end(self) -> dict[str, Any] | None:
        """Take the clean end of the producer's stream; returns what the client is still to be told."""

    def abort(self, cause: FlightShuffleError) -> None:
        """Take the producer's failure, at any time before ``end`` has returned. Twice is fine."""


class StreamSink:
    """The one producer of one partition."""

    def __init__(self, durability: Durability, command: PutCommand, schema: SchemaMessage) -> None:
        self._durability = durability
        self._overwrites = command.mode == "overwrite"
        self._replaces = command.generation if self._overwrites else None
        self._must_commit = command.attempt is not None
        self._committed = False
        self._rows = 0
        self._frames = 0
        index = command.partition or 0
        self.dataset = self._find(command, schema, index)
        # Checked before and set after: a put that is refused must not leave its schema behind.
        self.dataset.check_schema(schema)
        self._partition: Partition = self.dataset.begin_stream(index)
        self.dataset.describe(schema)

    def _find(self, command: PutCommand, schema: SchemaMessage, index: int) -> Dataset:
        catalogue = self._durability.catalogue
        request = CreateRequest(command.dataset)
        if command.mode == "overwrite":
            catalogue.check_open()
            if index:
                raise InvalidRequest("overwrite replaces a whole dataset: it writes partition 0 and no other")
            if command.generation is not None:
                catalogue.find(command.dataset, command.generation)  # overwrite this one and no other
            old = catalogue.get(command.dataset)
            if old is not None and old.kind is Kind.CHANGELOG:
                raise Conflict(
                    f"dataset {old.name!r} is a changelog, which is not overwritten: put its new rows and delete or "
                    "retract the old ones, or drop it first",
                    dataset=old.name,
                )
            if old is not None:
                # It keeps what the old one was created with, except that one put writes one partition.
                request = replace(old.request(), kind=Kind.STREAM, partitions=1, producers=None)
            dataset = catalogue.prepare(request, schema)
            if old is None or (old.failure is not None and not (old.files and old.files.committed)):
                catalogue.install(dataset)
            return dataset
        existing = catalogue.get(command.dataset)
        if command.generation is not None:
            return catalogue.find(command.dataset, command.generation)
        if existing is None:
            if index:
                raise InvalidRequest(
                    f"dataset {command.dataset!r} does not exist: create it with the number of its partitions "
                    f"before putting partition {index}",
                    dataset=command.dataset,
                )
            return catalogue.create(request, schema)[0]
        if existing.partition_count == 1 and existing.failure is not None:
            # A failed dataset frees its name, for a new generation: no reader may read on in other data.
            existing.partition(index)
            return catalogue.create(existing.request(), schema)[0]
        return existing

    def place(self, metadata: bytes) -> int:
        return self._partition.index

    def publish(self, partition: int, frame: Frame) -> None:
        self._partition.publish(frame)
        self._rows += frame.rows
        self._frames += 1

    async def commit(self, totals: Commit) -> dict[str, Any]:
        if totals != Commit(self._rows, self._frames):
            raise InvalidRequest(
                f"dataset {self.dataset.name!r} partition {self._partition.index}: the commit says {totals.rows} "
                f"rows in {totals.frames} frames, but {self._rows} rows in {self._frames} frames arrived; write "
                "it again",
                dataset=self.dataset.name,
                partition=self._partition.index,
            )
        await self._seal()
        self._committed = True
        totals_now = self._partition.totals
        return {
            "committed": True,
            "rows": totals_now.rows,
            "bytes": totals_now.bytes,
            "generation": self.dataset.generation,
        }

    async def end(self) -> None:
        if self._committed:
            return
        if self._must_commit:
            raise InvalidRequest(
                f"dataset {self.dataset.name!r} partition {self._partition.index}: the producer ended without its "
                "commit message",
                dataset=self.dataset.name,
                partition=self._partition.index,
            )
        await self._seal()

    async def _seal(self) -> None:
        if self.dataset.durable:
            index = self._partition.index
            await self._durability.persist(self.dataset, [index], self._finish, self._check_name)
        else:
            self._finish()

    def _finish(self) -> None:
        self._check_name()
        self.dataset.end_stream(self._partition)
        if self._overwrites:
            self._durability.catalogue.install(self.dataset)

    def _check_name(self) -> None:
        """Check that an overwrite can take the name now.

        Raises:
            Conflict: the name leads to another generation than the put replaces, or to a changelog, or to a durable
                dataset and this one is not, or this one was replaced meanwhile.
        """
        current = self._durability.catalogue.get(self.dataset.name)
        if not self._overwrites or current is self.dataset:
            return
        now = "gone" if current is None else f"at generation {current.generation}"
        if self._replaces is not None and (current is None or current.generation != self._replaces):
            raise Conflict(
                f"dataset {self.dataset.name!r}: generation {self._replaces} was to be overwritten, but the dataset "
                f"is {now} now; read that one and write again",
                dataset=self.dataset.name,
            )
        if current is not None and current.kind is Kind.CHANGELOG:
            raise Conflict(
                f"dataset {self.dataset.name!r} became a changelog meanwhile, which is not overwritten",
                dataset=self.dataset.name,
            )
        if current is not None:
            check_as_durable(current, durable=self.dataset.durable)
        if self.dataset.files is not None and self.dataset.files.forgotten:
            raise Conflict(
                f"dataset {self.dataset.name!r}: generation {self.dataset.generation} was replaced while it was "
                f"written, and the dataset is {now} now; write it again",
                dataset=self.dataset.name,
            )

    def abort(self, cause: FlightShuffleError) -> None:
        if self._partition.failure is None and not self._committed:
            self._partition.fail(cause)
            if self.dataset.partition_count == 1:
                # The name stays for this long, so that readers get the cause, and is free for the next put.
                self.dataset.lease_seconds = FAILED_LEASE_SECONDS
                self.dataset.touch()


class ChangelogSink:
    """One put into a changelog, of one version for each commit. It takes decoded batches, by ``add``, instead of
    frames.
    """

    def __init__(self, store: Store, command: PutCommand, dataset: Dataset, schema: SchemaMessage) -> None:
        if command.partition:
            raise InvalidRequest(
                f"dataset {dataset.name!r} is a changelog: it has no partition {command.partition}",
                dataset=dataset.name,
            )
        self.dataset = dataset
        self._command = command
        self._store = store
        store.of(dataset).check_producer(schema.schema, deletes=command.delete)
        self.begin()

    def begin(self) -> None:
        """Begin the next version, after a commit."""
        self._frames = 0
        self._write = self._store.write(self.dataset, deletes=self._command.delete)
        self._committed: dict[str, Any] | None = None

    def place(self, metadata: bytes) -> int:
        return 0

    def publish(self, partition: int, frame: Frame) -> None:
        raise AssertionError("a changelog takes batches")

    async def add(self, batch: pa.RecordBatch, room: Reservation) -> None:
        """Take a batch; ``room`` counts its bytes."""
        self._frames += 1
        await self._write.add(batch, room)

    async def commit(self, totals: Commit) -> dict[str, Any]:
        if totals != Commit(self._write.rows, self._frames):
            raise InvalidRequest(
                f"dataset {self.dataset.name!r}: the commit says {totals.rows} rows in {totals.frames} frames, but "
                f"{self._write.rows} rows in {self._frames} frames arrived; write it again",
                dataset=self.dataset.name,
            )
        return await self._commit()

    async def _commit(self) -> dict[str, Any]:
        done = await self._write.commit(self._command.transaction)
        self._committed = {
            "committed": True,
            "rows": done.rows,
            "bytes": done.size_bytes,
            "generation": self.dataset.generation,
            "version": done.version,
        }
        return self._committed

    async def end(self) -> dict[str, Any] | None:
        if self._committed is not None:
            return None
        if self._command.attempt is not None:
            raise InvalidRequest(
                f"dataset {self.dataset.name!r}: the producer ended without its commit message; nothing of it was kept",
                dataset=self.dataset.name,
                producer=self._command.producer,
            )
        return await self._commit()

    def abort(self, cause: FlightShuffleError) -> None:
        if self._committed is None:
            self._write.abort()


class AttemptSink:
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
