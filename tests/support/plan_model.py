"""Runs plans without Spark and servers: the legs of a pipeline over tables in memory, with the stages and placements of
the tasks. A session of which only settings are asked makes the pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from spark_client.arrow import Declared, cannot_fail
from spark_client.jobs import ByKeys, InTurn, Shares, TaskNumbers
from spark_client.pipeline.base import declared
from spark_client.pipeline.nodes import Exchange, Input, Leg, Pair, PlanPart, SampledRanges
from spark_client.pipeline.plan import Pipeline
from spark_client.pipeline.ranges import sample_leg, sampled
from spark_client.steps import Both, FilterStage, Pass, run

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "64m",
    "spark.sql.files.maxPartitionBytes": "4k",
    "spark.sql.files.openCostInBytes": "1",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
}


class Session:
    """What planning asks of a session."""

    def __init__(self) -> None:
        self.conf = SETTINGS
        settings = SimpleNamespace(toString=lambda: str(SETTINGS))
        conf = SimpleNamespace(settings=lambda: settings)
        state = SimpleNamespace(conf=lambda: conf)
        self._jsparkSession = SimpleNamespace(
            leafNodeDefaultParallelism=lambda: 2, sessionState=lambda: state
        )


class Persisted:
    """The persisted exchanges, of which some are written."""

    def __init__(self) -> None:
        self.written: dict[Exchange, bool] = {}

    def find(self, exchange: Exchange) -> Any:
        return None if exchange not in self.written else SimpleNamespace(is_written=self.written[exchange])

    def keep(self, exchange: Exchange) -> None:
        self.written[exchange] = False


@dataclass(frozen=True)
class Rows:
    """The source of an input: a table for each task, of which it reads some columns, and rows, as a scan does."""

    tables: Sequence[pa.Table]
    names: tuple[str, ...]
    condition: Any = None

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self.tables[0].schema.field(name) for name in self.names])

    def read(self, number: int, memory: Any = None) -> Iterator[Any]:
        for batch in self.tables[number].to_batches(max_chunksize=7):
            kept = batch
            if self.condition is not None:
                kept = run([FilterStage(self.condition, Declared("scan", batch.schema))], iter([batch]))
            yield from (each.select(self.names) for each in ([kept] if kept is batch else kept))


SESSION: Any = Session()
CLIENT: Any = SimpleNamespace(persisted=Persisted())


def pipeline(*tables: pa.Table, client: Any = CLIENT, filters: bool = True) -> Pipeline:
    """A pipeline over the tables of tasks, which may be read with fewer columns and, with ``filters``, rows."""
    struct, result = declared(SESSION, from_arrow_schema(tables[0].schema), "rows")
    rows = Rows([table.cast(result.schema) for table in tables], tuple(result.schema.names))
    return Pipeline(client, SESSION, Leg((PlanPart(_input(rows, "rows", filters=filters)),), struct, result))


def _input(rows: Rows, label: str, *, filters: bool) -> Input:
    def with_columns(names: Sequence[str]) -> Input:
        return _input(replace(rows, names=tuple(names)), f"{label}, {' '.join(names)}", filters=filters)

    def with_filter(condition: Any, name: str) -> Input | None:
        if rows.condition is not None:
            if not cannot_fail(condition, rows.schema):
                return None
            condition = rows.condition & condition
        return _input(replace(rows, condition=condition), f"{label}, with {name}", filters=filters)

    return Input(
        TaskNumbers(SESSION, len(rows.tables)),
        label,
        rows,
        Shares.each(len(rows.tables)),
        schema=rows.schema,
        with_columns=with_columns,
        with_filter=with_filter if filters else None,
    )


def result(leg: Leg) -> pa.Table:
    """The rows of a leg, partition by partition."""
    batches = [batch for task in _Model().tasks(leg) for batch in task]
    return pa.Table.from_batches(batches, leg.schema)


class _Model:
    """Each exchange is run once."""

    def __init__(self) -> None:
        self._partitions: dict[Exchange, list[list[Any]]] = {}

    def tasks(self, leg: Leg) -> Iterator[list[Any]]:
        """The batches of each partition of each part."""
        for part in leg.parts:
            yield from self._part(part)

    def _part(self, part: PlanPart) -> Iterator[list[Any]]:
        origin = part.origin
        if isinstance(origin, Pair):
            sides = zip(self._part(origin.left), self._part(origin.right), strict=True)
            inputs: Iterator[Any] = (Both(iter(left), iter(right)) for left, right in sides)
        elif isinstance(origin, Exchange):
            inputs = map(iter, self._sent(origin))
        else:
            source: Any = origin.source
            inputs = (source.read(number) for number in range(len(source.tables)))
        for number, batches in enumerate(inputs):
            yield list(run(part.stages, batches, Pass(partition=number)))

    def _sent(self, exchange: Exchange) -> list[list[Any]]:
        if exchange not in self._partitions:
            self._partitions[exchange] = [[] for _ in range(exchange.partitions)]
            placement: Any = InTurn(exchange.partitions)
            if isinstance(exchange.ranges, SampledRanges):
                seeded = replace(exchange, ranges=replace(exchange.ranges, seed=1))
                leg = sample_leg(seeded, exchange.leg)
                placement = sampled(
                    exchange, exchange.leg, [each for task in self.tasks(leg) for each in task]
                )
            elif exchange.keys:
                placement = ByKeys(exchange.keys, exchange.partitions, exchange.types)
            for producer, batches in enumerate(self.tasks(exchange.leg)):
                self._send(exchange, placement, producer, batches)
        return self._partitions[exchange]

    def _send(self, exchange: Exchange, placement: Any, producer: int, batches: list[Any]) -> None:
        first = 0
        for batch in batches:
            places = placement.place(batch, producer, first)
            first += batch.num_rows
            for place in np.unique(places):
                rows = batch.take(pa.array(np.flatnonzero(places == place)))
                self._partitions[exchange][int(place)].append(rows)
