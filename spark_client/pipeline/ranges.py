"""The boundaries of ranges: those that a user gives, and those of a sample of the rows.

A sample is taken by ``steps.SampleStage`` over the leg of the exchange, when that is to be written. :func:`sample_leg`
is what the tasks run, and :func:`sampled` what the driver makes of their samples. Of each partition 20 rows for each
range are in it, at least ``_LEAST_SAMPLED`` and at most ``_MOST_SAMPLED``. The driver holds at most ``_HELD_BYTES``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DoubleType, StructField, StructType

from flight_server.keys import compute
from flight_server.protocol import MAX_PARTITIONS, InvalidRequest
from spark_client.arrow import (
    Declared,
    SortCodes,
    SortKey,
    array_over,
    known_zone,
    python_values,
    shown,
    values,
)
from spark_client.jobs import ByRange
from spark_client.steps import SampleStage

from .base import Steps
from .nodes import Exchange, Leg, SampledRanges

_SAMPLED_PER_PARTITION = 20
_HELD_BYTES = 512 << 20
_LEAST_SAMPLED, _MOST_SAMPLED = 1000, 100_000
_ROWS_PER_RANGE = 16 * 1024
"""The fewest rows for which a range is worth a partition, where only their order counts."""


def sample_leg(exchange: Exchange, leg: Leg) -> Leg:
    """The samples of the rows of ``leg``, which the exchange sends."""
    assert isinstance(exchange.ranges, SampledRanges)
    names = list(dict.fromkeys(key.column for key in exchange.ranges.keys))
    weight = "weight"
    while weight.casefold() in {name.casefold() for name in names}:
        weight = f"_{weight}"
    struct = StructType(
        [*(leg.fields[name] for name in names), StructField(weight, DoubleType(), nullable=False)]
    )
    schema = pa.schema(
        [*(leg.schema.field(name) for name in names), pa.field(weight, pa.float64(), nullable=False)]
    )
    seed = exchange.ranges.seed
    stage = SampleStage(
        Declared(f"sample of {exchange}", schema),
        tuple(names),
        min(max(_SAMPLED_PER_PARTITION * exchange.partitions, _LEAST_SAMPLED), _MOST_SAMPLED),
        random.SystemRandom().getrandbits(63) if seed is None else seed % (1 << 63),
    )
    return leg.with_stage(stage, struct)


def sampled(exchange: Exchange, leg: Leg, samples: Iterable[pa.RecordBatch]) -> ByRange:
    """The placement by boundaries between ranges of about equally many rows, by the samples of :func:`sample_leg`:
    fewer than the exchange has partitions where there are fewer values, or where one has more rows than a range should.
    """
    assert isinstance(exchange.ranges, SampledRanges)
    keys, count = exchange.ranges.keys, exchange.partitions
    held = _held(samples)
    if exchange.ranges.only_order:
        rows = sum(float(values(each.columns[-1], np.float64).sum()) for each in held)
        count = max(1, min(count, round(rows / _ROWS_PER_RANGE)))
    return ByRange(keys, _boundaries(held, keys, count, leg.schema))


def one_range(exchange: Exchange, leg: Leg) -> ByRange:
    """The placement of all rows in the first partition."""
    assert isinstance(exchange.ranges, SampledRanges)
    return ByRange(exchange.ranges.keys, _none(exchange.ranges.keys, leg.schema))


def _held(samples: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The samples; of each every second row as often as they would have more than ``_HELD_BYTES`` together."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in samples:
        held.append(batch)
        size_bytes += batch.nbytes
        while size_bytes > _HELD_BYTES and any(each.num_rows > 1 for each in held):
            held = [_thin(each) for each in held]
            size_bytes = sum(each.nbytes for each in held)
    return held


def _thin(sample: pa.RecordBatch) -> pa.RecordBatch:
    """Every second row, with the weight of all."""
    kept = sample.take(pa.array(range(0, sample.num_rows, 2)))
    weights = values(kept.columns[-1], np.float64) * (sample.num_rows / kept.num_rows)
    return pa.RecordBatch.from_arrays([*kept.columns[:-1], array_over(weights)], schema=kept.schema)


def _boundaries(
    samples: list[pa.RecordBatch], keys: tuple[SortKey, ...], count: int, schema: pa.Schema
) -> pa.RecordBatch:
    """The values before which the rows' weights are nearest to equal parts, a column for each key."""
    if not samples or count == 1:
        return _none(keys, schema)
    batch = pa.concat_batches(samples)
    order = SortCodes.of(batch, keys).order()
    batch = batch.take(pa.array(order))
    codes = SortCodes.of(batch, keys)
    before = np.cumsum(values(batch.columns[-1], np.float64))
    starts = np.flatnonzero(codes.changes()) + 1
    total, before = before[-1], before[starts - 1]
    if not len(starts):
        return _none(keys, schema)
    ends = total * np.arange(1, count) / count
    right = np.searchsorted(before, ends).clip(max=len(before) - 1)
    left = (right - 1).clip(min=0)
    nearest = np.where(ends - before[left] <= before[right] - ends, left, right)
    chosen = batch.take(pa.array(starts[np.unique(nearest)]))
    return _numbered([chosen.column(key.column) for key in keys])


