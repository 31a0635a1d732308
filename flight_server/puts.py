"""Writing: what a DoPut's messages become.

Guarantee: nothing is stored before it was checked (``decoder``), counted and admitted (``core.admit``);
and a producer that breaks off, is refused or commits other totals than arrived leaves nothing behind:
its partition fails, or its attempt is discarded.

Two kinds of target
    A *stream* partition is readable frame by frame. Its clean end seals it; with ``producer`` and
    ``attempt`` in the descriptor the end must be a commit message, because a client library may end
    a stream cleanly that its user never finished. A put into a name that exists is refused; with
    ``overwrite`` the new generation takes the name when it is sealed, and until then, or if it fails,
    the old one stays.
    A *shuffle* attempt gathers frames for any partition, and counts only once it has committed.

Answers
    A commit is answered with its totals. Where no commit is in use, each message's app_metadata is
    echoed, as Arrow's integration tests expect. Messages without a header are not stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from .attempts import Attempt
from .core import Core
from .dataset import Dataset
from .decoder import Accepted, FrameDecoder, SchemaMessage
from .durability import persist
from .errors import BadFrame, Conflict, FlightShuffleError, InvalidRequest, ProducerFailed
from .frames import NO_DICTIONARIES, DictionaryMessage, DictionaryState, Frame, Payload, crc32c
from .memory import Reservation
from .partition import Partition
from .protocol import Commit, CreateRequest, Kind, PutCommand, dump_json, parse_partition, parse_path
from .wire import MessageKind, locate

FAILED_LEASE_SECONDS = 300.0


class Sink(Protocol):
    """Where a put's frames go."""

    dataset: Dataset

    def place(self, metadata: bytes) -> int:
        """The partition of a batch with this app_metadata."""

    def publish(self, partition: int, frame: Frame) -> None:
        """Keep a frame."""

    async def commit(self, totals: Commit) -> dict[str, Any]:
        """The producer says that it has sent everything; the answer for it."""

    async def end(self) -> None:
        """The producer's stream has ended cleanly."""

    def abort(self, cause: FlightShuffleError) -> None:
        """The producer has failed, at any time before ``end`` has returned. Twice is fine."""


def parse_descriptor(data: bytes) -> PutCommand:
    """What a descriptor says.

    Raises:
        InvalidRequest: it is not a descriptor, or says nothing sensible.
    """
    try:
        descriptor = flight.FlightDescriptor.deserialize(data)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRequest(f"the descriptor is not a FlightDescriptor: {error}") from None
    if descriptor.descriptor_type is flight.DescriptorType.PATH:
        dataset, partition = parse_path(descriptor.path)
        return PutCommand(dataset, partition)
    if descriptor.descriptor_type is flight.DescriptorType.CMD:
        return PutCommand.parse(descriptor.command)
    raise InvalidRequest("the descriptor must be a PATH [dataset] or a CMD with JSON")


class StreamSink:
    """The one producer of one partition."""

    def __init__(self, core: Core, command: PutCommand, schema: SchemaMessage) -> None:
        self._core = core
        self._install_at_end = False
        self._must_commit = command.attempt is not None
        self._committed = False
        self._rows = 0
        self._frames = 0
        index = command.partition or 0
        self.dataset = self._find(command, schema, index)
        self.dataset.describe(schema)
        self._partition: Partition = self.dataset.begin_stream(index)

    def _find(self, command: PutCommand, schema: SchemaMessage, index: int) -> Dataset:
        store = self._core.store
        request = CreateRequest(command.dataset)
        if command.mode == "overwrite":
            store.check_open()
            if index:
                raise InvalidRequest("overwrite replaces a whole dataset: it writes partition 0 and no other")
            dataset = store.prepare(request, schema)
            old = store.get(command.dataset)
            self._install_at_end = old is not None and old.failure is None
            if not self._install_at_end:
                store.install(dataset)
            return dataset
        existing = store.get(command.dataset)
        if command.generation is not None:
            return store.find(command.dataset, command.generation)
        if existing is None:
            if index:
                raise InvalidRequest(
                    f"dataset {command.dataset!r} does not exist: create it with the number of its partitions "
                    f"before putting partition {index}",
                    dataset=command.dataset,
                )
            return store.create(request, schema)[0]
        if existing.partition_count == 1 and existing.failure is not None:
            # What failed frees its name. A new generation: nobody may read on in other data.
            return store.create(existing.request(), schema)[0]
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
            "partitions": {str(self._partition.index): totals_now.bytes},
            "generation": self.dataset.generation,
        }

    async def end(self) -> None:
        if self._committed:
            return
        if self._must_commit:
            raise ProducerFailed(
                f"dataset {self.dataset.name!r} partition {self._partition.index}: the producer ended without its "
                "commit message",
                dataset=self.dataset.name,
                partition=self._partition.index,
            )
        await self._seal()

    async def _seal(self) -> None:
        if self.dataset.durable:
            await persist(self._core, self.dataset, [self._partition.index])
        self.dataset.end_stream(self._partition)
        if self._install_at_end:
            self._core.store.install(self.dataset)

    def abort(self, cause: FlightShuffleError) -> None:
        if self._partition.failure is None and not self._committed:
            self._partition.fail(cause)
            if self.dataset.partition_count == 1:
                # Its name stays for a while, so that readers learn why, and is free for the next put.
                self.dataset.lease_seconds = FAILED_LEASE_SECONDS
                self.dataset.touch()


