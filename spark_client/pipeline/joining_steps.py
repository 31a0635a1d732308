"""Steps that bring the rows of two pipelines together: their arguments, and the columns of a join's result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, SupportsIndex, get_args

import numpy as np
import pyarrow as pa
from pyarrow import types
from pyspark.sql.types import StructField, StructType

from flight_server.protocol import InvalidRequest, did_you_mean
from spark_client.arrow import Declared
from spark_client.broadcast import Broadcast
from spark_client.jobs import arrow_schema, char_type, check_key, find_columns
from spark_client.joining import AsOf, Column, Direction, How, JoinPlan, KeyForm, MatchKeys
from spark_client.scan import struct_of
from spark_client.steps import AsofStage, JoinStage, Stage, TableJoinStage

from .base import (
    AnySteps,
    Steps,
    case_sensitive,
    find_keys,
    one_reading,
    second_side,
    stage_name,
    with_stage,
)
from .nodes import Leg, PlanPart
from .pairing import JoinKey, paired
from .wider_types import wider

On = str | Iterable[str] | Iterable[tuple[str, str]] | Mapping[str, str]
JoinType = Literal[
    "inner",
    "left",
    "leftouter",
    "left_outer",
    "right",
    "rightouter",
    "right_outer",
    "full",
    "outer",
    "fullouter",
    "full_outer",
    "semi",
    "leftsemi",
    "left_semi",
    "anti",
    "leftanti",
    "left_anti",
    "asof",
]
"""The joins, by all of Spark's names for them, and the as-of join."""

_HOWS: dict[str, How] = {
    "inner": "inner",
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "full": "full",
    "outer": "full",
    "fullouter": "full",
    "semi": "semi",
    "leftsemi": "semi",
    "anti": "anti",
    "leftanti": "anti",
}


