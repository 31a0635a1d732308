"""Steps that send rows to partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

import pyarrow as pa

from flight_server.protocol import MAX_PARTITIONS, InvalidRequest, check_prefix
from spark_client.arrow import SortKey
from spark_client.jobs import ByRange, check_key
from spark_client.placement import partition_ids
from spark_client.steps import SortStage

from .base import AnySteps, Steps, default_partitions, find_keys, integer, settled
from .nodes import Exchange, Leg, PlanPart
from .range_steps import ranges_by, sort_keys


@settled
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
    """See :meth:`.Pipeline.exchange`."""
    ranges = _given_ranges(steps, partitions, keys, boundaries, by)
    if ranges is not None:
        partitions, keys = ranges.boundaries.num_rows + 1, ()
    count, names = _partitions(steps, partitions, keys)
    where = (
        str(Exchange(steps.leg, count, names, ranges=ranges))
        if all(isinstance(key, str) for key in names)
        else "exchange"
    )
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidRequest(
            f"{where}: the first argument is how many partitions, 1 to {MAX_PARTITIONS}, not {partitions!r}"
        )
    readers = None if tasks is None else integer(tasks)
    if readers is not None and not 1 <= readers <= count:
        raise InvalidRequest(f"{where}: tasks is 1 to {count}, the number of partitions, not {tasks!r}")
    found = find_keys(steps, names, where)
    _check_placed(steps, found, count, where)
    order = sort_keys(steps, sort, where)
    if name is not None and not (1 <= len(str(name)) <= 100 and str(name).isprintable()):
        raise InvalidRequest(f"{where}: name is 1 to 100 printable characters, not {name!r}")
    exchange = Exchange(
        steps.leg,
        count,
        found,
        readers,
        ranges=ranges,
        split=None if split is None else bool(split),
        name=name,
        offload=None if offload is None else check_prefix(str(offload), f"{where}: offload"),
    )
    return _send(steps, exchange, order)


def _send(steps: AnySteps, exchange: Exchange, order: tuple[SortKey, ...]) -> AnySteps:
    declared = replace(steps.leg.declared, stage=str(exchange))
    leg = Leg((PlanPart(exchange),), steps.leg.struct, declared)
    if order:
        named = replace(declared, stage=f"sort by {', '.join(map(str, order))}")
        leg = leg.with_stage(SortStage(named, order), steps.leg.struct)
    return replace(steps, leg=leg)


def _given_ranges(steps: Steps, partitions: Any, keys: Any, boundaries: Any, by: Any) -> ByRange | None:
    if boundaries is None:
        if by is not None and by != ():
            raise InvalidRequest(
                "exchange: by= says what boundaries= are values of; sample_boundaries(n, by) finds some"
            )
        return None
    if keys or isinstance(partitions, str | list | tuple):
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


def _partitions(steps: Steps, partitions: Any, keys: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
    """How many partitions, 0 if that cannot be, and the keys' names one by one."""
    if isinstance(partitions, str | list | tuple):
        keys, partitions = (partitions, *keys), None
    if len(keys) == 1 and isinstance(keys[0], list | tuple):
        (keys,) = keys
    if partitions is None:
        partitions = default_partitions(steps.spark)
    return integer(partitions), tuple(keys)


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
