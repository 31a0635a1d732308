"""Staging: the tasks of a write stage their rows on the server, where no reader sees them before the seal.

Guarantee: a task commits all its rows as one attempt, named by ``taskAttemptId``, or none. Only the attempts whose
messages Spark hands to ``commit`` are sealed: the rows of a failed, retried, speculative or killed task are never
visible.

Who holds what
    The first call for a write makes its staged dataset, the others find it, so tasks need no word from the driver. It
    ends with the seal, with the abort, or when no task has written for as long as its lease (``datasets.staged_writes``
    on the server). A task renews it while it works, also for the tasks that have ended.

Restarts
    A server that restarts loses staged rows. While the rows of a task are few (:class:`FewRows`) they are staged
    again: by the task if its put breaks, by the driver before the seal.

Schema
    An append has the schema of the dataset that it is for, and rows are cast to it, columns by name; else it is
    Spark's. Casts are safe ones (``arrow.types``).

Changelogs
    The seal makes one version of all rows. With the option ``changelog`` the name leads to a changelog of that keep
    rule, or the write is refused before a row is sent. Its schema is that of the first DataFrame, without the column
    ``_diff``.

    A DataFrame may have the column ``_diff``, of any integer type: how often its row is asserted, or below zero
    retracted. With the option ``delete`` it has the columns of the key and no other, and the rows of these keys are
    deleted.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from flight_server.protocol import (
    DIFF_COLUMN,
    MAX_PARTITIONS,
    Conflict,
    CreateRequest,
    DatasetRequest,
    FlightShuffleError,
    InvalidRequest,
    KeepRule,
    Kind,
    NotFound,
    PutCommand,
    SealRequest,
    Transaction,
    Unavailable,
    WriteMode,
)
from spark_client.arrow import Coalescer, Declared
from spark_client.changelogs import Changelog, encoded_schema, with_diff
from spark_client.connection import AWAY, LeaseKeeper, RemoteServer, retrying
from spark_client.jobs import WRITE_BUDGET_BYTES, utc_arrow_schema
from spark_client.lanes import BrokenStream, PutStream

from .batch_read import find
from .source_options import SourceOptions


def check_changelog(options: SourceOptions, mode: WriteMode) -> WriteMode:
    """The mode, with the option ``delete`` that of a delete. Raises InvalidRequest if the options do not go together,
    or with this mode.
    """
    if options.get("delete"):
        for name in ("changelog", "exists", "durable"):
            if options.get(name):
                raise InvalidRequest(f"option 'delete' does not go with option {name!r}")
        if mode is not WriteMode.APPEND:
            raise InvalidRequest(
                "option 'delete' goes with mode 'append' alone: it deletes the keys that are written"
            )
        return WriteMode.DELETE
    if options.get("changelog") is None:
        if options.get("delay_seconds") is not None:
            raise InvalidRequest("option 'delay_seconds' goes with option 'changelog'")
    elif mode is not WriteMode.APPEND:
        raise InvalidRequest(
            "option 'changelog' goes with mode 'append' alone: a changelog is not overwritten; drop it before, or "
            "write its keys with the option 'delete'"
        )
    return mode


def deleted_schema(options: SourceOptions, server: RemoteServer) -> Any:
    """The schema for a delete: the columns of the key.

    Raises:
        NotFound: there is no such dataset.
        InvalidRequest: it is no changelog, or one without a key.
    """
    changelog = Changelog.find(server, options.dataset)
    if not changelog.key:
        raise InvalidRequest(
            f"changelog {options.dataset!r} has no keep rule with a key, by which its rows could be deleted: write "
            f"them with -1 in column {DIFF_COLUMN!r}, which retracts them",
            dataset=options.dataset,
        )
    return pa.schema([changelog.schema.field(name) for name in changelog.key])


def appended_schema(
    options: SourceOptions, server: RemoteServer, schema: Any, *, makes: bool
) -> tuple[Any, CreateRequest | None]:
    """The schema for an append of rows of the schema ``schema``; None if there is no such dataset, nor is one to be
    made. And the changelog that the options say, which this makes if it ``makes`` or there is one.

    Raises AlreadyExists, InvalidRequest: the name leads to no changelog, or to one with another keep rule.
    """
    name, keep, changelog = options.dataset, options.get("changelog"), None
    has_diff = DIFF_COLUMN in schema.names
    try:
        known = server.schema(name)
    except NotFound:
        known = None
    if keep is not None:
        makes = makes or known is not None
        known = known or pa.schema([field for field in schema if field.name != DIFF_COLUMN])
        changelog = CreateRequest(
            name,
            Kind.CHANGELOG,
            schema=encoded_schema(known),
            lease_seconds=options.get("lease_seconds"),
            keep=keep if isinstance(keep, KeepRule) else None,
            delay_seconds=options.get("delay_seconds"),
        )
        if makes:
            server.action("create", changelog.encode())
    if known is not None and has_diff and (keep is not None or find(server, name).is_changelog):
        known = with_diff(known)
    return known, changelog


JOINED_BYTES = 128 << 20
"""The rows of a micro-batch's tasks go into one partition together, up to so much."""
_QUERY_ID = "sql.streaming.queryId"
"""Spark tells the tasks of a micro-batch here which query they belong to."""


