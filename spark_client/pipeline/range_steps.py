"""The columns that rows are ordered by; ranges of values: boundaries that a user gives, or that a sample gives."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any, SupportsIndex

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DoubleType, StructField, StructType

from flight_server.protocol import MAX_PARTITIONS, InvalidRequest
from spark_client.arrow import (
    ArrowValue,
    Declared,
    SortCodes,
    SortKey,
    array_over,
    check_sortable,
    is_pair,
    known_zone,
    python_values,
    shown,
    sort_key,
    values,
)
from spark_client.jobs import ByRange, arrow_schema, check_key
from spark_client.steps import SampleStage

from .base import Steps, columns_named, default_partitions, find_keys, integer, with_stage
from .finishing import collect

_SAMPLED_PER_PARTITION = 20
_HELD_BYTES = 512 << 20
_LEAST_SAMPLED, _MOST_SAMPLED = 1000, 100_000


def sample_boundaries(
    steps: Steps, partitions: SupportsIndex | None, by: Any, *, seed: int | None
) -> list[Any]:
    """See :meth:`.Pipeline.sample_boundaries`."""
    where = "sample_boundaries"
    count = integer(default_partitions(steps.spark) if partitions is None else partitions)
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidRequest(
            f"{where}: the first argument is how many partitions, 1 to {MAX_PARTITIONS}, not {partitions!r}"
        )
    keys = sort_keys(steps, by, where)
    if not keys:
        raise InvalidRequest(f"{where}: name what the ranges are of, as in {where}({count}, 'time')")
    if seed is not None and not isinstance(seed, int):
        raise InvalidRequest(f"{where}: seed is an integer, not {seed!r}")
    if count == 1:
        return []
    columns = tuple(key.column for key in keys)
    struct = StructType([steps.leg.fields[column] for column in dict.fromkeys(columns)])
    weight = "weight"
    while weight.casefold() in {name.casefold() for name in struct.names}:
        weight = f"_{weight}"
    struct = StructType([*struct.fields, StructField(weight, DoubleType(), nullable=False)])
    stage = SampleStage(
        Declared(where, arrow_schema(steps.spark, struct, where)),
        tuple(struct.names[:-1]),
        min(max(_SAMPLED_PER_PARTITION * count, _LEAST_SAMPLED), _MOST_SAMPLED),
        random.SystemRandom().getrandbits(63) if seed is None else seed % (1 << 63),
    )
    return _boundaries(_held(collect(with_stage(steps, stage, struct))), keys, count)


def ranges_by(steps: Steps, boundaries: Any, by: Any, where: str) -> ByRange:
    """The placement by these boundaries. Raises InvalidRequest: no keys, or as for ``sort``; a boundary that has no
    value for each key, or is no value of the key's type, or comes before the one before it.
    """
    keys = sort_keys(steps, by, where)
    if not keys:
        raise InvalidRequest(
            f"{where}: boundaries are of columns: name them, as in exchange(boundaries=[…], by='time')"
        )
    if isinstance(boundaries, str | bytes | dict) or not isinstance(boundaries, Iterable):
        raise InvalidRequest(
            f"{where}: boundaries is a list of values, such as sample_boundaries gives, not {boundaries!r}"
        )
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
    batch = pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(keys))])
    codes = SortCodes.of_columns(batch.columns, keys, batch.num_rows)
    if not codes.ascends():
        places = [codes.place(row) for row in range(codes.rows)]
        wrong = next(row for row in range(1, codes.rows) if places[row] < places[row - 1])
        raise InvalidRequest(
            f"{where}: boundary {wrong} is before boundary {wrong - 1} in the order of "
            f"{', '.join(map(str, keys))}; sort them in that order"
        )
    return ByRange(keys, batch)


def sort_keys(steps: Steps, given: Any, where: str) -> tuple[SortKey, ...]:
    """The keys to sort by, one or a list of them, or none for None, with the columns' names as Spark resolves them.
    Raises InvalidRequest: no such form, no such column, or a type without an order.
    """
    if given is None:
        return ()
    if isinstance(given, str | SortKey) or is_pair(given):
        given = [given]
    if not isinstance(given, list | tuple):
        raise InvalidRequest(
            f"{where}: rows are sorted by names of columns, such as sort=['time desc'], not "
            f"{type(given).__name__}; make an expression a column by select first"
        )
    keys = tuple(sort_key(each, where, partial(_found_column, steps)) for each in given)
    find_keys(steps, tuple(key.column for key in keys), where)
    for key in keys:
        check_key(steps.leg.fields[key.column], where)
        try:
            check_sortable(steps.leg.schema.field(key.column).type, key.column)
        except TypeError as error:
            raise InvalidRequest(f"{where}: cannot sort: {error}", column=key.column) from error
    return keys


def _found_column(steps: Steps, name: str) -> str | None:
    """The column that the name stands for; None if there is none."""
    same = columns_named(steps, name)
    return find_keys(steps, (name,), "sort")[0] if same else None


def _held(samples: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The samples; of each every second row as often as they would have more than ``_HELD_BYTES`` together."""
    found: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in samples:
        found.append(batch)
        size_bytes += batch.nbytes
        while size_bytes > _HELD_BYTES and any(each.num_rows > 1 for each in found):
            found = [_thin(each) for each in found]
            size_bytes = sum(each.nbytes for each in found)
    return found


