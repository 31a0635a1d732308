"""Receiving: checks, counts and stores a put's messages.

Guarantee: a message is checked (``decoder``), counted and admitted (``admission``) before it is stored. A producer that
breaks off, is refused, commits other totals than arrived or sends a wrong checksum, of a message on the bulk lane or in
a commit, leaves nothing behind: its partition fails, or its attempt is discarded.

Broken off or ended
    gRPC reports both as the end of the requests, so a put without a commit awaits :meth:`PutAnswers.confirm_end`.

Decoding
    A thread decodes large or compressed messages. The account of arrivals counts their decoded size, ``builder`` the
    decoder's copies of dictionaries, for a ``BatchSink`` ``DictionaryRooms`` its dictionaries.

Commits
    After a commit a put that gives batches (``BatchSink``) can go on, with a commit of its own, unless it has a
    transaction. If it breaks off later, its commits stay. Anything else after a commit is refused.

Deadlines
    A put's wait for its client is listed, with dataset, partition and producer once the first message has named them,
    and ends at a deadline, unless ``put_idle_seconds`` is 0: that is for the time between messages, generous, because a
    program may compute for minutes between two batches. ``stall_seconds`` is for the time inside a message, since the
    last byte; the gRPC lane shows no parts of messages, so there a stall inside one counts as between two. The time in
    which the server holds the producer back (``room_for_arrivals``) does not count.

    An attempt of a shuffle may be silent for longer, until the lease ends that its driver renews (``lifetime``): a
    Spark task may compute for hours. The driver sees whether the task lives, and the server whether the connection
    does: keepalive ends the put of a peer that has vanished, a seal or a drop leaves one without a lease. So what a
    task does, such as a function that keeps the interpreter's lock, neither ends its put nor has to keep it.

Answers
    A commit is answered with its totals. In a put without an attempt each app_metadata is echoed, as Arrow's
    integration tests expect. Messages without a header are not stored. A large echo waits for room (``answer_room``)
    before the next message is taken. Small echoes never wait: when the client does not read them, the gRPC lane drops
    the oldest, the bulk lane the newest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from flight_server.access import open_stream
from flight_server.datasets import Caller, Catalogue, Counters, Dataset
from flight_server.frames import (
    Accepted,
    Checked,
    DictionaryRooms,
    FrameBuilder,
    FrameDecoder,
    Inspected,
    SchemaMessage,
)
from flight_server.kinds import BatchSink, FrameSink, Kinds, Sink
from flight_server.memory import Reservation
from flight_server.protocol import (
    BadFrame,
    Commit,
    Conflict,
    DamagedMessage,
    FlightShuffleError,
    InvalidRequest,
    Kind,
    MessageKind,
    ProducerFailed,
    ProducerStalled,
    PutCommand,
    check_dataset_name,
    check_few_fields,
    dump_json,
    locate,
    parse_partition,
    wire,
)
from flight_server.protocol.checksums import message_crc32c, running_crc32c, sent_crc32c
from flight_server.tiering import Admission, Reader

from .answer_room import AnswerRoom
from .arriving import Arriving
from .request_limits import check_size


@dataclass(eq=False)
class Producer:
    """The client of one put. The receiver sets ``command`` when the first message has come, and ``sink`` with the
    schema. ``idle_seconds``: the deadline between messages; None for no limit.
    """

    admission: Admission
    caller: Caller
    idle_seconds: float | None
    stall_seconds: float
    command: PutCommand | None = None
    sink: Sink | None = None
    rows: int = 0  # that were stored
    size_bytes: int = 0
    _known: dict[str, Any] | None = None  # the facts, once the command is known

    @property
    def peer(self) -> str:
        return self.caller.peer

    def __str__(self) -> str:
        command = self.command
        if command is None:
            return f"a put from {self.peer}"
        if command.producer is not None:
            part = f"producer {command.producer} attempt {command.attempt}"
        else:
            part = f"partition {command.partition or 0}"
        return f"dataset {command.dataset!r} {part} (from {self.peer})"

    async def room(self) -> None:
        """Wait while ``arrivals`` is full; if it holds nothing there is no need to call this."""
        await self.admission.room_for_arrivals(self.peer)

    def awaited(self) -> AbstractContextManager[int]:
        """List the wait for its next message; the number of the wait."""
        return self.admission.waits.enter(
            "writer", peer=self.peer, deadline_seconds=self.idle_seconds, **(self._known or self._facts())
        )

    def is_overdue(self, wait: int, silent_seconds: float) -> bool:
        """Whether the ``wait``, which has lasted for so long, is to end. If not, it is listed with its new deadline."""
        if self.idle_seconds is None or silent_seconds < self.idle_seconds:
            return False
        more_seconds = 0.0 if self.sink is None else self.sink.silent_seconds
        if more_seconds > 0:
            self.admission.waits.extend(wait, silent_seconds + more_seconds)
        return more_seconds <= 0

    def stalled(self, *, inside: bool) -> ProducerStalled:
        if inside:
            silence = f"no byte came for {self.stall_seconds:g} s inside a message (--stall-seconds)"
        else:
            silence = f"no message came for {self.idle_seconds or 0:g} s (--put-idle-seconds)"
        return ProducerStalled(f"{self}: {silence}; nothing of it was kept, write it again", **self._facts())

    def _facts(self) -> dict[str, Any]:
        command = self.command
        if command is None or self._known is not None:
            return self._known or {}
        # A producer with an index may write to many partitions; one without writes to one.
        partition = command.partition if command.producer is not None else command.partition or 0
        self._known = {"dataset": command.dataset, "partition": partition, "producer": command.producer}
        return self._known


class PutAnswers(Protocol):
    """A lane's side of one put."""

    @property
    def checksum(self) -> int | None:
        """The client's ``sent_crc32c`` of the last message, in the end its ``running_crc32c``; None if it has none."""

    def put(self, metadata: bytes, room: Reservation | None = None) -> None:
        """Send a PutResult with this app_metadata. Never waits. ``room`` counts it until the transport has taken it."""

    async def confirm_end(self) -> None:
        """Return only if the client itself has ended its messages."""


