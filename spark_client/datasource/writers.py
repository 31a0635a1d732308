"""Writes: staged by the tasks, published at once by the driver when Spark has accepted all of them; of a batch job, or
of each micro-batch of a stream, once and whole, also when Spark runs it again.

Guarantee: readers see a write whole or not at all. Overwrite: readers that have begun to read the old dataset finish.
Append: the earlier rows, and their readers, stay as they are. When the job fails or is cancelled nothing is left
behind.

Modes
    Spark passes only ``append`` and ``overwrite`` on to Python sources, and refuses ``errorifexists``, its default,
    and ``ignore``. For these two ``append`` has the option ``exists``.

Repetition
    With a transaction (options ``transaction_app`` and ``transaction_version``, as Delta Lake's ``txnAppId`` and
    ``txnVersion``) a write is published once: the dataset remembers the last versions of each application, also over
    overwrites, and over restarts of the server if it is durable or a changelog. A repeated write is skipped, in any
    mode: no task sends a row. A version below the last one that is not remembered is refused with Conflict.

A partition of the dataset has the rows of one task, in their order; a task without rows has an empty one, which an
append leaves out. A write to a changelog is one version, also without rows.

Streams
    A micro-batch that Spark runs again, after a failure or a restart from its checkpoint, is not published twice: the
    dataset remembers the last batch of each query. A batch is refused if those before it are not there (the dataset was
    dropped, overwritten, or lost with its server); ``fail_on_data_loss`` ``false`` goes on with the rest.

    Each micro-batch with rows becomes one partition, or one for each 128 MiB, so a dataset takes at most 100,000
    batches; then the query fails. Output mode ``complete`` overwrites the dataset with each batch. Spark refuses
    ``update``.

    Of a changelog each micro-batch becomes one version, also without rows, and there is no limit of batches. It
    remembers the last batches of each query also over restarts of the server, for at least ``DAYS`` of
    ``datasets.transactions`` there: a query that goes on later than that may be refused, and is never written twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from flight_server.protocol import AlreadyExists, FlightShuffleError, InvalidRequest, Transaction, WriteMode
from spark_client.connection import short_traces
from spark_client.executors import portable

from .source_options import SourceOptions
from .staging import StagedWrite, Staging


@short_traces
class FlightWriter(DataSourceArrowWriter):
    """One job's write. ``writes`` is False if the dataset is to be left as it is: it exists, or has this write."""

    def __init__(self, staging: Staging, ignore: bool, writes: bool) -> None:  # noqa: FBT001 - called by pickle
        self._staging = staging
        self._ignore = ignore
        self._writes = writes

    @classmethod
    def plan(cls, options: SourceOptions, struct: StructType, *, overwrite: bool) -> FlightWriter:
        """Ask the server whether this write is possible, before Spark runs the job.

        Raises:
            AlreadyExists: option ``exists`` is ``error``, and it does.
            Conflict: an append to a dataset that is durable, a source, or not sealed.
            InvalidRequest: ``exists`` with mode ``overwrite``, or an append of other columns.
        """
        exists = options.get("exists")
        if overwrite and exists is not None:
            raise InvalidRequest("option 'exists' goes with mode 'append', not with 'overwrite'")
        append = WriteMode.APPEND if exists in (None, "append") else WriteMode.NEW
        staging = Staging.of(options, struct, WriteMode.OVERWRITE if overwrite else append, together=False)
        ignore = exists == "ignore"
        try:
            repeated = bool(staging.stage().get("repeated"))
        except AlreadyExists as error:
            if not ignore:
                raise AlreadyExists(
                    f"dataset {options.dataset!r} exists: choose another name, or mode 'overwrite', or "
                    "option 'exists' 'append' or 'ignore'",
                    **error.detail,
                ) from error
            return cls(staging, True, False)  # noqa: FBT003 - as pickle calls it
        return cls(staging, ignore, not repeated)

    def __reduce__(self) -> tuple[Any, ...]:
        return portable(FlightWriter, self._staging, self._ignore, self._writes)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._staging.write(iterator) if self._writes else WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows of these tasks. Raises as :meth:`Staging.seal`."""
        try:
            if self._writes:
                self._staging.seal(messages)
        except AlreadyExists:
            self.abort(messages)
            if not self._ignore:
                raise

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - of some tasks only
        """Drop the staged rows, also of tasks that no message tells of. A server out of reach does it by itself."""
        if self._writes:
            with contextlib.suppress(FlightShuffleError):
                self._staging.drop([str(self._staging.stage(once=True)["generation"])])


@short_traces
class FlightStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch's write. Spark makes one for its tasks, and another one for its commit."""

    def __init__(self, staging: Staging, overlooks_loss: bool) -> None:  # noqa: FBT001 - called by pickle
        self._staging = staging
        self._overlooks_loss = overlooks_loss

    @classmethod
    def plan(cls, options: SourceOptions, struct: StructType, *, overwrite: bool) -> FlightStreamWriter:
        """Raises as :meth:`Staging.of`. Raises InvalidRequest: batches are to be appended to a dataset that is
        durable.
        """
        if options.get("durable") and not overwrite:
            raise InvalidRequest(
                "option 'durable' of df.writeStream goes with output mode 'complete': nothing can be appended to a "
                "durable dataset"
            )
        mode = WriteMode.OVERWRITE if overwrite else WriteMode.APPEND
        staging = Staging.of(options, struct, mode, together=True)
        return cls(staging, overwrite or not options.get("fail_on_data_loss"))

    def __reduce__(self) -> tuple[Any, ...]:
        return portable(FlightStreamWriter, self._staging, self._overlooks_loss)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self._staging.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the batch, unless it was before.

        Raises:
            Conflict: an earlier batch is lost.
            FlightShuffleError: as :meth:`Staging.seal`.
        """
        query = next((each.query for each in messages if isinstance(each, StagedWrite) and each.query), None)
        after = None if self._overlooks_loss or batchId == 0 else batchId - 1
        transaction = None if query is None else Transaction(query, batchId, after)
        if transaction is None or after is None:
            # Not for a later batch, which is refused: a changelog that was dropped stays so.
            self._staging.make_changelog()
        self._staging.seal(messages, transaction)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's signature
        """Drop the rows that these tasks staged; those of other tasks end with their lease."""
        self._staging.drop({each.generation for each in messages if isinstance(each, StagedWrite)})