@one_reading
def join(
    steps: AnySteps,
    other: Steps | Broadcast,
    on: On | None = None,
    how: JoinType | None = "inner",
    *,
    numPartitions: SupportsIndex | None = None,
    suffix: str | None = None,
    as_of: str | tuple[str, str] | None = None,
    direction: Direction = "backward",
    tolerance: Any = None,
    allow_exact_matches: bool = True,
) -> AnySteps:
    """The rows of both pipelines whose keys are equal, as in Spark's ``df.join(other, on, how)``.

    A side that ends with an exchange by exactly these keys is joined where its rows are; otherwise ``join``
    exchanges it by them, unless the other side turns out small (``pipeline.held_joins``). With a broadcast on the
    right nothing is exchanged: each task joins its rows with the whole table, whose index takes about 40 bytes for
    each row, and the keys that are not numbers, in each worker.

    Columns are the keys, once, then the left's others, then the right's others. With ``how="right"`` keys are
    the right's, with ``"full"`` the left's or else the right's. ``"semi"`` and ``"anti"`` have the left's columns
    only.

    ``how="asof"`` gives each left row once, with the right row of its keys whose time is the last that is not after
    its own, or nulls, as ``pandas.merge_asof(by=on)`` does; of right rows of one time, the last one, by the order
    of the right's exchange, or, over several servers, any of them. The columns are the left join's; a time of one
    name on both sides is the left's. A null or NaN as a time matches nothing.

    Args:
        other: the right side: a pipeline, or a broadcast for inner, left, semi and anti.
        on: a column of both, several, or pairs of a left and a right column, also as a mapping. Both columns
            of a pair with different names stay, each on its side.
        how: inner, left, right, full, semi or anti, also by Spark's other names, such as ``left_outer``; or asof.
        numPartitions: of the exchanges that ``join`` adds; None for those of a side that is already exchanged, or
            else ``spark.sql.shuffle.partitions``.
        suffix: for the names of the right's columns that the left has, too.
        as_of: for ``"asof"`` the column of the times, or a pair of a left and a right one: times or numbers.
        direction: ``"backward"``; ``"forward"``: the first time that is not before; ``"nearest"``: of these two
            the nearer one, or the one before.
        tolerance: the largest distance of two times, a timedelta or a number; None: any.
        allow_exact_matches: whether equal times match.

    Raises:
        InvalidRequest: an argument is none of these, a key's column is not there, has a collation, or types that
            are not compared, or a name would be in the result twice.
    """
    if on is None:
        raise InvalidRequest(
            'join: on= names the keys, as in join(other, "id"); .toDF().crossJoin pairs all rows, over Spark\'s shuffle'
        )
    where = f"join({_text(on)})"
    how = "inner" if how is None else how
    if not isinstance(suffix, str | None):
        raise InvalidRequest(f"{where}: suffix is text, not {suffix!r}")
    named = str(how).lower().replace("_", "")
    timed = named == "asof"
    kind = _HOWS.get("left" if timed else named)
    if not timed and (as_of, direction, tolerance, allow_exact_matches) != (None, "backward", None, True):
        raise InvalidRequest(
            f"{where}: as_of, direction, tolerance and allow_exact_matches are for how='asof', not {how!r}"
        )
    if kind is None:
        near = did_you_mean(how, get_args(JoinType))
        raise InvalidRequest(f"{where}: how is asof or one of {', '.join(sorted(_HOWS))}, not {how!r}{near}")
    table = other if isinstance(other, Broadcast) and not timed else None
    if table is not None:
        _check_broadcast(steps, table, kind, numPartitions, where)
        right, place = _leg_of_table(steps, table, where), f"in broadcast {table.name!r}"
    else:
        other = second_side(steps, other, where, "a Pipeline, or a Broadcast unless how='asof'")
        right, place = other.leg, f"after {other.leg.declared.stage}"
    keys = _join_keys(steps, right, place, on, where)
    times = _join_keys(steps, right, place, [time_columns(as_of, where)], where) if timed else []
    if any(time.left == key.left or time.right == key.right for time in times for key in keys):
        raise InvalidRequest(
            f"{where}: as_of={as_of!r} is a key, and equal keys have equal times; leave it out of on"
        )
    nearest = [
        as_of_times(time, direction, tolerance, exact=allow_exact_matches, where=where) for time in times
    ]
    case = case_sensitive(steps)
    columns, fields = joined_columns(
        steps.leg.struct,
        right.struct,
        [(key.left, key.right) for key in keys + times],
        kind,
        where,
        suffix=suffix,
        folded=lambda name: name if case else name.casefold(),
    )
    struct = StructType(fields)
    name = stage_name(steps, f"{'asof' if timed else kind} {where}", right)
    declared = Declared(name, arrow_schema(steps.spark, struct, name))
    forms = tuple(key.form for key in keys)
    plan = JoinPlan(
        kind,
        MatchKeys(tuple(key.left for key in keys), forms),
        MatchKeys(tuple(key.right for key in keys), forms),
        columns,
        steps.leg.schema,
        right.schema,
        declared.schema,
    )
    if table is not None:
        return with_stage(steps, TableJoinStage(declared, plan, table.for_join(), right.declared), struct)
    pair, *placed = paired(steps, right, keys, numPartitions, where)
    stage: Stage = JoinStage(declared, plan, *placed)
    if nearest:
        stage = AsofStage(declared, plan, nearest[0], *placed)
    return replace(steps, leg=Leg((PlanPart(pair, (stage,)),), struct, declared))


def _leg_of_table(steps: Steps, table: Broadcast, where: str) -> Leg:
    """The rows of a broadcast, as a leg that reads nothing."""
    struct = table.struct
    if struct is None:
        struct = struct_of(table.schema, where, "leave it out of the broadcast, or cast it")
        for field, stored in zip(struct, table.schema, strict=True):
            field.nullable = stored.nullable
    declared = Declared(f"broadcast {table.name!r}", arrow_schema(steps.spark, struct, where))
    return Leg((), struct, declared)


