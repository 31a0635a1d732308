"""Tables that a process joins with again and again, each indexed once.

Guarantee: a table that lives as long as a join's tasks need it, such as a broadcast's, is indexed once per process for
the same keys and columns. Its index is dropped with it: the process holds the table only weakly.

Memory
    Of each table the index (``key_index``) and its keys in their normal form unless they are exact. Rows stay where
    they are, in a broadcast's case in the mapped file, but for tables of several chunks up to ``COPIED_BYTES``: they
    are copied together, because a row is then taken from one place. So are columns that are cast.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from .held_rows import HeldRows, joined
from .join_plan import Side

COPIED_BYTES = 32 * 1024 * 1024


@dataclass
class _Known:
    table: weakref.ref[pa.Table]
    rows: dict[Any, HeldRows] = field(default_factory=dict)


_known: dict[int, _Known] = {}
"""By the table's address; an entry goes with its table."""


def held_table(table: pa.Table, side: Side, cast: Callable[[pa.Table], pa.Table]) -> HeldRows:
    """The rows of a table for a join of which it is this side, after a cast to the side's types. The cast may raise."""
    address = id(table)
    known = _known.get(address)
    if known is None or known.table() is not table:
        known = _known[address] = _Known(weakref.ref(table, lambda _: _known.pop(address, None)))
    wanted = (side.keys, side.schema)
    if wanted not in known.rows:
        batches = cast(table).to_batches()
        if len(batches) > 1 and table.nbytes <= COPIED_BYTES:
            batches = joined(batches)
        known.rows[wanted] = HeldRows(batches, side.keys, side.schema)
    return known.rows[wanted]
