"""CarriedTable: a small table that each task of a join gets with its plan.

A copy on the host costs more than such a table: its dataset is written, and one task fetches it while the others wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

CARRIED_BYTES = 128 << 10
"""In memory. A task gets several with its plan, which PySpark itself sends by a broadcast from 1 MiB on."""


class CarriedTable:
    """``check`` is called where the driver uses the table, or pickles it."""

    def __init__(self, rows: pa.Table, check: Callable[[], object] = lambda: None) -> None:
        self._rows = rows
        self._check = check

    @classmethod
    def read(cls, stream: bytes) -> CarriedTable:
        return cls(pa.ipc.open_stream(stream).read_all())

    def __reduce__(self) -> tuple[Any, ...]:
        self._check()
        # Arrow's own pickle has all of the buffers that a slice is of.
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._rows.schema) as writer:
            writer.write_table(self._rows)
        return CarriedTable.read, (sink.getvalue().to_pybytes(),)

    @property
    def size_bytes(self) -> int:
        return int(self._rows.nbytes)

    def table(self) -> pa.Table:
        self._check()
        return self._rows
