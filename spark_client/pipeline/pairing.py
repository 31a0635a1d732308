"""Brings two legs to partitions in which equal keys meet: by the exchanges that they end with, or by new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex

import pyarrow as pa
from pyarrow import types

from flight_server.protocol import MAX_PARTITIONS, InvalidRequest
from spark_client.joining import KeyForm
from spark_client.placement import PlacedKeys

from .base import Steps, default_partitions, integer
from .nodes import Exchange, PlanPart

Types = tuple[pa.DataType, ...]


class JoinKey(NamedTuple):
    """A key's name on the left and on the right, and the form in which the two are compared."""

    left: str
    right: str
    form: KeyForm


@dataclass(frozen=True)
class Paired:
    """The parts to read side by side, and for each the check that stages after its exchange have left its keys as
    they were; None without stages that could change them.
    """

    left: PlanPart
    right: PlanPart
    left_placed: PlacedKeys | None
    right_placed: PlacedKeys | None


def paired(
    left: Steps,
    right: Steps,
    keys: Sequence[JoinKey],
    partitions: SupportsIndex | None,
    where: str,
) -> Paired:
    """The parts of both legs.

    A leg that ends with an exchange by its keys, in the order of the other leg's, placed as the other side's are, and
    to ``partitions``, stays as it is; the others get an exchange.

    Args:
        partitions: None for those of an exchange that is there, or else ``spark.sql.shuffle.partitions``.

    Raises:
        InvalidRequest: ``partitions`` is out of range.
    """
    sides = _sides(left, right, keys)
    there = [side.exchange.partitions for side in sides if side.exchange is not None]
    if partitions is not None:
        count = integer(partitions)
        if not 1 <= count <= MAX_PARTITIONS:
            raise InvalidRequest(f"{where}: partitions is 1 to {MAX_PARTITIONS}, not {partitions!r}")
    else:
        count = there[0] if there else default_partitions(left.spark)
    (one, one_placed), (two, two_placed) = (side.part(count) for side in sides)
    return Paired(one, two, one_placed, two_placed)


@dataclass(frozen=True)
class _Side:
    """A leg, its keys, and the types by whose hashes it must be placed; None for its own."""

    steps: Steps
    keys: tuple[str, ...]
    types: Types | None

    @property
    def exchange(self) -> Exchange | None:
        last = self.steps.leg.last
        if last is None or last.keys != self.keys:
            return None
        (part,) = self.steps.leg.parts
        # A function is trusted to keep the keys, and its tasks check that: to exchange again would cost more.
        if any(part.source(key, functions_keep=True) != key for key in self.keys):
            return None
        wanted = self.types or key_types(self.steps.leg.schema, self.keys)
        return last if _hash_types(placed_types(last)) == _hash_types(wanted) else None

    def part(self, count: int) -> tuple[PlanPart, PlacedKeys | None]:
        exchange, leg = self.exchange, self.steps.leg
        if exchange is None or exchange.partitions != count:
            return PlanPart(Exchange(leg, count, self.keys, types=self.types, added=True)), None
        (part,) = leg.parts
        return part, placed_keys(part, self.keys)


def _sides(left: Steps, right: Steps, keys: Sequence[JoinKey]) -> tuple[_Side, _Side]:
    keys = _in_order(left, right, keys)
    names = tuple(key.left for key in keys), tuple(key.right for key in keys)
    wanted = placing_types(
        key_types(left.leg.schema, names[0]),
        key_types(right.leg.schema, names[1]),
        [key.form.compared for key in keys],
    )
    return _Side(left, names[0], wanted[0]), _Side(right, names[1], wanted[1])


def _in_order(left: Steps, right: Steps, keys: Sequence[JoinKey]) -> list[JoinKey]:
    """The keys in the order in which the left's last exchange has them, or else the right's; it may be another one."""
    for steps, names in ((left, [key.left for key in keys]), (right, [key.right for key in keys])):
        last = steps.leg.last
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
    will do: Spark can then compute the hashes.
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
