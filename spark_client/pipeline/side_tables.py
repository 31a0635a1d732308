"""Holds the small sides of joins (``held_joins``): the driver reads a sealed one, and gives its rows to the tasks.

Guarantee: all tasks of a join hold the same rows, also where the side's stages give other ones each time: the driver
runs them once. Tasks get few rows with their plan (``broadcast.carried_table``). Of more the driver makes a broadcast,
which is dropped when the run ends: a host's tasks share a copy, where it can keep one; that of the driver, too.

Limits
    A side is held up to ``spark.sql.autoBroadcastJoinThreshold``, as Spark's own joins do, 10 MiB by default, in bytes
    as servers store them; -1 turns it off. Not above ``HELD_ROWS`` rows, because each worker has an index of them of
    about 40 bytes for each, nor above ``DECODED_TIMES`` as many bytes in memory, which the driver has for a moment.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession

from flight_server.protocol import FlightShuffleError
from spark_client.arrow import Declared
from spark_client.broadcast import CARRIED_BYTES, Broadcast, CarriedTable, SmallTable
from spark_client.jobs import SealedDataset, Shuffles, broadcast_threshold_bytes
from spark_client.steps import TableJoinStage, run

from .held_joins import HeldJoins, SmallSide, chosen, small_sides
from .nodes import Exchange, Leg

HELD_ROWS = 1 << 20
DECODED_TIMES = 4

_LEFT_OUT = "held by the join", "not written, because the join holds the other side"
_THINNED_OUT = "its keys held by the other side", "without rows that match no key of the other side"
_log = logging.getLogger(__name__)


class SideTables:
    """The small sides of one run."""

    def __init__(self, shuffles: Shuffles, spark: SparkSession) -> None:
        self._shuffles = shuffles
        self._spark = spark
        self._limit_bytes = 0
        self._tables: list[Broadcast] = []
        self.held = HeldJoins()
        self.notes: dict[Exchange, str] = {}
        """What was done with exchanges, for people."""
        self.thinned: dict[Exchange, Exchange] = {}
        """Those that were written without rows that match no key of the other one."""

    def begin(
        self,
        last: Iterable[Exchange],
        reader: Leg | None,
        kept: Collection[Exchange],
        written: Collection[Exchange],
    ) -> None:
        """Look for sides that may be held; the arguments are those of :func:`small_sides`."""
        sides = small_sides(last, reader, kept, written)
        self._limit_bytes = broadcast_threshold_bytes(self._spark) if sides else 0
        self.held.begin(sides if self._limit_bytes > 0 else [], self._limit_bytes, HELD_ROWS)

    def may_leave_out(self, leg: Leg) -> bool:
        """Whether a join of the leg is expected to hold a side, if an exchange sends the leg's rows."""
        pairs = {part.origin for part in leg.parts}
        sides = [small for small in small_sides([Exchange(leg, 1)], None) if small.pair in pairs]
        if not sides:
            return False
        small = chosen(sides, {}, broadcast_threshold_bytes(self._spark), HELD_ROWS)
        persisted = self._shuffles.persisted
        return any(each.leaves_out and persisted.find(each.other.node) is None for each in small)

    def decide(self, written: Mapping[Exchange, SealedDataset], kept: Collection[Exchange]) -> list[Exchange]:
        """Hold the sides that are written and small; the exchanges of those that are to be written first.

        Raises FlightShuffleError: a server is lost with what the driver reads, or is to hold the broadcast.
        """
        sizes = {node: (sealed.rows, sealed.size_bytes) for node, sealed in written.items()}
        while (small := self.held.next_side(sizes)) is not None:
            self.held.hold(small, self._table_join(small, written[small.exchange]))
        return self.held.first(sizes, kept)

    def forget(self) -> list[str]:
        """Hold nothing until the run begins again, because something was lost: what is held must be of the rows that
        other exchanges have. The sides of which a server has lost the broadcast, in words.
        """
        lost = [
            f"{table.name}, the server that held it is gone"
            for table in self._tables
            if table.sealed is not None and not self._shuffles.loop.is_whole(table.sealed.source.dataset)
        ]
        self.end()
        self.notes.clear()
        return lost

    def end(self) -> None:
        self.held.clear()
        tables, self._tables = self._tables, []
        for table in tables:
            # A dataset of a server that cannot be reached ends with its lease.
            with suppress(FlightShuffleError):
                table.destroy()

    def _table_join(self, small: SmallSide, sealed: SealedDataset) -> TableJoinStage | None:
        """The join with the side as a table, which is a broadcast of the driver's; None: it is too large for that."""
        rows = _rows_of(small, sealed, DECODED_TIMES * self._limit_bytes)
        if rows is None:
            return None
        plan, declared = small.plan, small.stage.declared
        if not small.leaves_out:
            self.thinned[small.other] = small.exchange
            name = f"{declared.stage}, keys of {small.exchange}"
            declared = replace(small.other.leg.declared, stage=name, by_name=False)
            rows = rows.select(plan.right_schema.names)
        held = self._held(rows, f"side of {small.stage.declared.stage}")
        side = Declared(str(small.exchange), plan.right_schema)
        done = _LEFT_OUT if small.leaves_out else _THINNED_OUT
        self.notes |= dict(zip((small.exchange, small.other), done, strict=True))
        _log.info("%s: %d rows of %s are held", small.stage.declared.stage, len(rows), small.exchange)
        return TableJoinStage(declared, plan, held, side)

    def _held(self, rows: pa.Table, name: str) -> CarriedTable | SmallTable:
        if rows.nbytes <= CARRIED_BYTES:
            return CarriedTable.of(rows)
        table = Broadcast.create(self._shuffles, rows, name)
        self._tables.append(table)
        return SmallTable(table)


def _rows_of(small: SmallSide, sealed: SealedDataset, most_bytes: int) -> pa.Table | None:
    """The side's rows; None if they are more in memory than so many bytes, or than ``HELD_ROWS``."""
    schema = small.stages[-1].declared.schema if small.stages else sealed.schema
    held: list[pa.RecordBatch] = []
    size_bytes = rows = 0
    with closing(sealed.read()) as stored:
        for batch in run(small.stages, stored):
            held.append(batch)
            size_bytes += batch.nbytes
            rows += batch.num_rows
            if size_bytes > most_bytes or rows > HELD_ROWS:
                return None
    return pa.Table.from_batches(held, schema)
