"""Dataset: a named set of partitions with one schema; its kind, generation, attempts and lease.

Guarantee: a generation names one incarnation; a ticket for another one never reads this one's data.
What a reader sees of a ``stream`` is what its one producer has sent so far; of a ``shuffle`` nothing
before the seal and exactly the accepted attempts after it.

Who holds what
    The catalogue (``catalogue``) holds the dataset, and so does every stream that reads or writes it. A
    dataset that was replaced or whose retention ended leaves the catalogue, and its memory and files
    go when its last reader leaves. ``drop`` does not wait for readers: they get an error.

Its state, lease and retention in seconds are in ``lifetime``; retention by readers is kept by each partition's
queue.

Partitions are made when somebody first asks for them, so 100,000 empty ones cost nothing; from then on each is
counted in ``metadata``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol

from flight_server.concurrency import Changes
from flight_server.frames import DictionaryMessage, Frame, Record, SchemaMessage, messages_of
from flight_server.memory import DATASET_BYTES, PARTITION_BYTES, Metadata
from flight_server.protocol import AlreadyExists, Commit, Conflict, CreateRequest, Kind, NotFound, Retention
from flight_server.storage import DurableFiles, SegmentWriter

from .attempts import Attempt, Attempts
from .generations import new_generation
from .lifetime import DatasetState, Lifetime
from .partition import Partition, PartitionState, Totals


class Puller(Protocol):
    """What produces a dataset of kind ``source``; see ``pulls``. It holds no reference to the dataset."""

    def want(self, dataset: Dataset, index: int) -> None:
        """A reader has come: see to it that the partition is pulled. Never waits."""

    def close(self) -> None:
        """The dataset was dropped: stop."""

    def statistics(self) -> dict[str, Any]: ...


class Dataset(Lifetime):
    """See the module's text.

    Args:
        writer: where its spilled frames go; None if nothing can be spilled.
        metadata: where what is kept in RAM beside the frames' bytes is counted.
        files: what it has on disk as a durable dataset; None if it is not one.
        clock: monotonic seconds; tests pass one that they turn by hand.

    Raises:
        OutOfBudget: there is no room for another dataset.
    """

    def __init__(
        self,
        name: str,
        *,
        kind: Kind = Kind.STREAM,
        partitions: int = 1,
        schema: SchemaMessage | None = None,
        producers: int | None = None,
        retention: Retention | None = None,
        lease_seconds: float | None = None,
        writer: SegmentWriter | None = None,
        files: DurableFiles | None = None,
        metadata: Metadata | None = None,
        generation: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, retention or Retention(), lease_seconds, clock)
        self.kind = kind
        self.generation = generation or new_generation()
        self.partition_count = partitions
        self.producers = producers
        self._declared_lease_seconds = lease_seconds
        self.writer = writer
        self.files = files
        self._metadata = metadata or Metadata()
        self._room = self._metadata.reserve(DATASET_BYTES, f"dataset {name!r}", dataset=name)
        self.attempts = Attempts(name, self._metadata)
        self.changes = Changes()  # of what FlightInfo and PollInfo say
        self.puller: Puller | None = None
        self._schema: SchemaMessage | None = None
        self.describe(schema)
        self._partitions: dict[int, Partition] = {}

    def request(self) -> CreateRequest:
        """What would create a dataset like this one."""
        return CreateRequest(
            self.name,
            self.kind,
            partitions=self.partition_count,
            producers=self.producers,
            retention=self.retention,
            lease_seconds=self._declared_lease_seconds,
            durable=self.durable,
        )

    @property
    def durable(self) -> bool:
        """It survives a restart once it is sealed."""
        return self.files is not None

    # Schema

    @property
    def schema(self) -> SchemaMessage | None:
        """None until a producer has come, if ``create`` did not say it."""
        return self._schema

    def check_schema(self, schema: SchemaMessage | None) -> None:
        """A producer with this schema may write; None says nothing.

        Raises:
            InvalidRequest: it differs from the dataset's.
        """
        if self._schema is not None and schema is not None:
            self._schema.check_same(schema, self.name)

    def describe(self, schema: SchemaMessage | None) -> None:
        """A producer's schema, which was checked: the first one becomes the dataset's."""
        if self._schema is None and schema is not None:
            self._schema = schema
            self.changes.tell()

    async def described(self) -> SchemaMessage:
        """The schema, as soon as it is known. Cancelling is safe.

        Raises:
            DatasetDropped: the dataset went before.
        """
        while self._schema is None:
            if self.dropped:
                self.partition(0).check()  # raises why
            await self.changes.next()
        return self._schema

    # Partitions

    def partition(self, index: int) -> Partition:
        """The partition.

        Raises:
            NotFound: the dataset has no such partition.
            OutOfBudget: nobody has asked for it before, and there is no room for another one.
        """
        if not 0 <= index < self.partition_count:
            raise NotFound(
                f"dataset {self.name!r} has partitions 0 to {self.partition_count - 1}, not {index}",
                dataset=self.name,
                partition=index,
            )
        if index not in self._partitions:
            self._make([index])
        return self._partitions[index]

    def _make(self, indices: Collection[int]) -> None:
        """Make partitions that nobody has asked for before.

        Raises:
            OutOfBudget: there is no room for all of them; none was made.
        """
        counted = len(indices) if self._partitions else len(indices) - 1  # one came with the dataset
        self._metadata.grow(
            self._room,
            counted * PARTITION_BYTES,
            f"{counted} more partitions of dataset {self.name!r}",
            dataset=self.name,
        )
        for index in indices:
            made = Partition(self.name, index, self.retention.readers, self.changes, self._metadata)
            self._partitions[index] = made
            if self.sealed:
                made.seal()
            if self.dropped:
                made.drop()

    def partitions(self) -> list[Partition]:
        """Those that somebody has asked for."""
        return list(self._partitions.values())

    @property
    def failure(self) -> BaseException | None:
        """Why a partition failed, if one did. A source's failures pass, and its dataset stays in use."""
        if self.puller is not None:
            return None
        for partition in self._partitions.values():
            if partition.failure is not None:
                return partition.failure
        return None

    @property
    def filling(self) -> bool:
        """Asking again later will show more. A source's dataset fills only when it is read."""
        return self.state in (DatasetState.OPEN, DatasetState.SEALING) and self.puller is None

    def want(self, index: int) -> None:
        """A reader has come for the partition: what nobody else produces is pulled."""
        if self.puller is not None:
            self.puller.want(self, index)

    def begin_stream(self, index: int) -> Partition:
        """The partition, for its one producer.

        Raises:
            AlreadyExists: it has a producer, or had one.
            NotFound: there is no such partition.
        """
        partition = self.partition(index)
        if partition.writing or partition.state is not PartitionState.OPEN:
            state = "being written" if partition.state is PartitionState.OPEN else partition.state
            raise AlreadyExists(
                f"dataset {self.name!r} partition {index} is {state}: a partition of kind 'stream' has one "
                'producer; choose another name, drop it, or put with {"mode": "overwrite"}',
                dataset=self.name,
                partition=index,
            )
        partition.writing = True
        return partition

    def end_stream(self, partition: Partition) -> None:
        """The producer has ended cleanly.

        Raises:
            Conflict: the partition was dropped or has failed meanwhile.
        """
        partition.seal()
        if len(self._partitions) == self.partition_count and all(
            each.state is PartitionState.SEALED for each in self._partitions.values()
        ):
            self.step("seal")

    def restore(
        self,
        partitions: Iterable[tuple[int, Iterable[Record], int, int, Totals]],
        *,
        accepted: dict[int, str] | None,
        sealed_for_seconds: float,
    ) -> None:
        """Make it the dataset that was sealed before this process began."""
        for index, records, first, first_bytes, totals in partitions:
            self.partition(index).restore(records, first, first_bytes, totals)
        self.attempts.restore(accepted)
        self.restore_seal(sealed_for_seconds)

    # Attempts

    def begin_attempt(self, producer: int, attempt: str) -> Attempt:
        """A try of a shuffle's producer.

        Raises:
            Conflict: attempts have been accepted, or the dataset was dropped.
            AlreadyExists: the same attempt is there.
        """
        self._write(producer, attempt)
        return self.attempts.begin(producer, attempt)

    def commit(self, attempt: Attempt, totals: Commit) -> bool:
        """The attempt is complete. True if it was the last of the declared producers: seal now.

        Raises:
            InvalidRequest, Conflict: see :meth:`Attempt.commit`.
            Conflict: other attempts have been accepted, or the dataset was dropped.
        """
        self._write(attempt.producer, attempt.attempt)
        attempt.commit(totals)
        self.attempts.committed(attempt)
        self.changes.tell()
        return self.producers is not None and self.attempts.committed_producers >= self.producers

    def accept(self, wanted: dict[int, str] | None) -> bool:
        """Move the accepted attempts' frames into their partitions, where readers get them at once.

        The partitions stay open: :meth:`close` follows when the data is as safe as was promised.
        False if they were accepted before.

        Raises:
            Conflict: see :meth:`Attempts.chosen`, or the dataset is of another kind or was dropped.
            OutOfBudget: there is no room for its partitions; nothing was accepted.
        """
        if self.kind is not Kind.SHUFFLE:
            raise Conflict(
                f"dataset {self.name!r} is of kind {self.kind.value!r}: only a shuffle is sealed by the action; "
                "a stream is sealed when its producer ends",
                dataset=self.name,
            )
        self.check_step("accept")
        chosen = self.attempts.chosen(wanted)
        if chosen is not None:
            wanted_partitions = set().union(*(attempt.partitions for attempt in chosen))
            if new := sorted(wanted_partitions - self._partitions.keys()):
                self._make(new)
            self.attempts.accept(chosen)
        self.step("accept")
        for attempt in chosen or ():
            attempt.hand_over(self.partition)
        return chosen is not None

    def close(self) -> None:
        """Seal every partition. Twice is fine.

        Raises:
            Conflict: the dataset was dropped.
        """
        if not self.sealed:
            self.step("seal")
            for partition in self._partitions.values():
                if partition.state is PartitionState.OPEN:
                    partition.seal()
            self.changes.tell()  # no reader may have asked for a partition yet

    def _write(self, producer: int, attempt: str) -> None:
        try:
            self.step("write")
        except Conflict as late:
            raise Conflict(
                f"{late.message}: producer {producer} attempt {attempt} comes too late; stop this task",
                dataset=self.name,
                producer=producer,
            ) from None

    # The end

    def drop(self, why: str = "dropped") -> None:
        """Let everything go; streams in progress get an error. Twice is fine."""
        self.step("drop")
        if self.puller is not None:
            self.puller.close()
        self.attempts.discard_all()
        if not self._partitions:
            self.partition(0)  # readers that wait for the schema learn it there
        for partition in self._partitions.values():
            partition.drop(why)

    def replaced(self) -> None:
        """Another generation has the name now. Readers finish what can still become whole."""
        if self.kind is Kind.SHUFFLE and self.state is DatasetState.OPEN:
            self.drop("replaced")  # it cannot be sealed any more: the action finds it by its name
        elif self.state is DatasetState.SEALING:
            self.close()  # its place on disk is not needed any more

    # Totals

    def victims(self, *, near: bool) -> Iterator[Frame]:
        """Frames that may leave RAM, coldest first."""
        for attempt in self.attempts:
            yield from attempt.victims()
        for partition in self._partitions.values():
            yield from partition.victims(near=near)

    def resident_dictionaries(self) -> Iterator[DictionaryMessage]:
        """The dictionaries in RAM that its frames need, each once."""
        tables = [
            *(attempt.frames for attempt in self.attempts),
            *(partition.table for partition in self._partitions.values()),
        ]
        states = (state for table in tables for state in table.states())
        return (message for message in messages_of(states) if message.resident)

    def let_go(self, *, spilled: bool) -> bool:
        """Let go of every sealed partition of a source that nobody reads now: it can be pulled again.

        Args:
            spilled: also if that frees only disk.

        Returns:
            Whether bytes came free.
        """
        if self.puller is None or any(partition.subscriptions() for partition in self._partitions.values()):
            return False
        sealed = [each for each in self._partitions.values() if each.state is PartitionState.SEALED]
        if not any(each.frames_left if spilled else each.resident_bytes for each in sealed):
            return False
        for partition in sealed:
            if partition.frames_left:
                partition.reopen()
        return True

    @property
    def rows(self) -> int:
        return sum(partition.totals.rows for partition in self._partitions.values())

    @property
    def total_bytes(self) -> int:
        return sum(partition.totals.bytes for partition in self._partitions.values())
