"""Streaming writes: each micro-batch is published once and whole, also when Spark runs it again.

Guarantee: a micro-batch that Spark runs again, after a failure or a restart from its checkpoint, is not published
twice: the dataset remembers the last batch of each query. A batch is refused if those before it are not there (the
dataset was dropped, overwritten, or lost with its server); ``fail_on_data_loss`` ``false`` goes on with the rest.

Each micro-batch with rows becomes one partition, or one for each 128 MiB, so a dataset takes at most 100,000 batches;
then the query fails. Output mode ``complete`` overwrites the dataset with each batch. Spark refuses ``update``.

Of a changelog each micro-batch becomes one version, also without rows, and there is no limit of batches. It remembers
the last batches of each query also over restarts of the server, for at least ``DAYS`` of ``datasets.transactions``
there: a query that goes on later than that may be refused, and is never written twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest, Transaction, WriteMode
from spark_client.executors import portable

from .source_options import SourceOptions
from .staging import StagedWrite, Staging


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
        self._staging.seal(messages, transaction)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's signature
        """Drop the rows that these tasks staged; those of other tasks end with their lease."""
        self._staging.drop({each.generation for each in messages if isinstance(each, StagedWrite)})
