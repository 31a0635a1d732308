"""A model of the keep rules that keeps everything, in plain lists; and what tests need to call the kernels.

A row is a tuple with the columns of :data:`SCHEMA`; a collection has a count for each row, which may be below zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from flight_server.kinds.changelog.rules import Groups, Kept
from flight_server.protocol import KeepRule, RuleName

Row = tuple[Any, ...]
SCHEMA = pa.schema([("key", pa.string()), ("time", pa.int64()), ("kind", pa.string()), ("value", pa.int64())])


def kept(spec: KeepRule, counts: Mapping[Row, int], schema: pa.Schema = SCHEMA) -> Counter[Row]:
    """What readers see."""
    copies = [row for row in _ascending(spec, counts, schema) for _ in range(counts[row])]
    by_key: dict[Row, list[Row]] = {}
    for row in copies:
        by_key.setdefault(_picked(row, spec.key, schema), []).append(row)
    return Counter(row for rows in by_key.values() for row in _kept_of_key(spec, rows, schema))


def _kept_of_key(spec: KeepRule, rows: list[Row], schema: pa.Schema) -> list[Row]:
    match spec.rule:
        case RuleName.LATEST | RuleName.TOP_K:
            return rows[-spec.k :]
        case RuleName.UNTIL_CLOSED:
            names, values = zip(*spec.closed_by, strict=True)
            others = [row for row in rows if _picked(row, names, schema) != values]
            return rows if len(others) == len(rows) else others[-spec.k :]
        case RuleName.PAIR:
            assert spec.kind is not None
            assert spec.values is not None
            first, second = (
                [row for row in rows if _picked(row, [spec.kind], schema) == (v,)] for v in spec.values
            )
            pairs = min(len(first), len(second))
            others = [row for row in rows if row not in first and row not in second]
            return [*first[pairs:], *second[pairs:], *others]
    raise AssertionError(spec)


def _ascending(spec: KeepRule, rows: Iterable[Row], schema: pa.Schema) -> list[Row]:
    """By key, then by order_by, then by all columns; a null is below every value."""
    columns = [*spec.key, *(order.column for order in spec.order_by), *schema.names]
    falling = {len(spec.key) + number for number, order in enumerate(spec.order_by) if order.smallest_first}
    placed = list(rows)
    # Sorting by one column after the other, the last one first, keeps the order of those before it.
    for number in reversed(range(len(columns))):
        at = schema.names.index(columns[number])
        nulls, others = ([row for row in placed if (row[at] is None) is null] for null in (True, False))
        others.sort(key=lambda row: row[at], reverse=number in falling)
        placed = [*nulls, *others]
    return placed


def _picked(row: Row, names: Iterable[str], schema: pa.Schema) -> Row:
    return tuple(row[schema.names.index(name)] for name in names)


def groups_of(spec: KeepRule, counts: Mapping[Row, int], schema: pa.Schema = SCHEMA) -> Groups:
    """The rows as a rule takes them."""
    rows = _ascending(spec, counts, schema)
    keys = [_picked(row, spec.key, schema) for row in rows]
    starts = [at for at, key in enumerate(keys) if at == 0 or key != keys[at - 1]]
    batch = pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    return Groups(batch, np.array(starts, np.int64), np.array([counts[row] for row in rows], np.int64))


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def collection(kept: Kept) -> Counter[Row]:
    """Rows whose count is not zero."""
    found: Counter[Row] = Counter()
    for row, count in zip(rows_of(kept.rows), kept.counts.tolist(), strict=True):
        found[row] += count
    return Counter({row: count for row, count in found.items() if count})