def _join_keys(steps: Steps, right: Leg, place: str, on: On, where: str) -> list[JoinKey]:
    """The keys; ``place`` says where the right's columns are."""
    pairs = _pairs(on, where)
    lefts = find_keys(steps, tuple(one for one, _ in pairs), f"{where}, left side")
    rights = find_columns(
        [two for _, two in pairs],
        f"{where}, right side",
        right.schema.names,
        place,
        exact=case_sensitive(steps),
    )
    keys = []
    # A pair that is named twice is one key.
    for one, two in dict.fromkeys(zip(lefts, rights, strict=True)):
        sides = steps.leg.fields[one], right.fields[two]
        for side in sides:
            check_key(side, where)
        lengths = char_type(sides[0]), char_type(sides[1])
        if None not in lengths and lengths[0] != lengths[1]:
            raise InvalidRequest(
                f"{where}: key {one!r} is {lengths[0]} and {two!r} is {lengths[1]}, which Spark pads to one length "
                "before it compares them; cast both to string and rpad them before, in Spark",
                column=one,
            )
        text = f"{where}: key {one!r}" if one == two else f"{where}: keys {one!r} and {two!r}"
        form = KeyForm.of(steps.leg.schema.field(one).type, right.schema.field(two).type, text)
        keys.append(JoinKey(one, two, form))
    return keys


def _check_broadcast(
    steps: Steps, table: Broadcast, how: How, partitions: SupportsIndex | None, where: str
) -> None:
    if table.owner not in (None, steps.shuffles):
        raise InvalidRequest(
            f"{where}: broadcast {table.name!r} must be of the pipeline's ShuffleClient, at whose close it ends"
        )
    if how in ("right", "full"):
        raise InvalidRequest(
            f"{where}: how={how!r} with a broadcast would give its rows without a match once for each task; give "
            "the right side as a pipeline"
        )
    if partitions is not None:
        raise InvalidRequest(f"{where}: a join with a broadcast exchanges nothing; leave out numPartitions=")


def _text(on: Any) -> str:
    if isinstance(on, Mapping):
        on = list(on.items())
    return repr(on) if isinstance(on, str) else ", ".join(map(repr, on)) if isinstance(on, list) else "on"


def _pairs(on: Any, where: str) -> list[tuple[str, str]]:
    """The names of each key on the left and on the right."""
    if isinstance(on, str):
        on = [on]
    elif isinstance(on, Mapping):
        on = list(on.items())
    pairs = (
        [each if isinstance(each, tuple) else (each, each) for each in on] if isinstance(on, Iterable) else []
    )
    if not pairs or not all(len(pair) == 2 and all(isinstance(name, str) for name in pair) for pair in pairs):
        raise InvalidRequest(
            f"{where}: on is a column's name, several, or pairs of a left and a right name, as in "
            f"{{'id': 'user_id'}}, not {on!r}; make an expression a column before"
        )
    return pairs


def joined_columns(
    left: StructType,
    right: StructType,
    keys: Sequence[tuple[str, str]],
    how: How,
    where: str,
    *,
    suffix: str | None,
    folded: Callable[[str], str],
) -> tuple[tuple[Column, ...], list[StructField]]:
    """The result's columns, and their fields in Spark.

    Args:
        keys: the sides' names of each key, as the schemas have them.
        folded: a key of a name, the same for names that are the same.

    Raises:
        InvalidRequest: a name would be there twice.
    """
    shared = [(one, two) for one, two in keys if folded(one) == folded(two)]
    lefts, rights = dict(shared), {two for _, two in shared}
    ours, theirs = ({field.name: field for field in side} for side in (left, right))
    columns, fields = list[Column](), list[StructField]()
    for one, two in shared:
        column, field = _key(ours[one], theirs[two], how)
        columns.append(column)
        fields.append(field)
    for field in left:
        if field.name not in lefts:
            columns.append(Column(field.name, None))
            fields.append(_nullable(field, field.name, always=how in ("right", "full")))
    if how in ("semi", "anti"):
        return tuple(columns), fields
    used = {folded(field.name) for field in fields}
    for field in right:
        if field.name in rights:
            continue
        name = field.name
        if folded(name) in used and suffix is not None:
            name += suffix
        if folded(name) in used:
            raise InvalidRequest(
                f"{where}: both sides have a column {name!r}; rename one before, or give suffix= for those of the "
                "right side",
                column=name,
            )
        used.add(folded(name))
        columns.append(Column(None, field.name))
        fields.append(_nullable(field, name, always=how in ("left", "full")))
    return tuple(columns), fields