class AttemptSink:
    """One attempt of one shuffle producer."""

    def __init__(self, core: Core, command: PutCommand, dataset: Dataset, schema: SchemaMessage) -> None:
        if command.producer is None or command.attempt is None:
            raise InvalidRequest(
                f"dataset {dataset.name!r} is a shuffle: put with "
                '{"dataset": …, "producer": task index, "attempt": id of this try}',
                dataset=dataset.name,
            )
        if command.partition is not None:
            raise InvalidRequest(
                "a shuffle's partition is each batch's app_metadata, not a part of the descriptor",
                dataset=dataset.name,
            )
        self._core = core
        self.dataset = dataset
        dataset.describe(schema)
        self._attempt: Attempt = dataset.begin_attempt(command.producer, command.attempt)
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
        by_partition = {str(index): size for index, size in sorted(self._attempt.bytes_by_partition.items())}
        answer = {
            "committed": True,
            "rows": self._attempt.rows,
            "bytes": self._attempt.total_bytes,
            "partitions": by_partition,
            "generation": self.dataset.generation,
        }
        complete = self.dataset.commit(self._attempt, totals)
        self._committed = True
        if complete:
            await seal(self._core, self.dataset, None)
        return answer

    async def end(self) -> None:
        if not self._committed:
            raise ProducerFailed(
                f"{self._attempt}: the producer ended without its commit message; nothing of it was kept",
                dataset=self.dataset.name,
                producer=self._attempt.producer,
            )

    def abort(self, cause: FlightShuffleError) -> None:
        if not self._committed:
            self.dataset.attempts.discard(self._attempt)


async def seal(core: Core, dataset: Dataset, attempts: dict[int, str] | None) -> None:
    """Seal a shuffle with its accepted attempts; if it is durable, when it is on disk.

    Raises:
        Conflict: see :meth:`Dataset.accept`; nothing was changed.
        Unavailable: the disk does not take it; seal again with the same attempts.
    """
    dataset.accept(attempts)
    if dataset.durable and not dataset.sealed:
        await persist(core, dataset, range(dataset.partition_count))
    dataset.close()
    dataset.touch()


async def receive(
    core: Core,
    messages: AsyncIterator[bytes],
    peer: str,
    answer: Callable[[bytes], None],
) -> None:
    """Take one put from its first message to its end.

    Args:
        messages: FlightData as it came; ends where the client has said that it has no more.
        answer: takes the app_metadata of a PutResult; must not wait.

    Raises:
        FlightShuffleError: the put was refused or failed; nothing of it is left.
    """
    put = _Put(core, peer, answer)
    try:
        async for message in messages:
            await put.take(message)
        await put.end()
    except FlightShuffleError as error:
        put.abort(error)
        raise
    except BaseException:
        # The client broke off (cancellation) or this is a bug; readers learn what it means for them.
        put.abort(None)
        raise


