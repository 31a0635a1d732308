"""Pipeline: the user's methods; each calls a function of the step's module, which adds the step or runs the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, SupportsIndex

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_client.broadcast import Broadcast
from spark_client.jobs import Shuffles
from spark_client.scan import Scan

from .aggregate_requests import Aggregations
from .aggregating import aggregate, distinct
from .base import Steps, leg_of_frame, leg_of_scan
from .cogrouping import Cogrouped
from .combining import count_rows, limit, union
from .exchanging import add_exchange
from .finishing import collect, explain, persist, statistics, to_frame, unpersist
from .grouping_steps import apply_in_arrow, apply_in_pandas
from .joining_steps import On, cogroup, join
from .mapping import MapFunction, filter_rows, map_in_arrow, map_in_pandas, select_columns
from .range_steps import sample_boundaries
from .run_statistics import RunStatistics


class Pipeline(Steps):
    """Steps over DataFrames and scans; each method that does not run the plan returns a new pipeline."""

    @classmethod
    def of_frame(cls, shuffles: Shuffles, df: DataFrame) -> Pipeline:
        """A pipeline without steps over a DataFrame. Raises as :func:`leg_of_frame`."""
        leg = leg_of_frame(shuffles, df)
        return cls(shuffles, df.sparkSession, leg)

    @classmethod
    def of_scan(cls, shuffles: Shuffles, spark: SparkSession, scan: Scan) -> Pipeline:
        """A pipeline without steps over the parts of a scan."""
        return cls(shuffles, spark, leg_of_scan(spark, scan))

    def mapInArrow(self, fn: MapFunction, schema: StructType | str) -> Self:  # noqa: N802 - Spark's name
        """``fn`` over the batches of each partition, as in Spark's ``mapInArrow``.

        Raises:
            InvalidRequest: ``fn`` is not callable, or the schema is invalid or has no Arrow type.
        """
        return map_in_arrow(self, fn, schema)

    def mapInPandas(self, fn: MapFunction, schema: StructType | str) -> Self:  # noqa: N802 - Spark's name
        """``fn`` over an iterator of ``pandas.DataFrame``, as in Spark's ``mapInPandas`` (``steps.pandas_adapters``).

        Raises:
            InvalidRequest: as :meth:`mapInArrow`.
        """
        return map_in_pandas(self, fn, schema)

    def filter(self, expression: Any) -> Self:
        """The rows for which an expression of ``pyarrow.compute`` is true, such as ``pc.field("amount") > 0``.

        Fields have the exact names of columns. A value inside an expression is Arrow's, of Arrow's type: a whole
        number beside a decimal is best written ``pc.scalar(Decimal(1))``. Comparisons are Arrow's, too, and differ from
        Spark's for NaN: in Arrow it fulfils none but ``!=``, in Spark it equals itself and is greater than all other
        numbers. So Spark's ``v > 5`` is ``(pc.field("v") > 5) | pc.is_nan(pc.field("v"))``.

        Raises:
            InvalidRequest: no expression, one whose result is not a boolean, or one that Arrow cannot evaluate over
                these columns, or not as Spark does: they have a collation or are CHAR(n).
        """
        return filter_rows(self, expression)

    def select(self, *names: str, **expressions: Any) -> Self:
        """The named columns, then one column for each named expression of ``pyarrow.compute``, or other name of a
        column: ``select("id", total=pc.multiply(pc.field("price"), pc.field("count")), user="user_id")``.

        ``+``, ``-``, ``*`` and ``/`` between expressions raise on overflow in the task; ``pc.add`` and the like wrap
        around. Types are those that Arrow computes, as Spark holds them. Arrow's product of two decimals has one digit
        more than both have together, and no more than 38: cast a factor to fewer digits where that is too few.

        Raises:
            InvalidRequest: no column at all, a name that appears twice or is no column, an expression that Arrow
                cannot evaluate over these columns, or a result of a type that Spark cannot hold, or of
                columns that have a collation or are CHAR(n).
        """
        return select_columns(self, *names, **expressions)

    def applyInArrow(self, fn: Callable[..., Any], schema: StructType | str) -> Self:  # noqa: N802 - Spark's
        """``fn`` for each group of the last exchange's keys, as in Spark's ``groupBy(keys).applyInArrow``.

        ``fn(table)`` or ``fn(keys, table)``, with the keys as a tuple of Arrow scalars, returns a table; annotated
        with iterators of RecordBatch, it takes and returns those.

        Raises:
            InvalidRequest: no exchange with keys before it, a key whose column is gone or cannot be grouped by, a
                function of other than one or two arguments, or as for :meth:`mapInArrow`.
        """
        return apply_in_arrow(self, fn, schema)

    def applyInPandas(self, fn: Callable[..., Any], schema: StructType | str) -> Self:  # noqa: N802 - Spark's
        """``fn`` for each group of the last exchange's keys, as in Spark's ``groupBy(keys).applyInPandas``: as
        :meth:`applyInArrow`, with a ``pandas.DataFrame`` for each table or batch (``steps.pandas_adapters``).

        Raises:
            InvalidRequest: as :meth:`applyInArrow`.
        """
        return apply_in_pandas(self, fn, schema)

    def join(
        self,
        other: Steps | Broadcast,
        on: On,
        how: str = "inner",
        *,
        partitions: SupportsIndex | None = None,
        suffix: str | None = None,
        null_safe: bool = False,
        as_of: str | tuple[str, str] | None = None,
        direction: str = "backward",
        tolerance: Any = None,
        allow_exact_matches: bool = True,
    ) -> Self:
        """The rows of both pipelines whose keys are equal, as in Spark's ``df.join(other, on, how)``.

        A side that ends with an exchange by exactly these keys is joined where its rows are; otherwise ``join``
        exchanges it by them, unless the other side turns out small (``pipeline.held_joins``). With a broadcast on the
        right nothing is exchanged: each task joins its rows with the whole table, whose index takes about 40 bytes for
        each row, and the keys that are not numbers, in each worker.

        Columns are the keys, once, then the left's others, then the right's others. With ``how="right"`` keys are
        the right's, with ``"full"`` the left's or else the right's. ``"semi"`` and ``"anti"`` have the left's columns
        only.

        ``how="asof"`` gives each left row once, with the right row of its keys whose time is the last that is not after
        its own, or nulls, as ``pandas.merge_asof(by=on)`` does; of right rows of one time, the last one, by the order
        of the right's exchange, or, over several servers, any of them. The columns are the left join's; a time of one
        name on both sides is the left's. A null or NaN as a time matches nothing.

        Args:
            other: the right side: a pipeline, or a broadcast for inner, left, semi and anti.
            on: a column of both, several, or pairs of a left and a right column, also as a mapping. Both columns
                of a pair with different names stay, each on its side.
            how: inner, left, right, full, semi or anti, also by Spark's other names, such as ``left_outer``; or asof.
            partitions: of the exchanges that ``join`` adds; None for those of a side that is already exchanged, or
                else ``spark.sql.shuffle.partitions``.
            suffix: for the names of the right's columns that the left has, too.
            null_safe: null equals null, as with Spark's ``<=>``; otherwise a null in a key matches nothing.
            as_of: for ``"asof"`` the column of the times, or a pair of a left and a right one: times or numbers.
            direction: ``"backward"``; ``"forward"``: the first time that is not before; ``"nearest"``: of these two
                the nearer one, or the one before.
            tolerance: the largest distance of two times, a timedelta or a number; None: any.
            allow_exact_matches: whether equal times match.

        Raises:
            InvalidRequest: an argument is none of these, a key's column is not there, has a collation, or types that
                are not compared, or a name would be in the result twice.
        """
        return join(
            self,
            other,
            on,
            how,
            partitions=partitions,
            suffix=suffix,
            null_safe=null_safe,
            as_of=as_of,
            direction=direction,
            tolerance=tolerance,
            allow_exact_matches=allow_exact_matches,
        )

    def cogroup(self, other: Steps) -> Cogrouped[Self]:
        """The rows of both pipelines by the keys of their last exchanges: key by key for ``applyInArrow``."""
        return cogroup(self, other)

    def aggregate(
        self,
        aggregations: Aggregations | None = None,
        by: str | Sequence[str] = (),
        partitions: SupportsIndex | None = None,
        **named: tuple[str, str],
    ) -> Self:
        """One row for each group of equal keys ``by``, or one row for all without keys, also if there are no rows.

        ``{"amount": "sum"}``, ``{"amount": ["min", "max"]}``, ``{"*": "count"}`` name columns and functions; results
        have Spark's names, such as ``sum(amount)`` and ``count(1)``. ``total=("amount", "sum")``, or
        ``{"total": ("amount", "sum")}``, gives a result a name.

        Tasks reduce their rows before the exchange, by Arrow's kernels, and merge the states after it. If the rows
        are in partitions by some of the keys already, after an exchange or a join by them, there is no exchange.

        The functions are those of the table in ``pipeline.aggregating``.

        Args:
            aggregations: see above.
            by: a column's name, or several.
            partitions: of the result, which is one without keys. None for those in which the rows are together
                already, or else ``spark.sql.shuffle.partitions``.

        Raises:
            InvalidRequest: no function, or an unknown one; a column that is not there, or of a type that the function
                cannot take or rows cannot be grouped by; two results of one name; as :meth:`exchange`.
        """
        return aggregate(self, aggregations, by, partitions, **named)

    def distinct(self, *columns: str, partitions: SupportsIndex | None = None) -> Self:
        """Each different row once; with ``columns`` one row of each group of rows that are equal in those, as Spark's
        ``dropDuplicates``. Equality is that of ``aggregate``: NaN equals NaN, and -0.0 becomes 0.0.

        Args:
            columns: names; none for all.
            partitions: as for :meth:`aggregate`.

        Raises:
            InvalidRequest: a column that is not there, or of a type that rows cannot be grouped by.
        """
        return distinct(self, *columns, partitions=partitions)

    def union(self, other: Steps) -> Self:
        """The rows of both, with duplicates, as Spark's ``union``: columns are matched by position, and have this
        side's names. Numbers of different types widen to Spark's common type.

        Raises:
            InvalidRequest: ``other`` is no pipeline of this client, has another number of columns, or a column of a
                type that has no common type with this side's.
        """
        return union(self, other)

    def limit(self, rows: SupportsIndex) -> Self:
        """At most ``rows`` rows, any of them; after an exchange to one partition the first ones, so that
        ``exchange(1, sort=["revenue desc"]).limit(10)`` gives the top ten in order.

        Before a sorted exchange to one partition that is not persisted, each task then sends its own first rows only.
        Elsewhere each task stops reading after as many rows, and one more exchange brings those together.

        Raises:
            InvalidRequest: ``rows`` is no integer of 0 or more.
        """
        return limit(self, rows)

    def count(self) -> int:
        """Run all steps; how many rows they give. Each task counts its own. A last exchange is not run, because it
        changes no count, unless it is persisted: then the server knows it. Raises as :meth:`toDF`.
        """
        return count_rows(self)

    def exchange(
        self,
        partitions: SupportsIndex | str | Sequence[str] | None = None,
        *keys: str | Sequence[str],
        sort: Any = None,
        boundaries: Any = None,
        by: Any = None,
        tasks: SupportsIndex | None = None,
        split: bool | None = None,
        name: str | None = None,
        offload: Any = None,
    ) -> Self:
        """Send rows to ``partitions`` partitions by the hash of ``keys``, round robin without keys, or by range.

        Args:
            partitions: 1 to 100,000; any integer type. None, or left out before the keys: as many as
                ``spark.sql.shuffle.partitions`` says now.
            keys: names of columns, one by one or as one list, found as Spark finds them
                (``spark.sql.caseSensitive``).
            sort: the order of each partition's rows, as one key or a list of keys: ``"time"``, ``["time desc"]``,
                ``[("time", "desc"), "id"]`` (``arrow.sort_keys``), with Spark's order of values and nulls. A
                partition beyond a task's memory is sorted in files. Rows with equal keys stay in the order of the
                tasks, where one server holds them. The groups of ``applyInArrow`` have their rows in
                that order.
            boundaries: ascending values of ``by``; partition ``i`` gets the rows from ``boundaries[i - 1]`` on to
                before ``boundaries[i]``, in Spark's order. There is one partition more than boundaries, and an empty
                one between two equal ones. For several columns, tuples. :meth:`sample_boundaries` gives some for
                partitions of about equal size. ``exchange(boundaries=b, by="x", sort="x")`` sorts all rows.
            by: the columns of ``boundaries``, in the forms of ``sort``.
            tasks: how many Spark tasks read the partitions, one after the other, for the stages after the exchange;
                at most ``partitions``. None: as many as the data and Spark's cores pay for (``jobs.shares``).
            split: whether several tasks may share a partition far over the median (``jobs.shares``), where each stage
                up to the next exchange, or the end, takes rows as they come, such as ``mapInArrow`` and a join's
                larger side. A function is then called once for each piece, with the same
                ``TaskContext.partitionId()``. False: never. None: unless rows were placed by keys or ranges and a
                function follows, which may count on seeing all rows of a key in one call. Nothing is cut with
                ``offload``.
            name: for people, 1 to 100 printable characters: in ``explain``, the progress bar, the job's description
                in Spark (``jobs.shuffles``) and, with ``-`` for other characters than letters, digits, ``.``, ``_``
                and ``-``, in the dataset's name, which the server's dashboard, ``why`` and ``statistics`` show.
            offload: ``"s3://bucket/path"``, or the absolute path of a directory that all hosts share: the servers keep
                the sealed rows there, too, so that they are read when a server is gone. They must be allowed to
                (``--offload-to``).

        Raises:
            InvalidRequest: ``partitions``, ``tasks`` or ``name`` out of range; an ``offload`` that is no address; a key
                that is no column, has a type without a hash, or without an order in ``sort`` or ``by``, a collation, or
                a variant; boundaries that do not ascend or are no values of ``by``, or stand beside keys.
        """
        return add_exchange(
            self,
            partitions,
            *keys,
            sort=sort,
            boundaries=boundaries,
            by=by,
            tasks=tasks,
            split=split,
            name=name,
            offload=offload,
        )

    def sample_boundaries(
        self, partitions: SupportsIndex | None = None, by: Any = None, *, seed: int | None = None
    ) -> list[Any]:
        """Boundaries for :meth:`exchange`, of about ``partitions`` ranges of about equally many rows.

        Runs the steps so far as one job, in which each task takes a random sample of its rows' keys: 20 for each of
        ``partitions``, at least 1,000 and at most 100,000, and 4 MiB. The driver holds at most 512 MiB of
        them, and a copy. A range then has, with few exceptions, at most 1.5 times its share of the rows, beside
        those of one value.

        Args:
            partitions: 1 to 100,000; None: as many as ``spark.sql.shuffle.partitions`` says now.
            by: the order of the ranges, as ``sort`` of :meth:`exchange`.
            seed: the same seed gives the same boundaries for the same rows in the same tasks and order.

        Returns:
            At most ``partitions - 1`` distinct values in their order: fewer where there are fewer values, or where
            one value has more rows than a range should. With several keys, tuples. If a key has boundaries that
            Python does not have, such as dates after 9999, each of it has the value as Arrow's ``scalar``, and
            :meth:`exchange` takes it, or that.

        Raises:
            InvalidRequest: ``partitions`` out of range, no keys, or as for ``sort`` of :meth:`exchange`.
            pyspark.errors.PySparkException: the job failed.
        """
        return sample_boundaries(self, partitions, by, seed=seed)

    def toDF(self) -> DataFrame:  # noqa: N802 - Spark's name
        """Run all steps up to the last exchange; a DataFrame that reads from the service and runs the others.

        Raises:
            InvalidRequest: Spark would start its tasks with an interpreter that cannot run them.
            FlightShuffleError: the server refused, or could not be reached.
            pyspark.errors.PySparkException: a job failed.
        """
        return to_frame(self)

    def collect(self) -> pa.RecordBatchReader:
        """Run all steps; a reader of their result, see ``ShuffleClient.collect``. Raises as :meth:`toDF`."""
        return collect(self)

    def persist(self) -> Self:
        """Keep the dataset of the last exchange: from now on it runs once for all plans that use it, also in several
        threads, and also for plans that were made before. The steps after it run for each plan. Returns this pipeline.

        Its dataset stays until :meth:`unpersist`, the end of the ``client.scope()`` in which it was written, or the
        close of the client; ``client.release`` leaves it. When no pipeline that uses it is referred to any more, it is
        dropped, or, if ``toDF`` made a DataFrame of it that was not released, it is from then on such a result. The
        next plan writes a dataset again that the server has lost. After a union or a join, all exchanges that it reads
        are persisted. Twice is fine.

        Raises:
            InvalidRequest: there is no exchange.
        """
        return persist(self)

    def unpersist(self) -> Self:
        """Drop the dataset of :meth:`persist`; DataFrames and running jobs that read it fail. Returns this pipeline.

        Twice is fine.
        """
        return unpersist(self)

    @property
    def statistics(self) -> RunStatistics | None:
        """Of the last ``toDF`` or ``collect`` of this very pipeline; None before the first."""
        return statistics(self)

    def explain(self) -> None:
        """Print the steps from the last one back, where each exchange sends its rows, and, after a run of this very
        pipeline, rows, partitions, sizes, skew, tasks, spilled bytes, seconds and servers of each exchange, and which
        steps ran in the driver.
        """
        explain(self)