@dataclass(eq=False)
class PutReceiver:
    """Takes the puts of both lanes. Arguments as of ``FrameDecoder`` and :class:`Producer`."""

    admission: Admission
    kinds: Kinds
    catalogue: Catalogue
    counters: Counters
    answer_room: AnswerRoom
    arriving: Arriving
    max_message_bytes: int
    max_schema_bytes: int
    full_validation: bool
    idle_seconds: float | None
    stall_seconds: float

    def producer(self, caller: Caller) -> Producer:
        return Producer(self.admission, caller, self.idle_seconds, self.stall_seconds)

    def decoder(self) -> FrameDecoder:
        return FrameDecoder(
            max_message_bytes=self.max_message_bytes,
            full_validation=self.full_validation,
            max_schema_bytes=self.max_schema_bytes,
        )

    async def receive(self, messages: AsyncIterator[bytes], producer: Producer, answers: PutAnswers) -> None:
        """Take one put from its first message to its end; sets the producer's ``command``.

        Args:
            messages: FlightData as it came, until the client ends it or the call breaks off.

        Raises:
            FlightShuffleError: the put was refused or failed; nothing of it is left.
        """
        put = _Put(self, producer, answers)
        try:
            with open_stream():
                async for message in messages:
                    await put.take(message)
                    # While room for its echo or the next one is awaited, only its frame may hold it.
                    del message
                    if put.unanswered:
                        await put.echo()
                await put.end()
        except FlightShuffleError as error:
            put.abort(error)
            raise
        except BaseException:
            # The client broke off (a cancellation), or a bug; readers get ProducerFailed.
            put.abort(None)
            raise


