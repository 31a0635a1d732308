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
    """The table of an Arrow stream. ``check`` is called where the driver uses the table, or pickles it."""

    def __init__(self, stream: bytes, check: Callable[[], object] = lambda: None) -> None:
        self._stream = stream
        self._rows = pa.ipc.open_stream(stream).read_all()
        self._check = check

    @classmethod
    def of(cls, rows: pa.Table) -> CarriedTable:
        return cls(stream_of(rows))

    def __reduce__(self) -> tuple[Any, ...]:
        self._check()
        return CarriedTable, (self._stream,)

    @property
    def size_bytes(self) -> int:
        return int(self._rows.nbytes)

    def table(self) -> pa.Table:
        self._check()
        return self._rows


def stream_of(rows: pa.Table) -> bytes:
    """A copy of the rows alone, not of all that they are a slice of."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream
