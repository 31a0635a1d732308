"""Dataset: a named set of partitions with one schema; its kind, generation, attempts and lease.

Guarantee: a generation names one incarnation; a ticket of another generation never reads this one's data. A reader
of a ``stream`` or a ``source`` sees the frames published so far. A reader of a ``shuffle`` sees nothing before the
seal, and then exactly the accepted attempts.

Who holds what
    The catalogue and every stream that reads or writes the dataset hold it. After a replacement, or the end of its
    retention, its memory and files are released with its last reader. ``drop`` does not wait: readers get an error.

A partition is made, and counted in ``metadata``, when it is first asked for, so 100,000 empty ones cost nothing. The
first is a part of ``DATASET_BYTES``.

Sealing a shuffle
    The choice of attempts is one step; their frames move into partitions in several, while the dataset is SEALING.
    Readers see them when the partitions are sealed (``partition``). After each step each frame is in an attempt or in a
    partition, where the spiller and a drop find it. A caller that leaves the steps undone leaves the dataset ``moving``
    no more, and its accepted attempts as they are: callers do all steps, also when their own request is cancelled.

    If the disk refuses a durable dataset, the frames move back, and it is as before the choice: the seal can be
    repeated with these attempts or with others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from flight_server.access import acting
from flight_server.concurrency import FEW, Changes, at_once, emptied, later
from flight_server.frames import DictionaryMessage, Frame, Records, SchemaMessage, messages_of
from flight_server.memory import DATASET_BYTES, PARTITION_BYTES, Metadata
from flight_server.protocol import (
    MAX_PARTITIONS,
    AlreadyExists,
    Commit,
    Conflict,
    CreateRequest,
    InvalidRequest,
    Kind,
    NotFound,
    Retention,
    ServerPortion,
)
from flight_server.storage import SegmentWriter, StoredObject

from .attachment import attachment_of
from .attempts import Attempt, Attempts, joined
from .generations import OVERWRITTEN, new_generation
from .lifetime import DatasetState, Lifetime
from .on_disk import OnDisk
from .partition import Partition, PartitionState, Totals
from .transactions import Transactions

_COMPARED = ("kind", "partitions", "producers", "retention", "durable", "keep", "delay_seconds")


@dataclass(frozen=True, slots=True)
class _Choice:
    """What a seal that has begun has chosen. ``partitions``: the one that takes the frames for each.
    ``partition_count``: how many the dataset had before.
    """

    attempts: list[Attempt]
    partitions: dict[int, int]
    partition_count: int


class Dataset(Lifetime):
    """One generation of a dataset.

    Args:
        writer: None if nothing can be spilled.
        metadata: counts its RAM beside the frames' bytes; OutOfBudget if there is no room.
        on_disk: None if it is not durable.
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
        on_disk: OnDisk | None = None,
        metadata: Metadata | None = None,
        generation: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, retention or Retention(), lease_seconds, clock)
        self.owner = acting.get()
        if self.owner is not None:
            self.owner.check_new(name)
        self.kind = kind
        self.generation = generation or new_generation()
        self.partition_count = partitions
        self.producers = producers
        self._declared_lease_seconds = lease_seconds
        self.writer = writer
        self.on_disk = on_disk
        self._metadata = metadata or Metadata()
        self._room = self._metadata.reserve(DATASET_BYTES, f"dataset {name!r}", dataset=name)
        self.attempts = Attempts(name, self._metadata)
        self.changes = Changes()  # of what FlightInfo and PollInfo report
        self.attached = attachment_of(kind)
        self.transactions = Transactions(name, self._metadata)
        self.schema: SchemaMessage | None = None
        self.describe(schema)
        self._partitions: dict[int, Partition] = {}
        self.moving = False  # see "Sealing a shuffle"
        self._choice: _Choice | None = None
        self.servers: tuple[ServerPortion, ...] = ()  # see spread
        self.stored: StoredObject | None = None  # see transfer.offloading
        if self.owner is not None:
            self.owner.own(self)

    def __del__(self) -> None:
        # Its partitions would be released in one step. After an error in __init__ there are none.
        partitions = getattr(self, "_partitions", {})
        if _are_many(partitions):
            later(emptied(partitions))

    def request(self) -> CreateRequest:
        request = CreateRequest(
            self.name,
            self.kind,
            partitions=self.partition_count,
            producers=self.producers,
            retention=self.retention,
            lease_seconds=self._declared_lease_seconds,
            durable=self.durable,
        )
        return self.attached.declared(request)

    def check_same(self, request: CreateRequest, schema: SchemaMessage | None) -> None:
        """Compare a repeated ``create``. Raises AlreadyExists if ``_COMPARED`` differ, or as :meth:`check_schema`."""
        mine = self.request()
        differing = [what for what in _COMPARED if getattr(mine, what) != getattr(request, what)]
        self.check_schema(schema)
        if differing:
            raise AlreadyExists.about(
                self.name,
                f"exists with another {', '.join(differing)}; drop it first, or choose another name",
            )

    @property
    def durable(self) -> bool:
        return self.on_disk is not None

    @property
    def sealing(self) -> bool:
        """Whether a call seals it, and undoes that if the disk refuses."""
        return self.on_disk is not None and self.on_disk.sealing

    # Schema

    def check_schema(self, schema: SchemaMessage | None) -> None:
        """Raise InvalidRequest if a producer's schema differs from the dataset's; None is not compared."""
        if self.schema is not None and schema is not None:
            self.schema.check_same(schema, self.name)

    def describe(self, schema: SchemaMessage | None) -> None:
        """Take a producer's schema, already checked, unless the dataset has one."""
        if self.schema is None and schema is not None:
            self.schema = schema
            self.changes.tell()

    async def described(self) -> SchemaMessage:
        """Wait for the schema. Cancelling is safe. Raises DatasetDropped: the dataset was dropped, or replaced;
        Conflict: it was sealed, and no producer has given a schema.
        """
        while self.schema is None:
            if self.gone:
                self.partition(0).check()  # raises why
            if self.sealed:
                raise Conflict.about(
                    self.name,
                    "was sealed without a schema: no producer has written to it; create it with its schema, or "
                    "write to it before the seal",
                )
            await self.changes.next()
        return self.schema

    # Partitions

    def partition(self, index: int) -> Partition:
        """The partition, made when it is first asked for. Raises NotFound, OutOfBudget: ``metadata`` has no room."""
        if not 0 <= index < self.partition_count:
            raise self._none(index)
        known = self._partitions.get(index)
        if known is None:
            self._count_partitions(1)
            known = self._add_partition(index, sealed=self.sealed)
        elif known.state is PartitionState.OPEN and self.sealed and not self.attached.pulled:
            known.seal()  # see close
        elif self.dropped or self._is_left(known):
            known.drop(self.why_gone, self.attached.remedy)
        return known

    def _none(self, index: int) -> NotFound:
        why = f"dataset {self.name!r} has partitions 0 to {self.partition_count - 1}, not {index}"
        return NotFound(why, dataset=self.name, partition=index)

    def _count_partitions(self, more: int) -> None:
        """Count partitions in advance. Raises OutOfBudget."""
        counted = more if self._partitions or not more else more - 1  # one came with the dataset
        self._metadata.grow(
            self._room,
            counted * PARTITION_BYTES,
            f"{counted} more partitions of dataset {self.name!r}",
            dataset=self.name,
        )

    def _add_partition(self, index: int, *, sealed: bool) -> Partition:
        made = Partition(self.name, index, self.retention.readers, self.changes, self._metadata)
        self._partitions[index] = made
        if sealed:
            made.seal()
        if self.dropped or self._is_left(made):
            made.drop(self.why_gone, self.attached.remedy)
        return made

    def partitions(self) -> list[Partition]:
        return list(self._partitions.values())

    def listed(self, partitions: Sequence[int] | str) -> Sequence[int]:
        """The numbers, or for ``"all"`` those of all partitions. Raises NotFound for one that there is not."""
        if isinstance(partitions, str):
            return range(self.partition_count)
        if max(partitions) >= self.partition_count:
            raise self._none(max(partitions))
        return partitions

    def lacks_frames(self, index: int) -> bool:
        """Whether a partition is known to have no frames. It is not made: that takes memory to the dataset's end."""
        known = index in self._partitions or index >= self.partition_count
        return not known and self.sealed and not self.dropped

    @property
    def failure(self) -> BaseException | None:
        """Why a partition failed. None if partitions can be pulled again."""
        if self.attached.pulled:
            return None
        for partition in self._partitions.values():
            if partition.failure is not None:
                return partition.failure
        return None

    @property
    def filling(self) -> bool:
        """Whether a later look can show more. False if it fills only while it is read."""
        return self.state in (DatasetState.OPEN, DatasetState.SEALING) and not self.attached.pulled

    def begin_stream(self, index: int) -> Partition:
        """The partition, for its one producer. Raises AlreadyExists: it has or had one; NotFound, OutOfBudget: see
        :meth:`partition`.
        """
        partition = self.partition(index)
        if partition.writing or partition.state is not PartitionState.OPEN:
            state = "being written" if partition.state is PartitionState.OPEN else partition.state
            raise AlreadyExists.about(
                self.name,
                f"is {state}: a partition of kind 'stream' has one producer; choose another name, drop it, or "
                'put with {"mode": "overwrite"}',
                partition=index,
            )
        partition.writing = True
        return partition

    def end_stream(self, partition: Partition) -> None:
        """Seal the partition, with the last one the dataset: at the latest when it is committed on disk, also if a
        partition has failed meanwhile. Raises as :meth:`Partition.seal`.
        """
        is_committed = self.on_disk is not None and self.on_disk.row is not None
        if not is_committed or partition.failure is None:
            partition.seal()
        if is_committed or (
            len(self._partitions) == self.partition_count
            and all(each.state is PartitionState.SEALED for each in self._partitions.values())
        ):
            self.step("seal")

    def restore(
        self,
        partitions: Iterable[tuple[int, int, int, Totals]],
        *,
        accepted: dict[int, str] | None,
        sealed_for_seconds: float,
    ) -> None:
        """Make it one that an earlier process sealed: of each partition its number and :meth:`Partition.restore`'s."""
        assert self.on_disk is not None
        for index, first, first_bytes, totals in partitions:
            partition = self.partition(index)
            partition.restore(first, first_bytes, totals)
            self.on_disk.not_loaded += not partition.loaded
        self.attempts.accepted = accepted
        self.step("seal")
        self._sealed_at = self._clock() - sealed_for_seconds

    def load(self, partition: Partition, records: Records) -> None:
        """Let a restored partition have its records; see :meth:`Partition.load`."""
        if not partition.loaded and self.on_disk is not None:
            self.on_disk.not_loaded -= 1
        partition.load(records)

    # Attempts

    def begin_attempt(self, producer: int, attempt: str) -> Attempt:
        """Begin an attempt. Raises as *begin* in ``lifetime``, and as :meth:`Attempts.begin`."""
        self._write("begin", producer, attempt)
        return self.attempts.begin(producer, attempt)

    def commit(self, attempt: Attempt, totals: Commit) -> bool:
        """Commit the attempt. True if all declared producers have committed: the caller seals now.

        Raises as *commit* in ``lifetime``, and as :meth:`Attempt.commit`.
        """
        self._write("commit", attempt.producer, attempt.attempt)
        attempt.commit(totals)
        self.attempts.committed(attempt)
        self.changes.tell()
        return self.producers is not None and self.attempts.committed_producers >= self.producers

    # Sealing

    def accepting(
        self, attempts: dict[int, str] | None, partition_bytes: int | None, only: int | None = None
    ) -> Generator[None, None, bool]:
        """Move the accepted attempts' frames into their partitions, in steps.

        One step decides; until the last one the dataset is ``moving``. The partitions stay open until :meth:`close`,
        which the caller calls when a durable dataset is on disk; if the disk refuses it, the caller does the steps of
        :meth:`giving_back` and calls :meth:`reopen`. False if these attempts were accepted before.

        Args:
            partition_bytes: see :func:`joined`.
            only: it has only so many partitions from then on; readers of others get NotFound.

        Raises:
            Conflict: see :meth:`Attempts.chosen`, or the dataset was dropped.
            InvalidRequest: other partitions than ``only`` have frames.
            OutOfBudget: ``metadata`` has no room for the partitions. Each time nothing was changed.
        """
        numbers: dict[int, int] = {}
        before: list[Attempt] | None = None
        while True:
            self.check_step("accept")
            chosen = self.attempts.chosen(attempts)
            if chosen is None:
                self.step("accept")
                return False
            if chosen == before:
                break
            # Other attempts may commit meanwhile, and be chosen.
            before, numbers = chosen, (yield from joined(chosen, partition_bytes))
        last = max(numbers, default=0)
        if only is not None and not last < only <= self.partition_count:
            raise InvalidRequest.about(
                self.name,
                f"cannot be sealed with {only} partitions: it was created with {self.partition_count}, and there are "
                f"frames for partition {last}",
            )
        new = sorted(index for index in set(numbers.values()) if index not in self._partitions)
        self._count_partitions(len(new))
        self._choice = choice = _Choice(chosen, numbers, self.partition_count)
        if only is not None:
            self._have_only(only)
        if partition_bytes is not None:
            self._have_only(len(set(numbers.values())) or 1)
        self.attempts.accept(chosen)
        self.step("accept")
        self.moving = True
        try:
            yield from self._move(choice, new)
        finally:
            self.moving = False
            self.changes.tell()
        return True

    def _move(self, choice: _Choice, new: list[int]) -> Generator[None, None, None]:
        for index in new:
            if index in self._partitions:  # a reader has asked for it meanwhile
                self._room.shrink(PARTITION_BYTES)
            else:
                self._add_partition(index, sealed=False)
            yield
            self.check_step("accept")
        for attempt in choice.attempts:
            for _ in attempt.hand_over(lambda index: self.partition(choice.partitions[index])):
                yield
                self.check_step("accept")

    def giving_back(self) -> Generator[None, None, None]:
        """Move the accepted attempts' frames back into these, in steps. Nothing is to be done for a dataset that is
        sealed or gone meanwhile, or that has lost frames. :meth:`reopen` is to follow.
        """
        choice = self._choice
        if choice is None or not self._reopens:
            return
        self.moving = True
        try:
            for attempt in choice.attempts:
                for _ in attempt.take_back(lambda index: self.partition(choice.partitions[index])):
                    yield
                    if not self._reopens:
                        return
            for index in set(choice.partitions.values()):
                self.partition(index).gave_back()
                yield
                if not self._reopens:
                    return
        finally:
            self.moving = False

    def reopen(self) -> None:
        """Let attempts commit, and be chosen again, after :meth:`giving_back`."""
        if self._choice is None or not self._reopens:
            return
        self.step("reopen")
        self.attempts.accepted = None
        self.partition_count, self._choice = self._choice.partition_count, None
        if self.ended:
            self.drop()  # it was replaced meanwhile
        self.changes.tell()

    @property
    def _reopens(self) -> bool:
        return self.state is DatasetState.SEALING and self.failure is None

    def _have_only(self, partitions: int) -> None:
        """Forget the partitions from that number on, which have no frames."""
        self.partition_count, made = partitions, len(self._partitions)
        for index in [index for index in self._partitions if index >= partitions]:
            self._partitions.pop(index).fail(self._none(index))
        self._room.shrink((max(made, 1) - max(len(self._partitions), 1)) * PARTITION_BYTES)

    def extend(self, staged: Dataset) -> list[Partition]:
        """Take over the partitions with frames of ``staged``, which are sealed, as the last ones, in one step.

        Raises:
            Conflict: this dataset is not sealed, or counts readers otherwise.
            InvalidRequest: it would have too many partitions.
            OutOfBudget: ``metadata`` has no room for them. Each time nothing was changed.
        """
        self.check_step("extend")
        used = sorted((each for each in staged.partitions() if each.totals.frames), key=attrgetter("index"))
        base = self.partition_count
        if base + len(used) > MAX_PARTITIONS:
            above = f"has {base} partitions, and {len(used)} more are above {MAX_PARTITIONS}"
            raise InvalidRequest.about(self.name, f"{above}: overwrite it with fewer")
        if staged.retention.readers != self.retention.readers:
            raise Conflict.about(self.name, "was replaced by one of another retention meanwhile; write again")
        self._count_partitions(len(used))
        self.step("extend")
        self.describe(staged.schema)
        staged._room.shrink(max(0, len(staged._partitions) - 1) * PARTITION_BYTES)
        staged._partitions = {}
        for index, partition in enumerate(used, base):
            partition.move_to(index, self.changes)
            self._partitions[index] = partition
        self.partition_count += len(used)
        self.changes.tell()
        return used

    def close(self) -> None:
        """Seal it. Many open partitions follow soon, each at the latest when it is asked for. Twice is fine."""
        if not self.sealed:
            self.step("seal")
            self.attempts.sealed()
            self._choice = None
            _do(self.closing(), soon=len(self._partitions) > FEW)
            self.changes.tell()  # no reader may have asked for a partition yet

    def closing(self) -> Generator[None, None, None]:
        for partition in self.partitions():
            if partition.state is PartitionState.OPEN:
                partition.seal()
            yield

    def _write(self, verb: str, producer: int, attempt: str) -> None:
        try:
            self.step(verb)
        except Conflict as late:
            raise Conflict(
                f"{late.message}: producer {producer} attempt {attempt} comes too late; stop this task",
                dataset=self.name,
                producer=producer,
            ) from None

    # The end

    def drop(self) -> None:
        """Release all frames and attempts; streams in progress get an error with ``why_gone``. Twice is fine.

        No new reader gets a frame; if there are many partitions or frames, those that are being read follow soon.
        """
        self.step("drop")
        self.attached.close(self.why_gone)
        if self.on_disk is not None:
            self.on_disk.release()
        self.attempts.discard_all(self.why_gone)
        if not self._partitions:
            self.partition(0)  # readers that wait for the schema learn it there
        self.changes.tell()
        _do(self._dropping(), soon=_are_many(self._partitions))

    def _dropping(self, *, left: bool = False) -> Generator[None, None, None]:
        """Drop all partitions, or only those that are ``left``: see :meth:`_is_left`."""
        for partition in self.partitions():
            if not left or self._is_left(partition):
                partition.drop(self.why_gone, self.attached.remedy)
            yield

    def replaced(self) -> None:
        """Another generation has the name: readers finish what can still be completed."""
        self.ended = True
        self.why_gone = OVERWRITTEN
        self.changes.tell()  # no reader may have asked for a partition yet
        _do(self._dropping(left=True), soon=len(self._partitions) > FEW)
        if self.attached.by_name and self.state is DatasetState.OPEN:
            self.drop()
        elif self.state is DatasetState.SEALING and not self.moving:
            self.close()  # its place on disk is not needed any more

    def _is_left(self, partition: Partition) -> bool:
        """Whether no producer can come to a partition that has had none, because no name leads to the dataset."""
        finds_none = self.ended and not (self.attached.by_name or self.attached.pulled)
        return finds_none and partition.state is PartitionState.OPEN and not partition.writing

    def victims(self, *, near: bool) -> Iterator[Frame]:
        """Frames that may leave RAM: those of attempts, then each partition's (:meth:`Partition.victims`)."""
        for attempt in self.attempts:
            yield from attempt.victims()
        for partition in self._partitions.values():
            if partition.resident_bytes:
                yield from partition.victims(near=near)

    @property
    def filled(self) -> bool:
        """Whether it may have frames."""
        return bool(self._partitions or self.attempts)

    def resident_dictionaries(self) -> Iterator[DictionaryMessage]:
        """The dictionaries in RAM that its frames need, each once."""
        tables = [
            *(attempt.frames for attempt in self.attempts),
            *(partition.table for partition in self._partitions.values()),
        ]
        states = (state for table in tables for state in table.states())
        return (message for message in messages_of(states) if message.resident)

    def release_unread(self, *, spilled: bool) -> bool:
        """Release the sealed partitions, if they can be pulled again and have no readers; whether it did so.
        ``spilled``: also if that frees only disk.
        """
        if not self.attached.pulled or any(
            partition.subscriptions() for partition in self._partitions.values()
        ):
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


def _are_many(partitions: dict[int, Partition]) -> bool:
    """Whether they, with their frames in RAM, cannot be released in one step."""
    few = len(partitions) <= FEW
    return not few or sum(each.table.resident_frames for each in partitions.values()) > FEW


def _do(steps: Generator[None, None, None], *, soon: bool) -> None:
    if soon:
        later(steps)
    else:
        at_once(steps)