class _Put:
    def __init__(self, core: Core, peer: str, answer: Callable[[bytes], None]) -> None:
        self._core = core
        self._peer = peer
        self._answer = answer
        self._decoder = FrameDecoder(
            max_message_bytes=core.max_message_bytes, full_validation=core.settings.full_validation
        )
        self._command: PutCommand | None = None
        self._sink: Sink | None = None
        self._dictionaries: DictionaryState = NO_DICTIONARIES
        self._sequence = 0
        self._commit_seen = False
        core.counters.puts += 1

    async def take(self, message: bytes) -> None:
        if self._command is None:
            descriptor = bytes(locate(message).descriptor)
            if not descriptor:
                raise InvalidRequest("the first message of a put must carry the descriptor of its dataset")
            self._command = parse_descriptor(descriptor)
        try:
            accepted = self._decoder.feed(message)
        except BadFrame as bad:
            raise BadFrame(
                f"{self._where()}: {bad.message}", **bad.detail, dataset=self._command.dataset
            ) from None
        if accepted.schema is not None:
            self._sink = self._open(self._command, accepted.schema)
            return
        if accepted.kind is MessageKind.NONE:
            await self._metadata_only(accepted.metadata)
            return
        assert self._sink is not None
        if self._commit_seen:
            raise Conflict(f"{self._where()}: a batch came after the commit", dataset=self._command.dataset)
        reservation = await self._core.admit(
            len(message), dataset=self._command.dataset, partition=self._command.partition, peer=self._peer
        )
        self._keep(self._sink, message, accepted, reservation)

    async def end(self) -> None:
        self._decoder.end()
        if self._command is None:
            raise InvalidRequest(
                "the put ended before its first message, which carries descriptor and schema"
            )
        if self._sink is None:
            raise InvalidRequest(f"{self._where()}: the put ended before its schema")
        await self._sink.end()

    def abort(self, error: FlightShuffleError | None) -> None:
        self._decoder.end()
        if self._sink is None or self._command is None:
            return
        reason = error.message if error is not None else "its producer broke off"
        self._sink.abort(
            ProducerFailed(
                f"{self._where()} failed: {reason}. Nothing of it was kept; write it again",
                dataset=self._command.dataset,
                partition=self._command.partition or 0,
                producer=self._command.producer,
            )
        )

    def _where(self) -> str:
        command = self._command
        assert command is not None
        parts = [f"dataset {command.dataset!r}"]
        if command.producer is not None:
            parts.append(f"producer {command.producer} attempt {command.attempt}")
        else:
            parts.append(f"partition {command.partition or 0}")
        return f"{' '.join(parts)} (from {self._peer})"

    def _open(self, command: PutCommand, schema: SchemaMessage) -> Sink:
        if command.mode != "overwrite":
            known = self._core.store.get(command.dataset)
            if known is not None and known.kind is Kind.SHUFFLE:
                if command.generation is not None:
                    self._core.store.find(command.dataset, command.generation)
                return AttemptSink(self._core, command, known, schema)
            if known is not None and known.kind is not Kind.STREAM:
                raise Conflict(
                    f"dataset {known.name!r} is of kind {known.kind.value!r}, which nobody puts into",
                    dataset=known.name,
                )
            if known is None and command.producer not in (None, 0):
                self._core.store.find(command.dataset)
        return StreamSink(self._core, command, schema)

    async def _metadata_only(self, metadata: bytes) -> None:
        assert self._command is not None
        if self._sink is not None and self._command.attempt is not None:
            if self._commit_seen:
                raise Conflict(f"{self._where()}: a second commit came", dataset=self._command.dataset)
            self._commit_seen = True
            self._answer(dump_json(await self._sink.commit(Commit.parse(metadata))))
        elif metadata:
            self._answer(metadata)

    def _keep(self, sink: Sink, message: bytes, accepted: Accepted, reservation: Reservation) -> None:
        """Store a message that was checked and admitted. No await: it is kept or it is not."""
        self._sequence += 1
        payload = Payload(message, reservation)
        if accepted.kind is MessageKind.DICTIONARY:
            self._dictionaries = self._dictionaries.replaced(
                accepted.dictionary_id,
                DictionaryMessage(payload, self._sequence),
                delta=accepted.dictionary_delta,
            )
            return
        frame = Frame(
            rows=accepted.rows,
            size_bytes=len(message),
            crc32c=crc32c(message),
            payload=payload,
            dictionaries=self._dictionaries,
        )
        sink.publish(sink.place(accepted.metadata), frame)
        counters = self._core.counters
        counters.frames_in += 1
        counters.encodes += 1
        counters.rows_in += accepted.rows
        counters.bytes_in += len(message)
        sink.dataset.touch()
        if accepted.metadata and self._command is not None and self._command.attempt is None:
            self._answer(accepted.metadata)
