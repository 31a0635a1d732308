"""Stream: a partition has one producer, and readers get it frame by frame.

The clean end of the put seals the partition; with an ``attempt`` in the descriptor only a commit does, because a client
library may cleanly end a stream that its user never finished. A put into a partition that has or had a producer is
refused, unless it is the dataset's only one and has failed: then it makes a new generation.

Overwrite
    An overwrite is a staged write (``datasets.staged_writes``), and takes the name at its seal; the last seal wins. If
    the name is free, or its dataset has failed and is not on disk, the overwrite takes it at once. An overwrite that
    names the ``generation`` that it replaces is refused if the name leads to another one by then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flight_server.datasets import Dataset, Partition, check_as_durable
from flight_server.frames import Frame, SchemaMessage
from flight_server.protocol import (
    Commit,
    Conflict,
    CreateRequest,
    FlightShuffleError,
    InvalidRequest,
    Kind,
    PutCommand,
    WriteMode,
)
from flight_server.tiering import Durability

from .kind import DatasetKind
from .sinks import FrameSink, check_no_deletes, check_no_transaction, check_totals, committed

FAILED_LEASE_SECONDS = 300.0


class StreamKind(DatasetKind):
    """Datasets of kind ``stream``, and puts into a name that leads to none."""

    def __init__(self, durability: Durability) -> None:
        super().__init__(durability.catalogue)
        self._durability = durability

    def sink(self, command: PutCommand, dataset: Dataset | None, schema: SchemaMessage) -> StreamSink:
        if command.mode != "overwrite":
            check_no_deletes(self.catalogue, command)
            check_no_transaction(command)
            if dataset is None and command.producer not in (None, 0):
                self.catalogue.find(command.dataset, command.generation)
        return StreamSink(self._durability, command, schema)


class StreamSink(FrameSink):
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
            if index:
                raise InvalidRequest("overwrite replaces a whole dataset: it writes partition 0 and no other")
            if command.generation is not None:
                catalogue.find(command.dataset, command.generation)  # overwrite this one and no other
            old = catalogue.get(command.dataset)
            if old is not None:
                old.attached.check_overwrite(old)
                # It has the old dataset's settings, except that one put writes one partition.
                request = replace(old.request(), kind=Kind.STREAM, partitions=1, producers=None)
            dataset = catalogue.prepare(request, schema)
            if old is None or (old.failure is not None and (old.on_disk is None or old.on_disk.row is None)):
                catalogue.install(dataset)
            else:
                catalogue.staged.add(None, dataset, WriteMode.OVERWRITE)
            return dataset
        existing = catalogue.get(command.dataset)
        if command.generation is not None:
            return catalogue.find(command.dataset, command.generation)
        if existing is None:
            if index:
                raise InvalidRequest.about(
                    command.dataset,
                    f"does not exist: create it with the number of its partitions before putting partition {index}",
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
        check_totals(totals, self._rows, self._frames, self.dataset, self._partition.index)
        await self._seal()
        totals_now = self._partition.totals
        return committed(self.dataset, totals_now.rows, totals_now.bytes)

    async def end(self) -> None:
        if self._committed:
            return
        if self._must_commit:
            raise InvalidRequest.about(
                self.dataset.name,
                ": the producer ended without its commit message",
                partition=self._partition.index,
            )
        await self._seal()

    async def _seal(self) -> None:
        if self.dataset.durable:
            index = self._partition.index
            await self._durability.persist(self.dataset, [index], self._finish, self._check_name)
        else:
            self._check_name()
            self._finish()

    def _finish(self) -> None:
        self.dataset.end_stream(self._partition)
        self._committed = True
        if self._overwrites:
            self._durability.catalogue.take_name(self.dataset)

    def _check_name(self) -> None:
        """Check that an overwrite can take the name now. Raises Conflict: the name leads to another generation than the
        put replaces, to a dataset that is not overwritten, or to a durable one and this one is not; or this one was
        replaced meanwhile.
        """
        current = self._durability.catalogue.get(self.dataset.name)
        if not self._overwrites or current is self.dataset:
            return
        now = "gone" if current is None else f"at generation {current.generation}"
        if self._replaces is not None and (current is None or current.generation != self._replaces):
            raise Conflict.about(
                self.dataset.name,
                f": generation {self._replaces} was to be overwritten, but the dataset is {now} now; read that one "
                "and write again",
            )
        if current is not None:
            current.attached.check_overwrite(current, meanwhile=True)
            check_as_durable(current, durable=self.dataset.durable)
        if self.dataset.durable and self.dataset.gone:
            raise Conflict.about(
                self.dataset.name,
                f": generation {self.dataset.generation} was replaced while it was written, and the dataset is {now} "
                "now; write it again",
            )

    def abort(self, cause: FlightShuffleError) -> None:
        if self._partition.failure is None and not self._committed:
            self._partition.fail(cause)
            if self._durability.catalogue.staged.mode_of(self.dataset) is not None:
                self._durability.catalogue.unstage(self.dataset)
            elif self.dataset.partition_count == 1:
                # The name stays for this long, so that readers get the cause, and is free for the next put.
                self.dataset.lease_seconds = FAILED_LEASE_SECONDS
                self.dataset.touch()
