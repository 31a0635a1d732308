"""Computes the partition of each row: the one that Spark's `repartition(n, keys)` would send it to.

`partition_ids` is Spark's `HashPartitioning`: `pmod(hash(keys), n)`, with Murmur3 from seed 42 and the hash of each
key as the seed of the next. Its memory is the result plus a few arrays of `SLICE_ROWS`.

Hashes of values
    ==============================================  =======================================================
    bool, int8, int16, int32, date32                one 32-bit word
    int64, timestamp and duration (microseconds),   one 64-bit word
    time64 (nanoseconds)
    float, double                                   its bits, with -0.0 as 0.0 and every NaN as Java's one
    decimal of precision up to 18                   the unscaled value, one 64-bit word
    decimal of precision 19 to 38                   the unscaled value's shortest big-endian two's complement
    string, binary, also large                      its bytes
    list, struct                                    its elements or fields in turn
    null, at any depth, and the type null           nothing: the hash stays as it is
    ==============================================  =======================================================

The width counts, so rows must first have the types of their declared Spark schema.

Refused
    Maps, as in Spark. Strings with a collation other than Spark's default UTF8_BINARY, and variants, do not show in
    Arrow's types: the pipeline refuses such keys (``jobs.check_key``), this module places them by their bytes.

Time
    Keys of fixed width take about 15 ns a row, less than a column more in Spark's way to Python; strings and nested
    values take several times as long, in proportion to their lengths, which is as long as Spark takes.

Without keys
    `round_robin_ids` gives rows to the partitions in turn, from a first partition of each producer's own: many
    producers with few rows do not all begin with partition 0. It depends only on the producer's index, so a retried
    task places the same rows identically.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flight_server.protocol import InvalidRequest
from spark_client.arrow import groupable, python_values, shown, widened

from .key_columns import key_column
from .murmur3 import SEED

SLICE_ROWS = 32_768
"""Rows hashed at a time: their running hashes and scratch arrays, 128 KiB each, stay in a core's cache."""

_GOLDEN_RATIO = 0x9E3779B1  # 2**32 / the golden ratio, as in Knuth's multiplicative hashing (TAOCP 6.4)


def partition_ids(batch: pa.RecordBatch, keys: Sequence[str], partitions: int) -> NDArray[np.int32]:
    """The partition, 0 to `partitions - 1`, of each row, by the columns of these very names, at
    least one. TypeError: a key's type cannot be placed.
    """
    columns = [key_column(batch.column(key), key) for key in keys]
    ids = np.empty(batch.num_rows, np.int32)
    for start in range(0, batch.num_rows, SLICE_ROWS):
        rows = slice(start, min(start + SLICE_ROWS, batch.num_rows))
        hashes = np.full(rows.stop - start, SEED, np.uint32)
        for column in columns:
            column.fold(rows, hashes)
        ids[rows] = _pmod(hashes.view(np.int32), partitions)
    return ids


def round_robin_start(producer: int, partitions: int) -> int:
    """The partition of a producer's first row; those of consecutive producers are spread evenly."""
    return ((producer * _GOLDEN_RATIO & 0xFFFFFFFF) * partitions) >> 32


def round_robin_ids(rows: int, start: int, partitions: int) -> NDArray[np.int32]:
    """The partitions of `rows` rows, in turn from `start` on, which may exceed `partitions`: the next batch starts at
    `start + rows`.
    """
    ids = np.arange(start % partitions, start % partitions + rows, dtype=np.int64)
    return (ids % partitions).astype(np.int32)


def _pmod(hashes: NDArray[np.int32], partitions: int) -> NDArray[np.int32]:
    # Floor division by a constant is vectorised in numpy, the remainder is not.
    divisor = np.int32(partitions)
    quotients = hashes // divisor
    quotients *= divisor
    return hashes - quotients


@dataclass(frozen=True)
class PlacedKeys:
    """The exchange before the groups; ``exchange`` is its text for messages. Equal values have one hash, so it puts
    them in one partition.
    """

    exchange: str
    keys: pa.Schema
    partitions: int

    def check(self, keys: pa.RecordBatch, partition: int, stage: str, what: str = "groups") -> None:
        """Check that the exchange would send all of ``keys``, cast to its types, to ``partition``: otherwise a stage
        has changed a key, and its rows may be in several partitions. Raises InvalidRequest, also if a cast fails.
        """
        columns = []
        for column, field in zip(keys.columns, self.keys, strict=True):
            try:
                columns.append(widened(column, field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InvalidRequest(
                    f"{stage}: key {field.name!r} is {column.type}, and {self.exchange} has placed rows by "
                    f"{field.type}, which its values cannot be made again ({error}); {self._remedy(keys)}",
                    stage=stage,
                    partition=partition,
                ) from error
        # Numbers for names, because an exchange may name a key twice.
        names = [str(number) for number in range(len(columns))]
        ids = partition_ids(pa.RecordBatch.from_arrays(columns, names=names), names, self.partitions)
        wrong = np.flatnonzero(ids != partition)
        if len(wrong):
            first = int(wrong[0])
            row = [python_values(column.slice(first, 1))[0] for column in keys.columns]
            key = ", ".join(
                f"{name!r} = {shown(value)[:80]}" for name, value in zip(keys.schema.names, row, strict=True)
            )
            raise InvalidRequest(
                f"{stage}: {len(wrong)} of {len(ids)} {what} may be in parts: {key} is in partition {partition}, "
                f"and {self.exchange} places it in partition {ids[first]}; a stage after the exchange has "
                f"changed the key; {self._remedy(keys)}",
                stage=stage,
                partition=partition,
            )

    def _remedy(self, keys: pa.RecordBatch) -> str:
        names = ", ".join(map(repr, keys.schema.names))
        return f"place them again after that stage: .repartition({self.partitions}, {names})"


def check_groupable(schema: pa.Schema, keys: Sequence[str], stage: str) -> None:
    """Raise InvalidRequest if a key's type contains a map."""
    for key in keys:
        if not groupable(schema.field(key).type):
            raise InvalidRequest(
                f"{stage}: cannot group by {key!r} of type {schema.field(key).type}: equal maps may differ in order; "
                "group by a column made from it, for example its sorted entries as a list, an element or its text",
                stage=stage,
                column=key,
            )
