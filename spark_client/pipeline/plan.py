"""Pipelines: Python stages with exchanges between them, as a plan that is checked before anything runs.

Guarantee: the DataFrame of :meth:`Pipeline.toDF` has exactly the rows that Spark would give for the same steps;
``exchange(n, *keys)`` puts each row in the partition of ``repartition(n, *keys)``. A step that cannot work raises
when it is added, not in a task. Works on Spark Classic and Spark Connect.

What runs where
    One Python worker runs consecutive Python stages in one pass: before the first exchange as a ``mapInArrow`` over
    the DataFrame or over what it reads of a scan, after one over what it reads from the service. If an exchange is the
    first step over a DataFrame, Spark hashes its keys; after a Python stage or a scan the task does
    (``placement.hashing``).

What runs when
    ``toDF`` runs one Spark job for each exchange, drops each dataset when the next one is sealed, and returns when
    the last one is. Each use of the DataFrame runs the stages after that. ``jobs.results`` says when the last dataset
    is dropped. ``collect`` runs one more job, which writes the result, unless the last step is an exchange. When a job
    fails, all are dropped and Spark's exception is raised, which ends with the task's error; Ctrl-C cancels the job,
    too.

Reading tasks
    A Spark task reads several partitions where that is cheaper (``jobs.shares``), and calls each function once for
    every one of them. ``toDF`` directly after an exchange has one Spark partition for each of the exchange.

Groups
    ``applyInArrow`` groups by the keys of the exchange before it. A row whose key a ``mapInArrow`` between the two
    changes stays in its partition. A group whose key belongs to another partition is an error, which names the stage
    and the key.

Functions get batches within Spark's ``spark.sql.execution.arrow.maxRecordsPerBatch`` and ``maxBytesPerBatch``, as
they are set when ``toDF`` is called.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, SupportsIndex

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.typehints import infer_group_arrow_eval_type_from_func
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from flight_server.protocol import MAX_PARTITIONS, InvalidRequest
from spark_client.arrow import Declared
from spark_client.executors import Portable
from spark_client.jobs import (
    WRITE_BUDGET_BYTES,
    GroupStage,
    MapStage,
    Pass,
    Shares,
    Shuffles,
    Stage,
    arrow_schema,
    check_frame,
    check_key,
    collected,
    declared_struct,
    reader,
    run,
)
from spark_client.placement import PlacedKeys, check_groupable, partition_ids
from spark_client.scan import Scan

from .execution import Input, run_exchanges
from .legs import Exchange, Leg

MapFunction = Callable[[Iterator[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Pipeline:
    """Steps over a DataFrame or scan; each method returns a new pipeline."""

    shuffles: Shuffles
    label: str
    start: Input
    done: tuple[Leg, ...]
    current: Leg

    @classmethod
    def of_frame(cls, shuffles: Shuffles, df: DataFrame) -> Pipeline:
        """A pipeline without steps over a DataFrame.

        Raises:
            InvalidRequest: as :func:`check_frame` and :func:`arrow_schema`.
        """
        check_frame(df, "the DataFrame")
        struct = declared_struct(df.sparkSession, df.schema, "the DataFrame")
        declared = Declared("the DataFrame", arrow_schema(df.sparkSession, struct, "the DataFrame"))
        return cls(shuffles, "DataFrame", Input(df), (), Leg((), struct, declared))

    @classmethod
    def of_scan(cls, shuffles: Shuffles, spark: SparkSession, scan: Scan) -> Pipeline:
        """A pipeline without steps over what its first tasks read."""
        start = Input.of(spark, scan.splits, Shares.each(len(scan.splits)), scan.batch_rows)
        return cls(shuffles, str(scan), start, (), Leg((), scan.struct, scan.declared))

    def __repr__(self) -> str:
        steps = [self.label]
        for leg in (*self.done, self.current):
            steps += [stage.declared.stage for stage in leg.stages]
            steps += [str(leg.exchange)] if leg.exchange else []
        return f"<Pipeline {' → '.join(steps)}>"

    def mapInArrow(self, fn: MapFunction, schema: StructType | str) -> Pipeline:  # noqa: N802 - Spark's name
        """``fn`` over the batches of each partition, as in Spark's ``mapInArrow``.

        Raises:
            InvalidRequest: ``fn`` is not callable, or the schema is invalid or has no Arrow type.
        """
        struct, declared = self._declare("mapInArrow", fn, schema, by_name=False)
        return self._with(MapStage(fn, declared), struct)

    def applyInArrow(self, fn: Callable[..., Any], schema: StructType | str) -> Pipeline:  # noqa: N802
        """``fn`` for each group of the last exchange's keys, as in Spark's ``groupBy(keys).applyInArrow``.

        ``fn(table)`` or ``fn(keys, table)``, with the keys as a tuple of Arrow scalars, returns a table; annotated
        with iterators of RecordBatch, it takes and returns those.

        Raises:
            InvalidRequest: no exchange with keys before it, a key whose column is gone or cannot be grouped by, a
                function of other than one or two arguments, or as for :meth:`mapInArrow`.
        """
        struct, declared = self._declare("applyInArrow", fn, schema, by_name=True)
        stage = declared.stage
        if not self.done:
            raise InvalidRequest(f"{stage}: groups need .exchange(n, *keys) before them", stage=stage)
        exchange = self.done[-1].exchange
        assert exchange is not None
        if not exchange.keys:
            raise InvalidRequest(f"{stage}: {exchange} has no keys to group by; name them", stage=stage)
        keys = self._keys(exchange.keys, stage)
        check_groupable(self.current.declared.schema, keys, stage)
        for key in keys:
            check_key(self.current.struct, key, stage)
        before = self.done[-1].declared.schema
        placed = PlacedKeys(
            str(exchange), pa.schema([before.field(key) for key in exchange.keys]), exchange.partitions
        )
        with_keys, iterates = _signature(fn, stage)
        return self._with(
            GroupStage(fn, declared, keys, self.current.declared.schema, with_keys, iterates, placed), struct
        )

    def exchange(
        self,
        partitions: SupportsIndex,
        *keys: str,
        budget_bytes: SupportsIndex = WRITE_BUDGET_BYTES,
        tasks: SupportsIndex | None = None,
    ) -> Pipeline:
        """Send rows to ``partitions`` partitions by the hash of ``keys``, or round robin without keys.

        Args:
            partitions: 1 to 100,000; any integer type.
            keys: names of columns, found as Spark finds them (``spark.sql.caseSensitive``).
            budget_bytes: bytes that one writing task may gather before it sends, at least 1 MiB; its peak is about
                twice as much (``arrow.coalescer``). Frames have about ``budget_bytes / partitions``, up to 2 or 3
                MiB, so many partitions need a larger budget.
            tasks: how many Spark tasks read the partitions, one after the other, for the stages after the exchange;
                at most ``partitions``. None: as many as the data and Spark's cores pay for (``jobs.shares``).

        Raises:
            InvalidRequest: ``partitions``, ``budget_bytes`` or ``tasks`` out of range; a key that is no column, has a
                type without a hash, a collation, or a variant.
        """
        if isinstance(partitions, str):
            named = ", ".join(map(repr, (partitions, *keys)))
            raise InvalidRequest(
                f"exchange: the number of partitions comes before the keys, as in exchange(200, {named})"
            )
        count, budget = _integer(partitions), _integer(budget_bytes)
        where = str(Exchange(count, keys)) if all(isinstance(key, str) for key in keys) else "exchange"
        if not 1 <= count <= MAX_PARTITIONS:
            raise InvalidRequest(
                f"{where}: the first argument is how many partitions, 1 to {MAX_PARTITIONS}, not {partitions!r}"
            )
        if budget < 1 << 20:
            raise InvalidRequest(f"{where}: budget_bytes must be at least 1 MiB, not {budget_bytes!r}")
        readers = None if tasks is None else _integer(tasks)
        if readers is not None and not 1 <= readers <= count:
            raise InvalidRequest(f"{where}: tasks is 1 to {count}, the number of partitions, not {tasks!r}")
        found = self._keys(keys, where)
        for key in found:
            check_key(self.current.struct, key, where)
        if found:
            schema = self.current.declared.schema
            nothing = pa.RecordBatch.from_arrays(
                [pa.array([], type_) for type_ in schema.types], schema=schema
            )
            try:
                # Raises for types that the tasks could not place.
                partition_ids(nothing, found, count)
            except (TypeError, ValueError) as error:
                raise InvalidRequest(f"{where}: {error}") from error
        closed = replace(self.current, exchange=Exchange(count, found, budget, readers))
        declared = replace(self.current.declared, stage=where)
        return replace(
            self,
            done=(*self.done, closed),
            current=Leg((), self.current.struct, declared),
        )

    def toDF(self) -> DataFrame:  # noqa: N802 - Spark's name
        """Run all steps up to the last exchange; a DataFrame that reads from the service and runs the others.

        Raises:
            InvalidRequest: Spark would start its tasks with an interpreter that cannot run them.
            FlightShuffleError: the server refused, or could not be reached.
            pyspark.errors.PySparkException: a job failed.
        """
        stages, struct, start = self.current.stages, self.current.struct, self.start
        if self.done:
            written, last = run_exchanges(self.shuffles, start, self.done, alone=not stages)
            dataset = written.source.dataset
            df = last.rows.mapInArrow(reader(last.reading(stages), dataset), struct)
            if stages:
                self.shuffles.results.add(dataset)
            else:
                self.shuffles.results.add_frame(df, written)
            return df
        if start.source is not None:
            return start.rows.mapInArrow(Portable(start.reading(stages).run), struct)
        if not stages:
            return start.rows
        task = Portable(partial(run, stages, how=Pass(limits=start.limits)))
        return start.rows.mapInArrow(task, struct)

    def collect(self) -> pa.RecordBatchReader:
        """Run all steps; a reader of their result, see ``ShuffleClient.collect``. Raises as :meth:`toDF`."""
        legs = self.done
        if not legs and not self.current.stages and self.start.source is None:
            written = self.shuffles.results.sealed(self.start.rows, self.current.declared.schema)
            if written is not None:
                return collected(self.shuffles, written, owned=False)
        if not legs or self.current.stages:
            legs = (*legs, replace(self.current, exchange=Exchange(1, (), label="collect")))
        written, _ = run_exchanges(self.shuffles, self.start, legs, alone=True)
        return collected(self.shuffles, written)

    # Inside.

    @property
    def _spark(self) -> SparkSession:
        return self.start.rows.sparkSession

    def _declare(
        self, method: str, fn: Callable[..., Any], schema: StructType | str, *, by_name: bool
    ) -> tuple[StructType, Declared]:
        number = 1 + sum(len(leg.stages) for leg in (*self.done, self.current))
        if not callable(fn):
            raise InvalidRequest(f"stage {number} ({method}): {fn!r} is not a function")
        name = f"stage {number} ({method} {getattr(fn, '__name__', type(fn).__name__)})"
        struct = declared_struct(self._spark, schema, name)
        return struct, Declared(name, arrow_schema(self._spark, struct, name), by_name)

    def _with(self, stage: Stage, struct: StructType) -> Pipeline:
        current = Leg((*self.current.stages, stage), struct, stage.declared)
        return replace(self, current=current)

    def _keys(self, keys: tuple[str, ...], where: str) -> tuple[str, ...]:
        """The names of the keys' columns, as Spark resolves them."""
        schema: pa.Schema = self.current.declared.schema
        exact = self._spark.conf.get("spark.sql.caseSensitive", "false") == "true"
        found: list[str] = []
        missing: list[str] = []
        for key in keys:
            if not isinstance(key, str):
                raise InvalidRequest(
                    f"{where}: a key is a column's name, not {type(key).__name__}; make an expression a column "
                    "by withColumn first, and give several keys one by one"
                )
            same = [name for name in schema.names if name == key or (not exact and _folded(name, key))]
            if len(same) > 1:
                raise InvalidRequest(
                    f"{where}: {key!r} could be any of {', '.join(map(repr, same))}; rename one, or set "
                    "spark.sql.caseSensitive",
                    column=key,
                )
            (found if same else missing).append(same[0] if same else key)
        if missing:
            raise InvalidRequest(
                f"{where}: no column {', '.join(map(repr, missing))} after {self.current.declared.stage}; "
                f"it has {', '.join(map(repr, schema.names))}",
                column=missing[0],
            )
        return tuple(found)


def _integer(value: Any) -> int:
    """The value as an int; 0, which every caller refuses, if it is no integer or a bool."""
    try:
        return 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return 0


def _folded(name: str, key: str) -> bool:
    return name.casefold() == key.casefold()


def _signature(fn: Callable[..., Any], stage: str) -> tuple[bool, bool]:
    """Whether ``fn`` takes the keys first, and whether it takes iterators: by Spark's own rules."""
    try:
        count = len(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        count = 1
    if count not in (1, 2):
        raise InvalidRequest(
            f"{stage}: it takes (table) or (keys, table), not {count} arguments", stage=stage
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kind = infer_group_arrow_eval_type_from_func(fn)
        except Exception:  # noqa: BLE001 - incomplete annotations: Spark then takes tables, too
            kind = None
    return count == 2, kind == PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF
