"""Steps that send rows to partitions: by keys, in turn, or by ranges, whose boundaries a user gives, or a sample."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, SupportsIndex

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DoubleType, StructField, StructType

from flight_server.protocol import MAX_PARTITIONS, InvalidRequest, check_prefix
from spark_client.arrow import (
    ArrowValue,
    Declared,
    SortCodes,
    SortKey,
    array_over,
    check_sortable,
    known_zone,
    printable_values,
    python_values,
    shown,
    values,
)
from spark_client.jobs import ByRange, arrow_schema, check_key
from spark_client.placement import partition_ids
from spark_client.steps import SampleStage, SortStage

from .base import (
    AnySteps,
    Steps,
    columns_named,
    default_partitions,
    find_keys,
    integer,
    one_reading,
    partition_count,
    with_stage,
)
from .finishing import collect
from .nodes import Exchange, Leg, PlanPart


@one_reading
def add_exchange(
    steps: AnySteps,
    partitions: SupportsIndex | str | Sequence[str] | None = None,
    *keys: str | Sequence[str],
    sort: Any = None,
    boundaries: Any = None,
    by: Any = None,
    tasks: SupportsIndex | None = None,
    split: bool | None = None,
    name: str | None = None,
    offload: Any = None,
) -> AnySteps:
    """Send rows to ``partitions`` partitions by the hash of ``keys``, round robin without keys, or by range.

    Args:
        partitions: 1 to 100,000; any integer type. None, or left out before the keys: as many as
            ``spark.sql.shuffle.partitions`` says now.
        keys: names of columns, one by one or as one list, found as Spark finds them
            (``spark.sql.caseSensitive``).
        sort: the order of each partition's rows, as one key or a list of keys: ``"time"``, ``["time desc", "id"]``,
            ``"time asc nulls last"``, in any case, with Spark's order of values and nulls: without more words
            ascending with nulls first, descending with nulls last. A text that is a column's whole name is that
            column. A partition beyond a task's memory is sorted in files. Rows with equal keys stay in the order of the
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
    if isinstance(partitions, str | list | tuple):
        keys, partitions = (partitions, *keys), None
    names: tuple[Any, ...] = keys
    if len(keys) == 1 and isinstance(keys[0], list | tuple):
        names = tuple(keys[0])
    ranges = _ranges(steps, partitions, names, boundaries, by)
    if ranges is not None:
        partitions = ranges.boundaries.num_rows + 1
    elif partitions is None:
        partitions = default_partitions(steps.spark)
    where = "exchange"
    if all(isinstance(key, str) for key in names):
        where = str(Exchange(steps.leg, integer(partitions), names, ranges=ranges))
    count = partition_count(steps, partitions, where)
    readers = None if tasks is None else integer(tasks)
    if readers is not None and not 1 <= readers <= count:
        raise InvalidRequest(f"{where}: tasks is 1 to {count}, the number of partitions, not {tasks!r}")
    columns = find_keys(steps, names, where)
    _check_placed(steps, columns, count, where)
    order = sort_keys(steps, sort, where)
    if name is not None and not (1 <= len(str(name)) <= 100 and str(name).isprintable()):
        raise InvalidRequest(f"{where}: name is 1 to 100 printable characters, not {name!r}")
    exchange = Exchange(
        steps.leg,
        count,
        columns,
        readers,
        ranges=ranges,
        split=None if split is None else bool(split),
        name=name,
        offload=None if offload is None else check_prefix(str(offload), f"{where}: offload"),
    )
    declared = replace(steps.leg.declared, stage=str(exchange))
    leg = Leg((PlanPart(exchange),), steps.leg.struct, declared)
    if order:
        named = replace(declared, stage=f"sort by {', '.join(map(str, order))}")
        leg = leg.with_stage(SortStage(named, order), steps.leg.struct)
    return replace(steps, leg=leg)


def _ranges(steps: Steps, partitions: Any, keys: tuple[Any, ...], boundaries: Any, by: Any) -> ByRange | None:
    """The placement by ``boundaries``; None without. Raises InvalidRequest: they do not fit the other arguments."""
    if boundaries is None:
        if by is not None and by != ():
            raise InvalidRequest(
                "exchange: by= says what boundaries= are values of; sample_boundaries(n, by) finds some"
            )
        return None
    if keys:
        raise InvalidRequest(
            "exchange: rows are placed by keys or by boundaries=, not by both; name the boundaries' columns by by="
        )
    ranges = ranges_by(steps, boundaries, by, "exchange")
    count = ranges.boundaries.num_rows + 1
    if partitions is not None and integer(partitions) != count:
        raise InvalidRequest(
            f"exchange: {count - 1} boundaries make {count} partitions, not {partitions!r}; leave the number out"
        )
    return ranges


