"""Steps that send rows to partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, SupportsIndex

import pyarrow as pa

from flight_server.keys import SortKey
from flight_server.protocol import MAX_PARTITIONS, InvalidRequest
from spark_client.jobs import WRITE_BUDGET_BYTES, ByRange, check_key
from spark_client.placement import partition_ids
from spark_client.steps import SortStage

from .base import default_partitions, integer
from .nodes import Exchange, Exchanged, Leg, PlanPart
from .range_steps import Ranging


class Exchanging(Ranging):
    """See the module."""

    def exchange(
        self,
        partitions: SupportsIndex | str | Sequence[str] | None = None,
        *keys: str | Sequence[str],
        sort: Any = None,
        boundaries: Any = None,
        by: Any = None,
        budget_bytes: SupportsIndex = WRITE_BUDGET_BYTES,
        tasks: SupportsIndex | None = None,
        split: bool | None = None,
        name: str | None = None,
    ) -> Self:
        """Send rows to ``partitions`` partitions by the hash of ``keys``, round robin without keys, or by range.

        Args:
            partitions: 1 to 100,000; any integer type. None, or left out before the keys: as many as
                ``spark.sql.shuffle.partitions`` says now.
            keys: names of columns, one by one or as one list, found as Spark finds them
                (``spark.sql.caseSensitive``).
            sort: the order of each partition's rows, as one key or a list of keys: ``"time"``, ``["time desc"]``,
                ``[("time", "desc"), "id"]`` (``arrow.sort_keys``), with Spark's order of values and nulls. A
                partition beyond a task's memory is sorted in files. The groups of ``applyInArrow`` have their rows in
                that order.
            boundaries: ascending values of ``by``; partition ``i`` gets the rows from ``boundaries[i - 1]`` on to
                before ``boundaries[i]``, in Spark's order. There is one partition more than boundaries, and an empty
                one between two equal ones. For several columns, tuples. :meth:`sample_boundaries` gives some for
                partitions of about equal size. ``exchange(boundaries=b, by="x", sort="x")`` sorts all rows.
            by: what ``boundaries`` are values of, in the forms of ``sort``.
            budget_bytes: bytes that one writing task may gather before it sends, at least 1 MiB; its peak is about
                twice as much (``arrow.coalescer``). Frames have about ``budget_bytes / partitions``, up to 2 or 3
                MiB, so many partitions need a larger budget.
            tasks: how many Spark tasks read the partitions, one after the other, for the stages after the exchange;
                at most ``partitions``. None: as many as the data and Spark's cores pay for (``jobs.shares``).
            split: whether several tasks may share a partition far over the median (``jobs.skew``), where each stage
                up to the next exchange, or the end, takes rows as they come, such as ``mapInArrow`` and a join's
                larger side. A function is then called once for each piece, with the same
                ``TaskContext.partitionId()``. False: never. None: unless rows were placed by keys or ranges and a
                function follows, which may count on seeing all rows of a key in one call.
            name: for people, 1 to 100 printable characters: in ``explain``, the progress bar, the job's description
                in Spark (``jobs.shuffles``) and, with ``-`` for other characters than letters, digits, ``.``, ``_``
                and ``-``, in the dataset's name, which the server's dashboard, ``why`` and ``statistics`` show.

        Raises:
            InvalidRequest: ``partitions``, ``budget_bytes``, ``tasks`` or ``name`` out of range; a key that is no
                column, has a type without a hash, or without an order in ``sort`` or ``by``, a collation, or a
                variant; boundaries that do not ascend or are no values of ``by``, or stand beside keys.
        """
        ranges = self._given_ranges(partitions, keys, boundaries, by)
        if ranges is not None:
            partitions, keys = ranges.boundaries.num_rows + 1, ()
        count, names = self._partitions(partitions, keys)
        budget = integer(budget_bytes)
        where = (
            str(Exchange(count, names, ranges=ranges))
            if all(isinstance(key, str) for key in names)
            else "exchange"
        )
        if not 1 <= count <= MAX_PARTITIONS:
            raise InvalidRequest(
                f"{where}: the first argument is how many partitions, 1 to {MAX_PARTITIONS}, not {partitions!r}"
            )
        if budget < 1 << 20:
            raise InvalidRequest(f"{where}: budget_bytes must be at least 1 MiB, not {budget_bytes!r}")
        readers = None if tasks is None else integer(tasks)
        if readers is not None and not 1 <= readers <= count:
            raise InvalidRequest(f"{where}: tasks is 1 to {count}, the number of partitions, not {tasks!r}")
        found = self._keys(names, where)
        self._check_placed(found, count, where)
        order = self._sort_keys(sort, where)
        if name is not None and not (1 <= len(str(name)) <= 100 and str(name).isprintable()):
            raise InvalidRequest(f"{where}: name is 1 to 100 printable characters, not {name!r}")
        exchange = Exchange(
            count,
            found,
            budget,
            readers,
            ranges=ranges,
            split=None if split is None else bool(split),
            name=name,
        )
        return self._exchanged(exchange, order)

    def _exchanged(self, exchange: Exchange, order: tuple[SortKey, ...]) -> Self:
        declared = replace(self.leg.declared, stage=str(exchange))
        leg = Leg((PlanPart(Exchanged(self.leg, exchange)),), self.leg.struct, declared)
        if order:
            named = replace(declared, stage=f"sort by {', '.join(map(str, order))}")
            leg = leg.with_stage(SortStage(named, order), self.leg.struct)
        return replace(self, leg=leg)

    def _given_ranges(self, partitions: Any, keys: Any, boundaries: Any, by: Any) -> ByRange | None:
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
        ranges = self._ranges(boundaries, by, "exchange")
        count = ranges.boundaries.num_rows + 1
        if partitions is not None and integer(partitions) != count:
            raise InvalidRequest(
                f"exchange: {count - 1} boundaries make {count} partitions, not {partitions!r}; leave the number out"
            )
        return ranges

    def _partitions(self, partitions: Any, keys: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
        """How many partitions, 0 if that cannot be, and the keys' names one by one."""
        if isinstance(partitions, str | list | tuple):
            keys, partitions = (partitions, *keys), None
        if len(keys) == 1 and isinstance(keys[0], list | tuple):
            (keys,) = keys
        if partitions is None:
            partitions = default_partitions(self.spark)
        return integer(partitions), tuple(keys)

    def _check_placed(self, keys: tuple[str, ...], count: int, where: str) -> None:
        for key in keys:
            check_key(self.leg.fields[key], where)
        if not keys:
            return
        schema = self._schema
        nothing = pa.RecordBatch.from_arrays([pa.array([], type_) for type_ in schema.types], schema=schema)
        try:
            # Raises for types that the tasks could not place.
            partition_ids(nothing, keys, count)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{where}: {error}") from error