def _none(keys: tuple[SortKey, ...], schema: pa.Schema) -> pa.RecordBatch:
    return _numbered([pa.nulls(0, schema.field(key.column).type) for key in keys])


def _numbered(columns: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])


def boundaries_of(steps: Steps, boundaries: Any, keys: tuple[SortKey, ...], where: str) -> ByRange:
    """The placement by boundaries that a user gives. Raises InvalidRequest: a boundary that has no value for each key,
    or is no value of the key's type, or comes before the one before it.
    """
    if isinstance(boundaries, str | bytes | dict) or not isinstance(boundaries, Iterable):
        raise InvalidRequest(f"{where}: boundaries is a list of values, not {boundaries!r}")
    rows = [_row(value, len(keys), f"{where}: boundary {number}") for number, value in enumerate(boundaries)]
    if len(rows) >= MAX_PARTITIONS:
        raise InvalidRequest(
            f"{where}: {len(rows)} boundaries make more than {MAX_PARTITIONS} partitions; give fewer"
        )
    columns = [
        _column(
            [row[number] for row in rows], steps.leg.schema.field(key.column).type, f"{where}: {key.column!r}"
        )
        for number, key in enumerate(keys)
    ]
    batch = _numbered(columns)
    codes = SortCodes.of_columns(batch.columns, keys, batch.num_rows)
    if not codes.ascends():
        places = [codes.place(row) for row in range(codes.rows)]
        wrong = next(row for row in range(1, codes.rows) if places[row] < places[row - 1])
        raise InvalidRequest(
            f"{where}: boundary {wrong} is before boundary {wrong - 1} in the order of "
            f"{', '.join(map(str, keys))}; sort them in that order"
        )
    return ByRange(keys, batch)


def _row(value: Any, keys: int, where: str) -> tuple[Any, ...]:
    if keys == 1:
        return value if isinstance(value, tuple) and len(value) == 1 else (value,)
    if isinstance(value, tuple | list) and len(value) == keys:
        return tuple(value)
    raise InvalidRequest(f"{where} is {value!r}; it needs a tuple of {keys} values, one for each key")


def _column(boundaries: list[Any], kind: pa.DataType, where: str) -> pa.Array:
    arrays = [_boundary(each, kind, where) for each in boundaries]
    return pa.concat_arrays(arrays) if arrays else pa.nulls(0, kind)


def _boundary(boundary: Any, kind: pa.DataType, where: str) -> pa.Array:
    """One value of the type. Raises InvalidRequest: it is none."""
    if isinstance(boundary, pa.Scalar) and boundary.type == kind:
        return pa.array([boundary], kind)
    try:
        plain = python_values(pa.array([boundary]))[0] if isinstance(boundary, pa.Scalar) else boundary
        plain = plain.item() if isinstance(plain, np.generic) else plain
        zoned = pa.types.is_timestamp(kind) and kind.tz
        if zoned and isinstance(plain, datetime) and plain.tzinfo is None:
            plain = _in_zone(plain, kind.tz)
        converted = pa.array([plain], kind, from_pandas=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{where} is {kind}, and {shown(boundary)} is no value of it: {error}"
        ) from error
    # Arrow takes 1.5 for the integer 1, and numbers for times.
    (nearest,) = python_values(converted)
    if not (pa.types.is_floating(kind) or pa.types.is_nested(kind) or nearest == plain):
        raise InvalidRequest(
            f"{where} is {kind}, and {shown(boundary)} is no value of it; the nearest is {shown(nearest)}"
        )
    return converted


def _in_zone(time: datetime, zone: str) -> Any:
    """The instant of a time on the session's clocks, as in a literal of Spark SQL."""
    local = pa.scalar(time, pa.timestamp("us"))
    instant = compute().assume_timezone(local, known_zone(zone), ambiguous="earliest", nonexistent="latest")
    return python_values(pa.array([instant]))[0]
