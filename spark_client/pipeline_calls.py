"""Calls of a driver about Spark's rows: pipelines, scans, results and broadcasts.

Guarantees and errors: ``pipeline``, ``scan.scans``, ``jobs.results``, ``broadcast.broadcasts``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_client.broadcast import Broadcast
    from spark_client.jobs import Shuffles
    from spark_client.pipeline import Pipeline


class PipelineCalls:
    """The methods; the client has the driver's datasets."""

    @abstractmethod
    def _owned(self) -> Shuffles:
        """The client's own objects; raises InvalidRequest if it is closed."""

    def pipeline(self, df: DataFrame) -> Pipeline:
        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - needs PySpark, which get and put do not

        return Pipeline.of_frame(self._owned(), df)

    def scan(
        self,
        what: Any,
        *,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 - pyarrow's name
        schema: StructType | pa.Schema | str | None = None,
        spark: SparkSession | None = None,
    ) -> Pipeline:
        """A pipeline whose first tasks read Parquet, Arrow IPC, or a dataset themselves: no row goes through the JVM.

        The driver lists the files and plans the tasks now, from their metadata; see ``scan.scans``.

        Args:
            what: a path or an address that pyarrow knows (``s3://``, ``gs://``, …) of a file or a directory, which may
                have hive partitions, a list of these, or a ``pyarrow.dataset.Dataset``. All files below a directory
                are read. Every executor must reach them, with credentials of its own environment, unless the address
                or the Dataset's file system has some.
            columns: their names, in the order of the result; None for all.
            filter: an expression of ``pyarrow.compute``, or a list such as ``[("day", ">=", 5)]``, that rows must
                fulfil. Partitions and row groups that cannot have such rows are not read. Comparisons are Arrow's: NaN
                fulfils none but ``!=``, see ``Pipeline.filter``.
            schema: the columns and their types, as DDL text, a ``StructType`` or a ``pyarrow.Schema``; None for those
                of the first file. A column that a file lacks is null there, others of a file are left out; folders'
                columns are added, with the types that it has for them.
            spark: the session; None for the active one, else the client's last one, else the default one.

        Raises:
            InvalidRequest: an argument, or a file that cannot be read or has other columns than the first one.
            NotFound: there is no file.
        """
        from spark_client.jobs import settings_once  # noqa: PLC0415 - as above
        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - as above
        from spark_client.scan import Scan  # noqa: PLC0415 - as above

        owned = self._owned()
        session = owned.sessions.choose(spark, "scan")
        with settings_once(session):
            scan = Scan.plan(
                session,
                what,
                columns=columns,
                filter=filter,
                schema=schema,
            )
            return Pipeline.of_scan(owned, session, scan)

    def collect(self, data: DataFrame | Pipeline) -> pa.RecordBatchReader:
        """The rows of a DataFrame or pipeline, in the order of Spark's partitions, however many there are. Where a
        pipeline ends with an exchange over several servers, the rows of a partition come in no certain order.

        One Spark job writes them to the server, or none where they are there: a pipeline that ends with an exchange, or
        the DataFrame that ``toDF`` returned for one; or where the driver runs the last steps, over little
        (``pipeline.in_driver``). The driver reads them within the budget of ``Reading``, not bound
        by ``spark.driver.maxResultSize`` and its heap. Unless a DataFrame reads them, the server drops the rows with
        the last batch, an error, the collection of the reader, the end of a :meth:`scope`, or the client's close, not
        with ``reader.close()``.

        Raises:
            InvalidRequest: ``data`` is neither; otherwise as ``Pipeline.toDF``. The reader raises if it cannot give
                all rows.
        """
        from spark_client.pipeline import Pipeline  # noqa: PLC0415 - as above

        return (data if isinstance(data, Pipeline) else self.pipeline(data)).collect()

    def broadcast(self, data: Any, name: str | None = None) -> Broadcast:
        """A table that tasks on every host share, of a pipeline, a DataFrame of Spark or pandas, a pyarrow Table, or
        other data as for :meth:`put`, see ``broadcast.broadcasts``. The last job of a pipeline writes it.
        """
        from spark_client.broadcast import Broadcast  # noqa: PLC0415 - as above
        from spark_client.pipeline import Pipeline, broadcast_rows  # noqa: PLC0415 - as above

        owned = self._owned()
        if isinstance(data, Pipeline):
            return broadcast_rows(data, name)
        return Broadcast.create(owned, data, name)

    def release(self, result: DataFrame) -> None:
        """Drop the results that a DataFrame reads: one that ``toDF`` returned, or all that it was made from.

        Frames, views and caches made from them cannot be computed again.

        Raises:
            InvalidRequest: ``result`` is no DataFrame, or reads no result that this client still has.
            FlightShuffleError: the server could not be reached; the datasets end with their leases.
        """
        self._owned().results.release(result)

    def scope(self) -> AbstractContextManager[None]:
        """``with client.scope():`` releases at its end the results that ``toDF`` returned in the block.

        A program that makes many results needs this or :meth:`release`: garbage collection of a DataFrame releases
        nothing.
        """
        return self._owned().results.scope()