def _thin(sample: pa.RecordBatch) -> pa.RecordBatch:
    """Every second row, with the weight of all."""
    kept = sample.take(pa.array(range(0, sample.num_rows, 2)))
    weights = values(kept.columns[-1], np.float64) * (sample.num_rows / kept.num_rows)
    return pa.RecordBatch.from_arrays([*kept.columns[:-1], array_over(weights)], schema=kept.schema)


def _boundaries(samples: list[pa.RecordBatch], keys: tuple[SortKey, ...], count: int) -> list[Any]:
    """The values before which the rows' weights are nearest to equal parts."""
    if not samples:
        return []
    batch = pa.concat_batches(samples)
    order = SortCodes.of(batch, keys).order()
    batch = batch.take(pa.array(order))
    codes = SortCodes.of(batch, keys)
    before = np.cumsum(values(batch.columns[-1], np.float64))
    starts = np.flatnonzero(codes.changes()) + 1
    total, before = before[-1], before[starts - 1]
    if not len(starts):
        return []
    wanted = total * np.arange(1, count) / count
    right = np.searchsorted(before, wanted).clip(max=len(before) - 1)
    left = (right - 1).clip(min=0)
    nearest = np.where(wanted - before[left] <= before[right] - wanted, left, right)
    chosen = batch.take(pa.array(starts[np.unique(nearest)]))
    columns = [map(_printable, python_values(chosen.column(key.column))) for key in keys]
    rows = list(zip(*columns, strict=True))
    return [row[0] for row in rows] if len(keys) == 1 else rows


def _printable(value: Any) -> Any:
    return ArrowValue(value) if isinstance(value, pa.Scalar) else value


def _row(value: Any, keys: int, where: str) -> tuple[Any, ...]:
    if keys == 1:
        return value if isinstance(value, tuple) and len(value) == 1 else (value,)
    if isinstance(value, tuple | list) and len(value) == keys:
        return tuple(value)
    raise InvalidRequest(f"{where} is {value!r}; it needs a tuple of {keys} values, one for each key")


def _column(given: list[Any], kind: pa.DataType, where: str) -> pa.Array:
    found: list[pa.Array] = []
    for each in given:
        value = each.scalar if isinstance(each, ArrowValue) else each
        if isinstance(value, pa.Scalar) and value.type == kind:
            found.append(pa.array([value], kind))
            continue
        try:
            plain = python_values(pa.array([value]))[0] if isinstance(value, pa.Scalar) else value
            plain = plain.item() if isinstance(plain, np.generic) else plain
            if (
                pa.types.is_timestamp(kind)
                and kind.tz
                and isinstance(plain, datetime)
                and plain.tzinfo is None
            ):
                plain = _in_zone(plain, kind.tz)
            converted = pa.array([plain], kind, from_pandas=False)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(
                f"{where} is {kind}, and {shown(value)} is no value of it: {error}"
            ) from error
        # Arrow takes 1.5 for the integer 1, and numbers for times.
        (nearest,) = python_values(converted)
        exact = pa.types.is_floating(kind) or pa.types.is_nested(kind) or nearest == plain
        if not exact:
            raise InvalidRequest(
                f"{where} is {kind}, and {shown(value)} is no value of it; the nearest is {shown(nearest)}"
            )
        found.append(converted)
    return pa.concat_arrays(found) if found else pa.nulls(0, kind)


def _in_zone(time: datetime, zone: str) -> Any:
    """The instant of a time on the session's clocks, as in a literal of Spark SQL."""
    import pyarrow.compute as pc  # noqa: PLC0415 - a quarter of a second, which drivers do without

    local = pa.scalar(time, pa.timestamp("us"))
    found = pc.assume_timezone(local, known_zone(zone), ambiguous="earliest", nonexistent="latest")
    return python_values(pa.array([found]))[0]