class LostWrite(FlightShuffleError):
    """The staged rows are not there any more when they are to be published: write them again. ``may_be_published``: an
    earlier seal, whose answer was lost, may have published them.
    """

    code = "lost_write"


FEW_BYTES = 128 << 10
ALL_BYTES = 32 << 20
"""Of the tasks' messages: Spark's driver holds them at once, and fails a job above ``spark.driver.maxResultSize``."""


def few_bytes(task: int) -> int:
    """The bytes that the task of this number may keep: a task does not know how many there are, so the first
    ``ALL_BYTES / FEW_BYTES`` have ``FEW_BYTES`` each, and task ``n`` after them ``ALL_BYTES / n``: 223 MiB for 100,000.
    """
    return min(FEW_BYTES, ALL_BYTES // (task + 1))


class FewRows:
    """The rows of a task that writes, which Spark gives it once, kept while they are few: to send them again, and for
    the task's message, when a server that restarts has lost what was staged.

    Each iteration gives all batches while they are few; else what no iteration has given yet.
    """

    def __init__(self, batches: Iterator[Any], few_bytes: int = FEW_BYTES) -> None:
        self._few_bytes = few_bytes
        self._batches = batches
        self._kept: list[Any] = []
        self._kept_bytes = 0

    @property
    def are_few(self) -> bool:
        """Whether all that were given so far can be given again."""
        return self._kept_bytes <= self._few_bytes

    def __iter__(self) -> Iterator[Any]:
        yield from list(self._kept)
        for batch in self._batches:
            self._kept_bytes += batch.nbytes
            self._kept = [*self._kept, batch] if self.are_few else []
            yield batch

    def encoded(self, schema: pa.Schema) -> bytes | None:
        """All of them as an Arrow IPC stream; None if they, or it with its schema, are not few."""
        if not self.are_few:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            for batch in self._kept:
                stream.write_batch(batch)
        stream_bytes = bytes(sink.getvalue().to_pybytes())
        return stream_bytes if len(stream_bytes) <= self._few_bytes else None


@dataclass(frozen=True)
class StagedWrite(WriterCommitMessage):
    """The message of one task. ``attempt`` is None if it had no rows, ``query`` if it belongs to no stream, ``rows``
    if they are not few (:class:`FewRows`).
    """

    generation: str
    producer: int
    attempt: str | None
    query: str | None
    rows: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class RepeatedWrite(WriterCommitMessage):
    """One task has found that the dataset has the write's transaction by now, and has staged nothing."""


@dataclass(frozen=True)
class Staging:
    """One write. The rows of each task are a partition of their own, or with ``together``, of a stream, a part of one.
    ``changelog`` is what the options say that it goes to.
    """

    server: RemoteServer
    declared: Declared
    request: CreateRequest
    together: bool
    changelog: CreateRequest | None = None

    @classmethod
    def of(cls, options: SourceOptions, struct: StructType, mode: WriteMode, *, together: bool) -> Staging:
        """A write of rows of ``struct``. Asks the server for the schema that an append must have. Makes a changelog if
        the options say so; a stream's :meth:`make_changelog` does, with the first batch.

        Raises:
            InvalidRequest: no columns, an append whose rows cannot be cast to the schema of the dataset, a delete whose
                columns are not the key, or options for a changelog that do not fit.
            Unavailable: the server cannot be reached.
        """
        mode = check_changelog(options, mode)
        server, name = options.server(), options.dataset
        if not struct.names:
            raise InvalidRequest(f"dataset {name!r}: the DataFrame has no columns to write", dataset=name)
        schema = utc_arrow_schema(struct)
        declared = Declared(f"dataset {name!r}", schema, by_name=True)
        changelog: CreateRequest | None = None
        if mode in (WriteMode.APPEND, WriteMode.DELETE):
            if mode is WriteMode.DELETE:
                declared = Declared(
                    f"delete of keys of changelog {name!r}", deleted_schema(options, server), by_name=True
                )
            else:
                known, changelog = appended_schema(options, server, schema, makes=not together)
                if known is not None:
                    declared = Declared(f"append to dataset {name!r}", known, by_name=True)
            # Refused here, not in a task.
            declared.cast(
                pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema)
            )
        request = CreateRequest(
            name,
            Kind.SHUFFLE,
            schema=encoded_schema(declared.schema),
            partitions=MAX_PARTITIONS,
            lease_seconds=options.get("lease_seconds"),
            durable=options.get("durable"),
            mode=mode,
            write=uuid.uuid4().hex,
            transaction=options.transaction,
        )
        return cls(server, declared, request, together, changelog)

    def make_changelog(self) -> None:
        """Make the changelog, if there is none. Raises as the server's action ``create``."""
        if self.changelog is not None:
            self.server.action("create", self.changelog.encode())

    def stage(self, *, once: bool = False) -> dict[str, Any]:
        """Make the staged dataset, or find it; the server's answer. It is ``repeated`` if the dataset has the write's
        transaction: then nothing is made. Raises AlreadyExists, Conflict, InvalidRequest: the server refuses this write
        (``check_mode`` there).
        """
        return self.server.action("create", self.request.encode(), once=once)

    def write(self, batches: Iterator[Any]) -> StagedWrite | RepeatedWrite:
        """Send the rows of this task, and commit them; again, if they are few, when the server has lost them."""
        context = TaskContext.get()
        assert context is not None
        producer, attempt = context.partitionId(), str(context.taskAttemptId())
        if producer >= MAX_PARTITIONS:
            raise InvalidRequest(
                f"dataset {self.request.dataset!r}: a write may have {MAX_PARTITIONS} tasks; coalesce the DataFrame"
            )
        rows = FewRows(
            (self.declared.cast(batch) for batch in batches if batch.num_rows), few_bytes(producer)
        )
        first_answer, query = self.stage(), context.getLocalProperty(_QUERY_ID)
        if first_answer.get("repeated"):
            return RepeatedWrite()
        staged = [first_answer]
        names = itertools.chain([attempt], (f"{attempt}.{number}" for number in itertools.count(1)))
        generation, lease_seconds = "", float(first_answer["lease_seconds"])

        def renew() -> None:
            request = DatasetRequest(self.request.dataset, generation)
            self.server.action("renew", request.encode(), once=True)

        what = f"a write to {self.request.dataset}"
        with contextlib.closing(LeaseKeeper(renew, lease_seconds, what)) as keeper:

            def send() -> StagedWrite | RepeatedWrite:
                nonlocal generation
                answer = staged.pop() if staged else self.stage(once=True)
                if answer.get("repeated"):
                    return RepeatedWrite()
                generation = str(answer["generation"])
                keeper.begin()
                left = iter(rows)
                first = next(left, None)
                if first is None:
                    return StagedWrite(generation, producer, None, query)
                name = next(names)
                self._send(itertools.chain([first], left), producer, name, answer, once=rows.are_few)
                return StagedWrite(generation, producer, name, query, rows.encoded(self.declared.schema))

            return retrying(
                self.server.timeouts, send, (*AWAY, BrokenStream, NotFound), again=lambda: rows.are_few
            )

    def _send(
        self, rows: Iterable[Any], producer: int, attempt: str, staged: dict[str, Any], *, once: bool = False
    ) -> None:
        generation, places = str(staged["generation"]), tuple(staged.get("put_locations", ()))
        command = PutCommand(self.request.dataset, producer=producer, attempt=attempt, generation=generation)
        schema = self.declared.schema
        coalescer = Coalescer(schema, 1, budget_bytes=WRITE_BUDGET_BYTES)
        with PutStream(self.server, command, schema, places, once=once) as stream:
            for batch in rows:
                for _, frame in coalescer.add(batch):
                    stream.write(frame, producer)
            for _, frame in coalescer.finish():
                stream.write(frame, producer)
            stream.commit()

    def seal(self, messages: Iterable[Any], transaction: Transaction | None = None) -> None:
        """Make exactly what these messages report readable, in one step. Called again if its answer is lost; and once
        more with the rows that the messages have, if the server has lost the staged ones.

        Raises:
            LostWrite: the server has not all of it any more; nothing is readable.
            FlightShuffleError: the server refused; nothing is readable.
            Unavailable: it did not answer; whether it is readable is not known.
        """
        transaction = transaction or self.request.transaction
        messages = list(messages)
        written = [message for message in messages if isinstance(message, StagedWrite)]
        generations = {each.generation for each in written}
        if any(isinstance(message, RepeatedWrite) for message in messages):
            self.drop(generations)
            return
        if len(generations) == 1:
            try:
                self._seal(written, transaction, *generations)
            except LostWrite as lost:
                if lost.detail["may_be_published"] and transaction is None:
                    raise
            else:
                return
        try:
            staged = self.stage()
        except Conflict as ended:  # this write was dropped, by a call
            raise self._lost() from ended
        if not staged.get("repeated"):
            moved = [self._message_for(each, staged) for each in written]
            self._seal(moved, transaction, str(staged["generation"]))

    def _message_for(self, written: StagedWrite, staged: dict[str, Any]) -> StagedWrite:
        generation = str(staged["generation"])
        if written.generation == generation:
            return written
        if written.attempt is None:
            return replace(written, generation=generation)
        if written.rows is None:
            raise self._lost()
        attempt = f"{written.attempt}.again"
        with pa.ipc.open_stream(written.rows) as rows:
            self._send(rows, written.producer, attempt, staged)
        return replace(written, generation=generation, attempt=attempt)

    def _seal(self, written: Sequence[StagedWrite], transaction: Transaction | None, generation: str) -> None:
        request = SealRequest(
            self.request.dataset,
            generation,
            {each.producer: each.attempt for each in written if each.attempt is not None},
            None if self.together else max(1, len(written)),
            transaction,
            JOINED_BYTES if self.together else None,
        )
        calls = 0

        def ask() -> None:
            nonlocal calls
            calls += 1
            self.server.action("seal", request.encode(), once=True)

        try:
            retrying(self.server.timeouts, ask, (Unavailable,))
        except NotFound as error:
            raise self._lost(asked_before=calls > 1) from error

    def _lost(self, *, asked_before: bool = False) -> LostWrite:
        why = "the server restarted, or no task wrote for as long as its lease; more 'lease_seconds' help with that"
        if asked_before:
            what = f"is lost ({why}), or was published before that: look whether it is there, else write it again"
        else:
            what = f"is lost, or a part of it: {why}; nothing was published, write it again"
        return LostWrite(
            f"dataset {self.request.dataset!r}: what was written {what}",
            dataset=self.request.dataset,
            may_be_published=asked_before,
        )

    def drop(self, generations: Iterable[str]) -> None:
        """Drop the staged rows, unless they are sealed. If the server cannot be reached, they end with their lease."""
        for generation in generations:
            with contextlib.suppress(FlightShuffleError):
                request = DatasetRequest(self.request.dataset, generation, staged=True)
                self.server.action("drop", request.encode(), once=True)