def _key(left: StructField, right: StructField, how: How) -> tuple[Column, StructField]:
    """A key of one name, which the result has once."""
    if how == "right":
        return Column(None, right.name), right
    if how != "full":
        return Column(left.name, None), left
    # Of types that are compared, those without a wider one hold the same values.
    kind = wider(left.dataType, right.dataType) or left.dataType
    return Column(left.name, right.name), StructField(left.name, kind, nullable=True)


def _nullable(field: StructField, name: str, *, always: bool) -> StructField:
    return StructField(name, field.dataType, nullable=field.nullable or always, metadata=field.metadata)


_DIRECTIONS: dict[str, Direction] = {"backward": "backward", "forward": "forward", "nearest": "nearest"}
_MOST = (1 << 64) - 1
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DECIMAL_DIGITS = 18


def time_columns(as_of: Any, where: str) -> tuple[str, str]:
    """The names of the left's and the right's times. Raises InvalidRequest."""
    if isinstance(as_of, str):
        return as_of, as_of
    if isinstance(as_of, tuple | list) and len(as_of) == 2 and all(isinstance(name, str) for name in as_of):
        return as_of[0], as_of[1]
    raise InvalidRequest(
        f"{where}: how='asof' needs as_of=, the column of the times, or a pair of a left and a right one, as in "
        f"as_of=('ordered', 'quoted'), not {as_of!r}"
    )


def as_of_times(key: JoinKey, direction: str, tolerance: Any, *, exact: bool, where: str) -> AsOf:
    """The times that an as-of join compares. Raises InvalidRequest: the columns are neither times nor numbers, no such
    direction, or a tolerance that is negative or no distance of such times.
    """
    chosen = _DIRECTIONS.get(direction)
    if chosen is None:
        raise InvalidRequest(f"{where}: direction is one of {', '.join(_DIRECTIONS)}, not {direction!r}")
    kind = key.form.compared
    if types.is_decimal(kind) and kind.precision > _DECIMAL_DIGITS:
        raise InvalidRequest(
            f"{where}: {key.left!r} and {key.right!r} are compared as {kind}; cast them to a decimal of at most "
            f"{_DECIMAL_DIGITS} digits, or to double",
            column=key.left,
        )
    if types.is_string(kind) or types.is_binary(kind) or types.is_boolean(kind):
        raise InvalidRequest(
            f"{where}: as_of={key.left!r} is {kind}, and has no distances; take a column of times or numbers",
            column=key.left,
        )
    distance = None if tolerance is None else _distance(tolerance, kind, where)
    return AsOf(key.left, key.right, kind, chosen, distance, bool(exact))


def _distance(tolerance: Any, kind: pa.DataType, where: str) -> int | float:
    """The tolerance in the units of the type; a part of a unit makes no difference between whole ones."""
    units: int | float
    if types.is_temporal(kind):
        if not isinstance(tolerance, timedelta):
            raise InvalidRequest(
                f"{where}: the times are {kind}, and tolerance is a datetime.timedelta, not {tolerance!r}"
            )
        per_second = Fraction(1, 86400) if types.is_date32(kind) else Fraction(_PER_SECOND[kind.unit])
        units = math.floor(tolerance // timedelta(microseconds=1) * per_second / 10**6)
        negative = tolerance < timedelta()
    else:
        tolerance = tolerance.item() if isinstance(tolerance, np.generic) else tolerance
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float | Decimal):
            raise InvalidRequest(
                f"{where}: the times are {kind}, and tolerance is a number, not {tolerance!r}"
            )
        negative = math.isnan(tolerance) or tolerance < 0
        if negative or types.is_floating(kind) or math.isinf(tolerance):
            units = float(tolerance)
        else:
            scale = kind.scale if types.is_decimal(kind) else 0
            units = math.floor(Fraction(tolerance) * 10**scale)
    if negative:
        raise InvalidRequest(f"{where}: tolerance is a distance, 0 or more, not {tolerance!r}")
    return units if types.is_floating(kind) else int(min(units, _MOST))
