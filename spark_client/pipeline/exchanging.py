"""Steps that send rows to partitions, by keys, in turn or by ranges, and that sort them there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, SupportsIndex, TypedDict, Unpack

import pyarrow as pa

from flight_server.protocol import InvalidRequest, check_prefix
from spark_client.arrow import SortKey, check_sortable
from spark_client.jobs import ByRange, check_key
from spark_client.placement import partition_ids
from spark_client.steps import SortStage

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
from .mapping import names_of
from .nodes import Exchange, Leg, PlanPart, SampledRanges
from .ranges import boundaries_of


class ExchangeOptions(TypedDict, total=False):
    """How rows are sent and read, which Spark's own ``repartition`` does not say.

    tasks: how many Spark tasks read the partitions, one after the other, for the stages after the exchange; at most as
        many as partitions. Without it, as many as the data and Spark's cores pay for (``jobs.shares``).
    split: whether several tasks may share a partition far over the median (``jobs.shares``), where each stage up to the
        next exchange, or the end, takes rows as they come, such as ``mapInArrow`` and a join's larger side. A function
        is then called once for each piece, with the same ``TaskContext.partitionId()``. False: never. None: unless rows
        were placed by keys or ranges and a function follows, which may count on seeing all rows of a key in one call.
        Nothing is cut with ``offload``.
    name: for people, 1 to 100 printable characters: in ``explain``, the progress bar, the job's description in Spark
        (``jobs.shuffles``) and, with ``-`` for other characters than letters, digits, ``.``, ``_`` and ``-``, in the
        dataset's name, which the server's dashboard, ``why`` and ``statistics`` show.
    offload: ``"s3://bucket/path"``, or the absolute path of a directory that all hosts share: the servers keep the
        sealed rows there, too, so that they are read when a server is gone. They must be allowed to (``--offload-to``).
    """

    tasks: SupportsIndex | None
    split: bool | None
    name: str | None
    offload: str | PathLike[str] | None


@one_reading
def repartition(
    steps: AnySteps, numPartitions: SupportsIndex | str, *cols: str, **options: Unpack[ExchangeOptions]
) -> AnySteps:
    """Send rows to partitions by the hash of columns, as Spark's ``repartition``, or round robin without columns.

    Args:
        numPartitions: 1 to 100,000; any integer type. Left out before the columns: as many as
            ``spark.sql.shuffle.partitions`` says now.
        cols: names of columns, one by one, found as Spark finds them (``spark.sql.caseSensitive``).
        options: those of :class:`ExchangeOptions`.

    Raises:
        InvalidRequest: ``numPartitions``, ``tasks`` or ``name`` out of range; an ``offload`` that is no address; a key
            that is no column, has a type without a hash, a collation, or a variant.
    """
    _check_options("repartition", options)
    partitions, names = _number_and_names("repartition", numPartitions, cols)
    return _with_exchange(steps, partitions, names, options)


@one_reading
def repartition_by_range(
    steps: AnySteps,
    numPartitions: SupportsIndex | str,
    *cols: str,
    boundaries: Any = None,
    seed: int | None = None,
    **options: Unpack[ExchangeOptions],
) -> AnySteps:
    """Send rows to partitions by ranges of columns, in Spark's order: of about equal size, by a sample that is taken
    when the plan runs, or by given boundaries. With :meth:`sortWithinPartitions` by the same columns all rows are
    sorted.

    The sample is one more job over the steps before, in which each task takes a random sample of its rows' keys: 20 for
    each partition, at least 1,000 and at most 100,000, and 4 MiB. The driver holds at most 512 MiB of them, and a copy.
    A range then has, with few exceptions, at most 1.5 times its share of the rows, beside those of one value. Where
    there are fewer values than ranges, the last partitions are empty.

    Args:
        numPartitions: as for :meth:`repartition`; with ``boundaries`` left out, or one more than these.
        cols: as for :meth:`sortWithinPartitions`.
        boundaries: ascending values of the columns; partition ``i`` gets the rows from ``boundaries[i - 1]`` on to
            before ``boundaries[i]``. There is one partition more than boundaries, and an empty one between two equal
            ones. For several columns, tuples.
        seed: the same seed gives the same sample for the same rows in the same tasks and order.
        options: as for :meth:`repartition`.

    Raises:
        InvalidRequest: no column, or as :meth:`repartition` and :meth:`sortWithinPartitions`; boundaries that do not
            ascend or are no values of the columns.
    """
    where = "repartitionByRange"
    _check_options(where, options)
    partitions, names = _number_and_names(where, numPartitions, cols)
    if not names_of(names):
        raise InvalidRequest(f"{where}: name what the ranges are of, as in {where}(8, 'time')")
    if seed is not None and not isinstance(seed, int):
        raise InvalidRequest(f"{where}: seed is an integer, not {seed!r}")
    keys = sort_keys(steps, names, where)
    if boundaries is None:
        return _with_exchange(steps, partitions, (), options, SampledRanges(keys, seed))
    ranges = boundaries_of(steps, boundaries, keys, where)
    count = ranges.boundaries.num_rows + 1
    if partitions is not None and integer(partitions) != count:
        raise InvalidRequest(
            f"{where}: {count - 1} boundaries make {count} partitions, not {partitions!r}; leave the number out"
        )
    return _with_exchange(steps, count, (), options, ranges)


@one_reading
def sort_within_partitions(
    steps: AnySteps, *cols: str | Sequence[str], ascending: bool | Sequence[bool] = True
) -> AnySteps:
    """Sort the rows of each partition; after a ``repartition``, when its rows are read.

    A partition beyond a task's memory is sorted in files. Rows with equal keys stay in the order of the tasks, where
    one server holds them. The groups of a ``groupBy`` that needs no exchange have their rows in that order.

    Args:
        cols: ``"time"``, ``"time desc"``, ``"time asc nulls last"``, in any case, one by one or as one list, with
            Spark's order of values and nulls: without more words ascending with nulls first, descending with nulls
            last. A text that is a column's whole name is that column.
        ascending: for columns without a word of their own, or a list with one for each column.

    Raises:
        InvalidRequest: no column, one that is not there, or that has a type without an order, or a collation.
    """
    keys = sort_keys(steps, cols, "sortWithinPartitions", ascending=ascending)
    return _sorted(steps, keys)


@one_reading
def order_by(
    steps: AnySteps, *cols: str | Sequence[str], ascending: bool | Sequence[bool] = True
) -> AnySteps:
    """Sort all rows, as Spark's ``orderBy``: by ranges, over as many partitions as ``spark.sql.shuffle.partitions``
    says, or fewer where rows are few, each sorted. Followed by ``limit``, tasks send their own first rows only.

    Args:
        cols, ascending: as for :meth:`sortWithinPartitions`.

    Raises:
        InvalidRequest: as :meth:`sortWithinPartitions`.
    """
    keys = sort_keys(steps, cols, "orderBy", ascending=ascending)
    ranges = SampledRanges(keys, only_order=True)
    return _sorted(exchanged(steps, default_partitions(steps.spark), ranges=ranges), keys)


def exchanged(
    steps: AnySteps,
    partitions: Any,
    keys: Sequence[str] = (),
    *,
    where: str = "",
    ranges: SampledRanges | None = None,
) -> AnySteps:
    """The rows after an exchange that another step needs, which is named ``where`` in errors. Raises InvalidRequest:
    rows cannot be placed by the keys, or there is no such number of partitions.
    """
    count = partition_count(steps, partitions, where)
    _check_placed(steps, tuple(keys), count, where)
    return _after(steps, Exchange(steps.leg, count, tuple(keys), ranges=ranges, added=True))


def _sorted(steps: AnySteps, keys: tuple[SortKey, ...]) -> AnySteps:
    stage = f"sort by {', '.join(map(str, keys))}"
    return with_stage(
        steps, SortStage(replace(steps.leg.declared, stage=stage, by_name=False), keys), steps.leg.struct
    )


def _check_options(method: str, options: ExchangeOptions) -> None:
    for name in options:
        if name not in ExchangeOptions.__annotations__:
            raise TypeError(f"Pipeline.{method}() got an unexpected keyword argument {name!r}")


def _number_and_names(
    where: str, numPartitions: Any, cols: tuple[Any, ...]
) -> tuple[SupportsIndex | None, tuple[Any, ...]]:
    """The number of partitions, None for the session's, and what follows it. Raises InvalidRequest: the number does not
    come first.
    """
    if not isinstance(numPartitions, str):
        return numPartitions, cols
    numbers = [each for each in cols if isinstance(each, SupportsIndex) and not isinstance(each, bool)]
    if numbers:
        names = [repr(each) for each in (numPartitions, *cols) if isinstance(each, str)]
        raise InvalidRequest(
            f"{where}: the number of partitions comes first: {where}({', '.join([repr(numbers[0]), *names])})"
        )
    return None, (numPartitions, *cols)


def _with_exchange(
    steps: AnySteps,
    partitions: Any,
    names: tuple[Any, ...],
    options: ExchangeOptions,
    ranges: ByRange | SampledRanges | None = None,
) -> AnySteps:
    """The rows after an exchange of the user's. Raises InvalidRequest, as :func:`repartition`."""
    partitions = default_partitions(steps.spark) if partitions is None else partitions
    where = "repartition" if ranges is None else "repartitionByRange"
    if all(isinstance(key, str) for key in names):
        where = str(Exchange(steps.leg, integer(partitions), names, ranges=ranges))
    count = partition_count(steps, partitions, where)
    tasks, name, split = options.get("tasks"), options.get("name"), options.get("split")
    readers = None if tasks is None else integer(tasks)
    if readers is not None and not 1 <= readers <= count:
        raise InvalidRequest(f"{where}: tasks is 1 to {count}, the number of partitions, not {tasks!r}")
    columns = find_keys(steps, names, where)
    _check_placed(steps, columns, count, where)
    if name is not None and not (1 <= len(str(name)) <= 100 and str(name).isprintable()):
        raise InvalidRequest(f"{where}: name is 1 to 100 printable characters, not {name!r}")
    offload = options.get("offload")
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
    return _after(steps, exchange)


