"""The last steps of a plan whose result the driver reads, run in the driver over little input (``in_driver``).

Guarantee: the rows that Spark's tasks would give, in the order of the partitions, all of them before the caller has
one: so it raises where a job would, and nothing of the run is left on a server. At most ``GATHERED_BYTES`` are held,
and one batch: a join may make many rows of few. A larger result is one for the server, and for a reader of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from spark_client.arrow import Declared
from spark_client.connection import Reading
from spark_client.jobs import ReadLimit, ReadTask, share_numbers
from spark_client.steps import Stage

from .nodes import Input

GATHERED_BYTES = 16 << 20


@dataclass(frozen=True)
class DriverRows:
    """The batches of a result, and how long the driver took for the last steps."""

    batches: Sequence[Any]
    seconds: float


def gathered(
    inputs: Sequence[tuple[Input, tuple[Stage, ...]]], declared: Declared, options: Reading
) -> DriverRows | None:
    """The rows of all inputs after their stages; None if they are more than ``GATHERED_BYTES``. Raises TooMuchRead
    (``jobs.ReadLimit``).
    """
    found: list[Any] = []
    size_bytes, began = 0, perf_counter()
    reads = ReadLimit.of(options.driver_bytes)
    for given, stages in inputs:
        assert given.source is not None
        assert given.shares is not None
        # Without limits, which are for functions of users, and which Spark would be asked for.
        task = ReadTask(given.source, given.shares, stages, kept=True, options=options, reads=reads)
        with closing(task.batches(share_numbers(range(len(task.shares))))) as batches:
            for batch in batches:
                found.append(declared.cast(batch))
                size_bytes += batch.nbytes
                if size_bytes > GATHERED_BYTES:
                    return None
    return DriverRows(found, perf_counter() - began)