class _Put:
    def __init__(self, receiver: PutReceiver, producer: Producer, answers: PutAnswers) -> None:
        self._receiver = receiver
        self._admission = receiver.admission
        self._kinds = receiver.kinds
        self._catalogue = receiver.catalogue
        self._producer = producer
        self._peer = producer.peer
        self._answers = answers
        self._decoder = receiver.decoder()
        self._sink: Sink | None = None
        self._builder: FrameBuilder | None = None  # None until the schema has come, as the sink
        self._dictionaries = DictionaryRooms[Reservation]()  # of a BatchSink
        self._running_crc32c = 0  # of all messages so far
        self._commit_seen = False
        self.unanswered: bytes | memoryview = b""
        self._schema_room: Reservation | None = None
        receiver.counters.puts += 1

    @property
    def _command(self) -> PutCommand:
        """What the first message has said."""
        assert self._producer.command is not None
        return self._producer.command

    async def take(self, message: bytes) -> None:
        if self._producer.command is None:
            self._check_first(message)
            descriptor = bytes(locate(message).descriptor)
            if not descriptor:
                raise InvalidRequest("the first message of a put must carry the descriptor of its dataset")
            check_size(len(descriptor), f"the descriptor of a put from {self._peer}")
            command = parse_descriptor(descriptor)
            self._producer.caller.check(command.dataset)
            self._producer.command = command
        try:
            inspect, large = self._decoder.inspect, self._decoder.has_large_header(message)
            inspected = await asyncio.to_thread(inspect, message) if large else inspect(message)
            if inspected.costly or inspected.kind is MessageKind.SCHEMA:
                accepted = await self._decode(inspected, len(message))
            else:
                accepted = self._decoder.decode(inspected, self._answers.checksum)
        except (BadFrame, DamagedMessage) as bad:
            kind = type(bad) if self._is_whole(message) else DamagedMessage
            raise kind(
                f"{self._producer}: {bad.message}",
                **bad.detail,
                dataset=self._command.dataset,
                producer=self._command.producer,
            ) from None
        before = self._running_crc32c
        self._running_crc32c = running_crc32c(before, accepted.sent_crc32c)
        if accepted.schema is not None:
            dataset = self._command.dataset
            schema = self._catalogue.schemas.hold(accepted.schema, dataset)
            self._sink = self._producer.sink = self._open(self._command, schema)
            self._builder = FrameBuilder(self._catalogue.budget.metadata, dataset)
            self._decoder.keeps_batches = isinstance(self._sink, BatchSink)
            return
        if accepted.kind is MessageKind.NONE:
            await self._metadata_only(accepted, before)
            return
        assert self._sink is not None
        if self._commit_seen:
            self._begin_again(self._sink)
        if isinstance(self._sink, BatchSink) and accepted.batch is not None:
            await self._add(self._sink, accepted.batch, max(len(message), inspected.decoded_bytes))
            self._echo_later(accepted)
            return
        checked = Checked(message, accepted)
        room = await self._admit(self._sink.dataset, checked.kept_bytes)
        if isinstance(self._sink, BatchSink):
            self._dictionaries.add(accepted, room)
        else:
            self._keep(self._sink, checked, room)
        self._echo_later(accepted)

    def _begin_again(self, sink: Sink) -> None:
        """Let a batch follow a commit."""
        if not isinstance(sink, BatchSink) or self._command.transaction is not None:
            raise Conflict(f"{self._producer}: a batch came after the commit", dataset=self._command.dataset)
        self._catalogue.check_open()
        sink.begin()
        self._commit_seen = False

    async def _add(self, sink: BatchSink, batch: pa.RecordBatch, size_bytes: int) -> None:
        dictionaries = self._dictionaries.decoded()
        await sink.add(batch, await self._admit(sink.dataset, size_bytes), dictionaries)
        self._count(sink, batch.num_rows, size_bytes)

    def _count(self, sink: Sink, rows: int, size_bytes: int) -> None:
        self._producer.rows += rows
        self._producer.size_bytes += size_bytes
        self._receiver.counters.batch_in(rows, size_bytes)
        sink.dataset.touch()

    async def _admit(self, dataset: Dataset, size_bytes: int) -> Reservation:
        """Wait for room to keep a message, while no lease ends. Raises DatasetDropped, QuotaExceeded."""
        partition, owner = self._command.partition, dataset.owner
        if owner is None and (at_once := self._admission.admit_nowait(size_bytes)) is not None:
            if dataset.dropped:
                dataset.partition(partition or 0).check()
            return at_once
        claim = nullcontext() if owner is None else owner.claim(size_bytes, dataset.name)
        with dataset.held_back(), claim:
            room = await self._admission.admit(
                size_bytes, dataset=dataset.name, partition=partition, peer=self._peer
            )
            if owner is not None:
                owner.frames.take(room)
        if dataset.dropped:
            dataset.partition(partition or 0).check()
        return room

    async def _decode(self, inspected: Inspected, size_bytes: int) -> Accepted:
        """Decode a costly message in a thread, any other one in the loop. Cancelling is safe."""
        if inspected.kind is MessageKind.SCHEMA and self._schema_room is None:
            # The decoder holds the schema as Arrow's object until the put ends.
            measure = self._decoder.measure
            size = await asyncio.to_thread(measure, inspected) if inspected.costly else measure(inspected)
            self._schema_room = self._catalogue.schemas.room(size.object_bytes, self._command.dataset)
        if not inspected.costly:
            return self._decoder.decode(inspected, self._answers.checksum)
        room = await self._admission.arrival(
            max(size_bytes, inspected.decoded_bytes),
            dataset=self._command.dataset,
            partition=self._command.partition,
            peer=self._peer,
        )
        return await asyncio.to_thread(_decode, self._decoder, inspected, self._answers.checksum, room)

    async def end(self) -> None:
        if not self._commit_seen:
            await self._answers.confirm_end()
        self._decoder.end()
        if self._producer.command is None:
            raise InvalidRequest(
                "the put ended before its first message, which carries descriptor and schema"
            )
        if self._sink is None:
            raise InvalidRequest(f"{self._producer}: the put ended before its schema")
        self._compare(self._answers.checksum, self._running_crc32c)
        last = await self._sink.end()
        if last is not None:
            self._answers.put(dump_json(last))

    def abort(self, error: FlightShuffleError | None) -> None:
        self._decoder.end()
        if self._sink is None:
            return
        reason = error.message if error is not None else "its producer broke off"
        self._sink.abort(
            ProducerFailed(
                f"{self._producer} failed: {reason}. Nothing of it was kept; write it again",
                dataset=self._command.dataset,
                partition=self._command.partition or 0,
                producer=self._command.producer,
            )
        )

    def _open(self, command: PutCommand, schema: SchemaMessage) -> Sink:
        self._catalogue.check_open()
        known = None
        if command.mode != "overwrite":
            known = self._catalogue.get(command.dataset, command.generation)
            if known is not None:
                self._catalogue.check_stays(known)
        new = Kind.STREAM if command.create is None else Kind.SHUFFLE
        return self._kinds[new if known is None else known.kind].sink(command, known, schema)

    def _check_first(self, message: bytes) -> None:
        """Compare the checksum of the first message before any of it is used."""
        if not self._is_whole(message):
            raise DamagedMessage(
                f"the first message of a put from {self._peer} was damaged on its way; write it again"
            )

    def _is_whole(self, message: bytes) -> bool:
        declared = self._answers.checksum
        if declared is None:
            return True
        try:
            parts = locate(message)
        except BadFrame:
            return False
        checksum = message_crc32c(parts.header, parts.body)
        return declared == sent_crc32c(checksum, parts.metadata, parts.descriptor)

    def _compare(self, declared: int | None, arrived: int) -> None:
        """Return if all messages so far are those that the client sent."""
        if declared is not None and declared != arrived:
            raise DamagedMessage(
                f"{self._producer}: what arrived has checksum {arrived:08x}, and {declared:08x} was sent; nothing of "
                "it was kept, write it again",
                dataset=self._command.dataset,
                producer=self._command.producer,
            )

    def _echo_later(self, accepted: Accepted) -> None:
        if self._command.attempt is None and accepted.kind is not MessageKind.DICTIONARY:
            self.unanswered = accepted.metadata

    async def echo(self) -> None:
        """Answer the app_metadata of the message taken last, if it is ``unanswered``, in a put without an attempt.
        Raises OutOfBudget: a large one found no room until the deadline.
        """
        metadata, self.unanswered = self.unanswered, b""
        reader = Reader(self._command.dataset, self._command.partition or 0, self._peer)
        room = await self._receiver.answer_room.room(len(metadata), reader)
        self._answers.put(bytes(metadata), room)

    async def _metadata_only(self, accepted: Accepted, before: int) -> None:
        metadata = bytes(accepted.metadata)
        check_size(len(metadata), f"{self._producer}: a message without a batch")
        if self._sink is not None and self._command.attempt is not None:
            if self._commit_seen:
                raise Conflict(f"{self._producer}: a second commit came", dataset=self._command.dataset)
            self._commit_seen = True
            try:
                totals = Commit.parse(metadata)
            except InvalidRequest as bad:
                raise InvalidRequest(
                    f"{self._producer}: {bad.message}", dataset=self._command.dataset
                ) from None
            self._compare(totals.crc32c, before)
            self._answers.put(dump_json(await self._sink.commit(totals)))
        else:
            self._echo_later(accepted)

    def _keep(self, sink: Sink, checked: Checked, reservation: Reservation) -> None:
        """Store a checked and admitted message. No await: it is stored whole or not at all."""
        assert self._builder is not None
        frame = self._builder.add(checked, reservation)
        if frame is None:
            return
        assert isinstance(sink, FrameSink)
        sink.publish(sink.place(bytes(checked.accepted.metadata)), frame)
        self._count(sink, frame.rows, frame.size_bytes)