def _after(steps: AnySteps, exchange: Exchange) -> AnySteps:
    declared = replace(steps.leg.declared, stage=str(exchange))
    return replace(steps, leg=Leg((PlanPart(exchange),), steps.leg.struct, declared))


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
    except TypeError as error:
        raise InvalidRequest(f"{where}: {error}") from error


def sort_keys(
    steps: Steps, order: tuple[Any, ...], where: str, *, ascending: Any = True
) -> tuple[SortKey, ...]:
    """The keys to sort by, with the columns' names as Spark resolves them; ``ascending`` is for keys without a word of
    their own. Raises InvalidRequest: no such form, no such column, or a type without an order.
    """
    order = names_of(order)
    if not order:
        raise InvalidRequest(f"{where}: name what it sorts by, as in {where}('time desc', 'id')")
    directions = list(ascending) if isinstance(ascending, list | tuple) else [ascending] * len(order)
    if len(directions) != len(order) or not all(isinstance(each, bool | int) for each in directions):
        raise InvalidRequest(
            f"{where}: ascending is True, False, or one of them for each of the {len(order)} columns, not {ascending!r}"
        )
    named = [
        _sort_key(steps, key, where, ascending=bool(up)) for key, up in zip(order, directions, strict=True)
    ]
    columns = find_keys(steps, tuple(key.column for key in named), where)
    for column in columns:
        check_key(steps.leg.fields[column], where)
        try:
            check_sortable(steps.leg.schema.field(column).type, column)
        except TypeError as error:
            raise InvalidRequest(f"{where}: cannot sort: {error}", column=column) from error
    return tuple(replace(key, column=column) for key, column in zip(named, columns, strict=True))


_WORDS = re.compile(r"(?is)(.*?)(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?\s*")


def _sort_key(steps: Steps, key: Any, where: str, *, ascending: bool) -> SortKey:
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
        return SortKey(key, descending=not ascending)
    match = _WORDS.fullmatch(key)
    assert match is not None
    name, direction, nulls = match.groups()
    descending = not ascending if direction is None else direction.lower() == "desc"
    return SortKey(name, descending, None if nulls is None else nulls.lower() == "first")
