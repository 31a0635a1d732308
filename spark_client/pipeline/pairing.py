"""Brings two legs to partitions in which equal keys meet: by the exchanges that they end with, or by new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex

import pyarrow as pa
from pyarrow import types

from spark_client.joining import KeyForm
from spark_client.placement import PlacedKeys

from .base import Steps, partition_count
from .nodes import Exchange, Leg, Pair, PlanPart

Types = tuple[pa.DataType, ...]


class JoinKey(NamedTuple):
    """A key's name on the left and on the right, and the form in which the two are compared."""

    left: str
    right: str
    form: KeyForm


def paired(
    steps: Steps,
    right: Leg,
    keys: Sequence[JoinKey],
    partitions: SupportsIndex | None,
    where: str,
) -> tuple[Pair, PlacedKeys | None, PlacedKeys | None]:
    """The parts of both legs to read side by side, and for each the check of :func:`placed_keys`.

    A leg that ends with an exchange by its keys, in the order of the other leg's, placed as the other side's are, and
    to ``partitions``, stays as it is; the others get an exchange.

    Args:
        partitions: None for those of an exchange that is there, or else ``spark.sql.shuffle.partitions``.

    Raises:
        InvalidRequest: ``partitions`` is out of range.
    """
    sides = _sides(steps.leg, right, keys)
    if partitions is None:
        partitions = next((side.exchange.partitions for side in sides if side.exchange is not None), None)
    count = partition_count(steps, partitions, where)
    (one, one_placed), (two, two_placed) = (side.part(count) for side in sides)
    return Pair(one, two), one_placed, two_placed


@dataclass(frozen=True)
class _Side:
    """A leg, its keys, and the types by whose hashes it must be placed; None for its own."""

    leg: Leg
    keys: tuple[str, ...]
    types: Types | None

    @property
    def exchange(self) -> Exchange | None:
        """The one that has placed the leg's rows so; None if none has."""
        last = self.leg.last
        if last is None or last.keys != self.keys:
            return None
        (part,) = self.leg.parts
        # A function is trusted to keep the keys, and its tasks check that: to exchange again would cost more.
        if not part.keeps(self.keys, functions_keep=True):
            return None
        placing = self.types or key_types(self.leg.schema, self.keys)
        return last if _hash_types(placed_types(last)) == _hash_types(placing) else None

    def part(self, count: int) -> tuple[PlanPart, PlacedKeys | None]:
        exchange = self.exchange
        if exchange is None or exchange.partitions != count:
            return PlanPart(Exchange(self.leg, count, self.keys, types=self.types, added=True)), None
        (part,) = self.leg.parts
        return part, placed_keys(part, self.keys)


def _sides(left: Leg, right: Leg, keys: Sequence[JoinKey]) -> tuple[_Side, _Side]:
    keys = _in_order(left, right, keys)
    names = tuple(key.left for key in keys), tuple(key.right for key in keys)
    placing = placing_types(
        key_types(left.schema, names[0]),
        key_types(right.schema, names[1]),
        [key.form.compared for key in keys],
    )
    return _Side(left, names[0], placing[0]), _Side(right, names[1], placing[1])


def _in_order(left: Leg, right: Leg, keys: Sequence[JoinKey]) -> list[JoinKey]:
    """The keys in the order in which the left's last exchange has them, or else the right's; it may be another one."""
    for leg, names in ((left, [key.left for key in keys]), (right, [key.right for key in keys])):
        last = leg.last
        if last is not None and len({*names}) == len(keys) and sorted(last.keys) == sorted(names):
            return [keys[names.index(name)] for name in last.keys]
    return list(keys)


def key_types(schema: pa.Schema, keys: Sequence[str]) -> Types:
    """The types of these columns."""
    return tuple(schema.field(key).type for key in keys)


def placed_types(exchange: Exchange) -> Types:
    """The types by whose hashes an exchange places its keys."""
    return exchange.types or key_types(exchange.leg.declared.schema, exchange.keys)


def placed_keys(part: PlanPart, keys: Sequence[str]) -> PlacedKeys | None:
    """The check that the rows of a part are where its exchange would place them by ``keys``, the names that its keys
    have now; None if no stage after it can have changed them.
    """
    exchange = part.origin
    assert isinstance(exchange, Exchange)
    if all(part.source(key) == placed for key, placed in zip(keys, exchange.keys, strict=True)):
        return None
    fields = list(zip(exchange.keys, placed_types(exchange), strict=True))
    return PlacedKeys(str(exchange), pa.schema(fields), exchange.partitions)


def placing_types(
    left: Types, right: Types, common: Sequence[pa.DataType]
) -> tuple[Types | None, Types | None]:
    """The types by whose hashes each side must be placed so that equal keys meet. None if those of its own columns
    will do.
    """
    if _hash_types(left) == _hash_types(right):
        return None, None
    one, two = (
        tuple(
            own if _hash_types([own]) == _hash_types([shared]) else shared
            for own, shared in zip(side, common, strict=True)
        )
        for side in (left, right)
    )
    return one if one != left else None, two if two != right else None


def _hash_types(kinds: Sequence[pa.DataType]) -> list[pa.DataType]:
    return [_hashed_as(kind) for kind in kinds]


def _hashed_as(kind: pa.DataType) -> pa.DataType:
    """The same type for all types whose equal values have the same hash in Spark (``placement.hashing``)."""
    if types.is_int8(kind) or types.is_int16(kind):
        return pa.int32()
    if types.is_timestamp(kind):
        return pa.timestamp("us")
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_decimal(kind):
        return pa.decimal128(18 if kind.precision <= 18 else 38, kind.scale)
    return kind