def parse_path(path: Sequence[bytes | memoryview]) -> tuple[str, int | None]:
    """Dataset and, if named, partition of a PATH descriptor. Raises InvalidRequest."""
    if not 1 <= len(path) <= 2:
        raise InvalidRequest(
            f"a PATH descriptor is [dataset] or [dataset, partition], not {len(path)} elements"
        )
    try:
        parts = [str(part, "utf-8") for part in path]
    except UnicodeDecodeError:
        raise InvalidRequest("a PATH descriptor must be UTF-8 text") from None
    return check_dataset_name(parts[0]), parse_partition(parts[1]) if len(parts) == 2 else None


def parse_descriptor(data: bytes) -> PutCommand:
    """The command of a put's descriptor. Raises InvalidRequest if it is neither a valid PATH nor a valid CMD."""
    check_few_fields(data, "FlightDescriptor")
    kind, command = 0, b""
    path: list[memoryview] = []
    for number, value in wire.fields(data):
        if isinstance(value, int):
            kind = value if number == 1 else kind
        elif number == 2:
            command = bytes(value)
        elif number == 3:
            path.append(value)
    if kind == wire.PATH_DESCRIPTOR:
        return PutCommand(*parse_path(path))
    if kind == wire.CMD_DESCRIPTOR:
        return PutCommand.parse(command)
    raise InvalidRequest("the descriptor must be a PATH [dataset] or a CMD with JSON")


def _decode(decoder: FrameDecoder, inspected: Inspected, declared: int | None, room: Reservation) -> Accepted:
    """Runs in a thread, and holds the room until it ends, also when the put was cancelled."""
    try:
        return decoder.decode(inspected, declared)
    finally:
        room.free()
