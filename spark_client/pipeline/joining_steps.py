"""Steps that bring the rows of two pipelines together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, SupportsIndex

import pyarrow as pa
from pyspark.sql.types import StructType

from flight_server.protocol import InvalidRequest
from spark_client.arrow import Declared
from spark_client.broadcast import Broadcast
from spark_client.jobs import arrow_schema, char_type, check_key
from spark_client.joining import How, JoinPlan, KeyForm, MatchKeys
from spark_client.scan import struct_of
from spark_client.steps import AsofStage, JoinStage, Stage, TableJoinStage

from .asof_steps import as_of_times, time_columns
from .base import AnySteps, Steps, case_sensitive, find_columns, find_keys, with_stage
from .cogrouping import Cogrouped
from .join_columns import joined_columns
from .nodes import Leg, Pair, PlanPart
from .pairing import JoinKey, paired

On = str | Iterable[str] | Iterable[tuple[str, str]] | Mapping[str, str]

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


class _Right(NamedTuple):
    """The right side of a join: its schemas, where its columns are, for messages, and its functions before."""

    struct: StructType
    schema: pa.Schema
    place: str
    stages: int


def join(
    steps: AnySteps,
    other: Steps | Broadcast,
    on: On,
    how: str,
    *,
    partitions: SupportsIndex | None,
    suffix: str | None,
    null_safe: bool,
    as_of: str | tuple[str, str] | None,
    direction: str,
    tolerance: Any,
    allow_exact_matches: bool,
) -> AnySteps:
    """See :meth:`.Pipeline.join`."""
    where = f"join({_text(on)})"
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
        raise InvalidRequest(f"{where}: how is asof or one of {', '.join(sorted(_HOWS))}, not {how!r}")
    if isinstance(other, Steps):
        right = _Right(
            other.leg.struct, other.leg.schema, f"after {other.leg.declared.stage}", other.leg.stage_count
        )
    elif not timed and isinstance(other, Broadcast):
        _check_broadcast(kind, partitions, where)
        right = _table(steps, other, where)
    else:
        raise InvalidRequest(
            f"{where}: the other side is a Pipeline, or a Broadcast unless how='asof', not "
            f"{type(other).__name__}; shuffle.pipeline(df) makes one"
        )
    keys = _join_keys(steps, right, on, where)
    times = _join_keys(steps, right, [time_columns(as_of, where)], where) if timed else []
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
    name = f"stage {1 + max(steps.leg.stage_count, right.stages)} ({'asof' if timed else kind} {where})"
    declared = Declared(name, arrow_schema(steps.spark, struct, name))
    forms = tuple(key.form for key in keys)
    plan = JoinPlan(
        kind,
        MatchKeys(tuple(key.left for key in keys), forms, null_safe),
        MatchKeys(tuple(key.right for key in keys), forms, null_safe),
        columns,
        steps.leg.schema,
        right.schema,
        declared.schema,
    )
    if isinstance(other, Broadcast):
        table = Declared(f"broadcast {other.name!r}", right.schema)
        return with_stage(steps, TableJoinStage(declared, plan, other, table), struct)
    found = paired(steps, other, keys, partitions, where)
    placed = found.left_placed, found.right_placed
    stage: Stage = JoinStage(declared, plan, *placed)
    if nearest:
        stage = AsofStage(declared, plan, nearest[0], *placed)
    return replace(steps, leg=Leg((PlanPart(Pair(found.left, found.right), (stage,)),), struct, declared))


def _table(steps: Steps, broadcast: Broadcast, where: str) -> _Right:
    place = f"in broadcast {broadcast.name!r}"
    struct = broadcast.struct
    if struct is None:
        struct = struct_of(broadcast.schema, where, "leave it out of the broadcast, or cast it")
        for field, given in zip(struct, broadcast.schema, strict=True):
            field.nullable = given.nullable
    return _Right(struct, arrow_schema(steps.spark, struct, where), place, 0)


def _join_keys(steps: Steps, right: _Right, on: On, where: str) -> list[JoinKey]:
    wanted = _pairs(on, where)
    lefts = find_keys(steps, tuple(one for one, _ in wanted), f"{where}, left side")
    rights = find_columns(
        [two for _, two in wanted],
        f"{where}, right side",
        right.schema.names,
        right.place,
        exact=case_sensitive(steps),
    )
    keys, fields = [], {field.name: field for field in right.struct}
    # A pair that is named twice is one key.
    for one, two in dict.fromkeys(zip(lefts, rights, strict=True)):
        sides = steps.leg.fields[one], fields[two]
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


def cogroup(steps: AnySteps, other: Steps) -> Cogrouped[AnySteps]:
    """See :meth:`.Pipeline.cogroup`."""
    if not isinstance(other, Steps):
        raise InvalidRequest(
            f"cogroup: the other side is a Pipeline, not {type(other).__name__}; shuffle.pipeline(df) makes one"
        )
    return Cogrouped(steps, other)


def _check_broadcast(how: How, partitions: SupportsIndex | None, where: str) -> None:
    if how in ("right", "full"):
        raise InvalidRequest(
            f"{where}: how={how!r} with a broadcast would give its rows without a match once for each task; give "
            "the right side as a pipeline"
        )
    if partitions is not None:
        raise InvalidRequest(f"{where}: a join with a broadcast exchanges nothing; leave out partitions=")


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
    found = (
        [each if isinstance(each, tuple) else (each, each) for each in on] if isinstance(on, Iterable) else []
    )
    if not found or not all(len(pair) == 2 and all(isinstance(name, str) for name in pair) for pair in found):
        raise InvalidRequest(
            f"{where}: on is a column's name, several, or pairs of a left and a right name, as in "
            f"{{'id': 'user_id'}}, not {on!r}; make an expression a column before"
        )
    return found