def _check_placed(steps: Steps, keys: tuple[str, ...], count: int, where: str) -> None:
    for key in keys:
        check_key(steps.leg.fields[key], where)
    if not keys:
        return
    schema = steps.leg.schema
    nothing = pa.RecordBatch.from_arrays([pa.nulls(0, type_) for type_ in schema.types], schema=schema)
    try:
        # Raises for types that the tasks could not place.
        partition_ids(nothing, keys, count)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{where}: {error}") from error


_SAMPLED_PER_PARTITION = 20
_HELD_BYTES = 512 << 20
_LEAST_SAMPLED, _MOST_SAMPLED = 1000, 100_000


def sample_boundaries(
    steps: Steps, partitions: SupportsIndex | None = None, by: Any = None, *, seed: int | None = None
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
    where = "sample_boundaries"
    count = partition_count(steps, partitions, where)
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


def sort_keys(steps: Steps, order: Any, where: str) -> tuple[SortKey, ...]:
    """The keys to sort by, one or a list of them, or none for None, with the columns' names as Spark resolves them.
    Raises InvalidRequest: no such form, no such column, or a type without an order.
    """
    if order is None:
        return ()
    if isinstance(order, str | SortKey):
        order = [order]
    if not isinstance(order, list | tuple):
        raise InvalidRequest(
            f"{where}: rows are sorted by names of columns, such as sort=['time desc'], not "
            f"{type(order).__name__}; make an expression a column by select first"
        )
    named = [_sort_key(steps, key, where) for key in order]
    columns = find_keys(steps, tuple(key.column for key in named), where)
    for column in columns:
        check_key(steps.leg.fields[column], where)
        try:
            check_sortable(steps.leg.schema.field(column).type, column)
        except TypeError as error:
            raise InvalidRequest(f"{where}: cannot sort: {error}", column=column) from error
    return tuple(replace(key, column=column) for key, column in zip(named, columns, strict=True))


_WORDS = re.compile(r"(?is)(.*?)(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?\s*")


def _sort_key(steps: Steps, key: Any, where: str) -> SortKey:
    """The key by its text, which is that of a column as a whole, or has words of an order behind it. Raises
    InvalidRequest: it is neither text nor a key.
    """
    if isinstance(key, SortKey):
        return key
    if not isinstance(key, str):
        raise InvalidRequest(
            f"{where}: {type(key).__name__} is no key to sort by; write 'time', 'time desc' or 'time asc nulls last'"
        )
    if columns_named(steps, key):
        return SortKey(key)
    match = _WORDS.fullmatch(key)
    assert match is not None
    name, direction, nulls = match.groups()
    return SortKey(
        name, (direction or "").lower() == "desc", None if nulls is None else nulls.lower() == "first"
    )


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
    ends = total * np.arange(1, count) / count
    right = np.searchsorted(before, ends).clip(max=len(before) - 1)
    left = (right - 1).clip(min=0)
    nearest = np.where(ends - before[left] <= before[right] - ends, left, right)
    chosen = batch.take(pa.array(starts[np.unique(nearest)]))
    columns = [printable_values(chosen.column(key.column)) for key in keys]
    rows = list(zip(*columns, strict=True))
    return [row[0] for row in rows] if len(keys) == 1 else rows


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
    value = boundary.scalar if isinstance(boundary, ArrowValue) else boundary
    if isinstance(value, pa.Scalar) and value.type == kind:
        return pa.array([value], kind)
    try:
        plain = python_values(pa.array([value]))[0] if isinstance(value, pa.Scalar) else value
        plain = plain.item() if isinstance(plain, np.generic) else plain
        zoned = pa.types.is_timestamp(kind) and kind.tz
        if zoned and isinstance(plain, datetime) and plain.tzinfo is None:
            plain = _in_zone(plain, kind.tz)
        converted = pa.array([plain], kind, from_pandas=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{where} is {kind}, and {shown(value)} is no value of it: {error}") from error
    # Arrow takes 1.5 for the integer 1, and numbers for times.
    (nearest,) = python_values(converted)
    if not (pa.types.is_floating(kind) or pa.types.is_nested(kind) or nearest == plain):
        raise InvalidRequest(
            f"{where} is {kind}, and {shown(value)} is no value of it; the nearest is {shown(nearest)}"
        )
    return converted


def _in_zone(time: datetime, zone: str) -> Any:
    """The instant of a time on the session's clocks, as in a literal of Spark SQL."""
    import pyarrow.compute as pc  # noqa: PLC0415 - a quarter of a second, which drivers do without

    local = pa.scalar(time, pa.timestamp("us"))
    instant = pc.assume_timezone(local, known_zone(zone), ambiguous="earliest", nonexistent="latest")
    return python_values(pa.array([instant]))[0]
