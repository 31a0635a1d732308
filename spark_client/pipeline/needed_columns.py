"""Leaves out the columns that no later step uses: before exchanges, in scans and in what Spark reads.

Guarantee: the last leg has the columns that it had, and all rows have the same values. A function of a user's gets all
columns, because only it knows which it uses. A persisted exchange keeps all of its columns: later pipelines may use
them. Where no column is used, as for a count, one is read, the one that takes least.

An expression of ``select`` that no later step uses is not evaluated, nor is an aggregate. So what would have failed
there does not fail, as in Spark; nothing else may fail than before.

How
    From the last leg back, each stage says which columns of its input it needs for those of its result that are
    needed. Of an exchange that several legs read, any of them may need a column. Then plans are made again from the
    first legs on. What needs no change stays the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_client.arrow import Declared, needed
from spark_client.joining import JoinPlan
from spark_client.reducing import Reduction
from spark_client.steps import (
    AlignStage,
    AsofStage,
    CountStage,
    FilterStage,
    FinalStage,
    JoinStage,
    KeepStage,
    LimitStage,
    MergeStage,
    PartialStage,
    SelectStage,
    SortStage,
    Stage,
    TableJoinStage,
    TopStage,
)

from .held_joins import row_bytes
from .nodes import Exchange, Input, Leg, Origin, Pair, PlanPart

Names = Collection[str]
_GATHERING = (SortStage, TopStage, AlignStage)
"""The stages before which columns are left out, because they hold rows, or go by the places of columns."""


def with_needed_columns(leg: Leg, legs: dict[Exchange, Leg], is_persisted: Callable[[Exchange], bool]) -> Leg:
    """The leg over exchanges and inputs of fewer columns.

    Args:
        legs: what each exchange before it is to send, with the columns of its own leg; readers first. Others are there.
        is_persisted: whether an exchange keeps its columns.
    """
    needs = _Needs(is_persisted)
    needs.add_leg(leg, leg.schema.names)
    for exchange, sent in legs.items():
        needs.add_leg(sent, needs.of(exchange))
    plans = _Plans(needs)
    for exchange in reversed(legs):
        plans.made[exchange] = plans.exchange(exchange, legs[exchange])
    return plans.leg(leg, leg.schema.names)


class _Needs:
    """The columns of exchanges that their readers need."""

    def __init__(self, is_persisted: Callable[[Exchange], bool]) -> None:
        self._is_persisted = is_persisted
        self._of_readers: dict[Exchange, set[str]] = {}

    def of(self, exchange: Exchange) -> list[str]:
        """Those that it sends, in their order, if all of its readers were added."""
        schema = exchange.leg.schema
        if self._is_persisted(exchange):
            return list(schema.names)
        names = {*self._of_readers.get(exchange, ()), *exchange.keys}
        if exchange.ranges is not None:
            names |= {key.column for key in exchange.ranges.keys}
        return _some(names, schema)

    def add_leg(self, leg: Leg, names: Names) -> None:
        """A leg of which these columns are needed."""
        for part in leg.parts:
            for side, columns in before(part, names)[0]:
                if isinstance(side, Exchange):
                    self._of_readers.setdefault(side, set()).update(columns)


def before(part: PlanPart, names: Names) -> tuple[list[tuple[Exchange | Input, Names]], list[Names]]:
    """The columns that are needed of each thing that a part reads, and of the result of each of its stages, so that
    ``names`` are there at the end.
    """
    origin, stages = part.origin, part.stages
    inputs = inputs_of(part)
    after: list[Names] = []
    for stage, schema in zip(reversed(stages), reversed(inputs), strict=True):
        after.insert(0, names)
        if schema is not None:
            names = _before_stage(stage, names, schema)
    if isinstance(origin, Pair):
        left, right = _before_pair(stages[0], after[0], origin)
        return [*before(origin.left, left)[0], *before(origin.right, right)[0]], after
    return [(origin, names)], after


def inputs_of(part: PlanPart) -> list[pa.Schema | None]:
    """The schema of each stage's input; None of a stage of two inputs, and where an input does not tell it."""
    origin = part.origin
    first = None if isinstance(origin, Pair) else schema_of(origin)
    return [first, *(stage.declared.schema for stage in part.stages)][: len(part.stages)]


def schema_of(origin: Exchange | Input) -> pa.Schema | None:
    """Of the rows that a part reads; None if nothing tells."""
    return origin.leg.schema if isinstance(origin, Exchange) else origin.schema


def rows_of(side: PlanPart) -> pa.Schema:
    """The schema of the rows of a side of a pair."""
    return side.stages[-1].declared.schema if side.stages else side.exchange.leg.schema


def _some(names: Names, schema: pa.Schema) -> list[str]:
    """These names in the schema's order; where there are none, that of the column that takes least."""
    return [name for name in schema.names if name in names] or [
        min(schema.names, key=lambda name: row_bytes(pa.schema([schema.field(name)])))
    ]


def _before_stage(stage: Stage, names: Names, schema: pa.Schema) -> Names:
    """The columns of the stage's input, which has this schema, that it needs for these columns of its result."""
    match stage:
        case FilterStage():
            return {*names, *needed(stage.expression, schema)}
        case SelectStage():
            made = zip(stage.declared.schema.names, stage.expressions, strict=True)
            shown = set(_some(names, stage.declared.schema))
            return {each for name, value in made if name in shown for each in needed(value, schema)}
        case SortStage() | TopStage():
            return {*names, *(key.column for key in stage.keys)}
        case LimitStage() | KeepStage():
            return names
        case AlignStage():
            pairs = zip(stage.declared.schema.names, schema.names, strict=True)
            shown = set(_some(names, stage.declared.schema))
            return {own for name, own in pairs if name in shown}
        case CountStage():
            return ()
        case PartialStage():
            reduction = stage.reduction.with_columns(names)
            read = {state.column for state in reduction.states if state.column is not None}
            return {*reduction.keys, *reduction.carried, *read}
        case MergeStage():
            return {*stage.reduction.keys, *names}
        case FinalStage():
            reduction, shown = stage.reduction, set(_some(names, stage.declared.schema))
            states = reduction.schema.names[len(reduction.keys) + len(reduction.carried) :]
            read = {
                states[place] for result in stage.results if result.name in shown for place in result.states
            }
            return {*reduction.keys, *(name for name in reduction.carried if name in shown), *read}
        case TableJoinStage():
            return _of_sides(stage.plan, names, stage.declared.schema)[0]
    return set(schema.names)


def _before_pair(stage: Stage, names: Names, pair: Pair) -> tuple[Names, Names]:
    """As :func:`_before_stage`, of the columns of both sides."""
    left, right = rows_of(pair.left), rows_of(pair.right)
    if not isinstance(stage, JoinStage | AsofStage):
        return set(left.names), set(right.names)
    lefts, rights = _of_sides(stage.plan, names, stage.declared.schema)
    if isinstance(stage, AsofStage):
        lefts.add(stage.as_of.left)
        rights.add(stage.as_of.right)
    for names_of_side, placed in ((lefts, stage.left_placed), (rights, stage.right_placed)):
        names_of_side.update(() if placed is None else placed.keys.names)
    return lefts, rights


def _of_sides(plan: JoinPlan, names: Names, schema: pa.Schema) -> tuple[set[str], set[str]]:
    """The columns of both sides from which a join makes these columns of its result."""
    lefts, rights = {*plan.left.names}, {*plan.right.names}
    shown = set(_some(names, schema))
    for name, column in zip(schema.names, plan.columns, strict=True):
        if name in shown:
            lefts |= {column.left} if column.left is not None else set()
            rights |= {column.right} if column.right is not None else set()
    return lefts, rights


class _Plans:
    """Makes the parts of a plan again; ``made`` has the exchanges by what they were before."""

    def __init__(self, needs: _Needs) -> None:
        self._needs = needs
        self.made: dict[Exchange, Exchange] = {}

    def exchange(self, exchange: Exchange, sent: Leg) -> Exchange:
        """One that sends the columns that its readers need; those that it needs itself are made."""
        leg = self.leg(sent, self._needs.of(exchange))
        if leg is exchange.leg:
            return exchange
        return replace(exchange, leg=leg, original=exchange.node)

    def leg(self, leg: Leg, names: Sequence[str]) -> Leg:
        """With these columns."""
        parts = tuple(self._part(part, names) for part in leg.parts)
        if all(new is old for new, old in zip(parts, leg.parts, strict=True)):
            return leg
        if len(names) == len(leg.schema.names):
            return replace(leg, parts=parts)
        struct = StructType([leg.fields[name] for name in names])
        return Leg(parts, struct, _only(leg.declared, names))

    def _part(self, part: PlanPart, names: Sequence[str]) -> PlanPart:
        origin, (reads, after) = part.origin, before(part, names)
        steps = list(zip(part.stages, inputs_of(part), after, strict=True))
        made: list[Stage] = []
        read: Origin
        if isinstance(origin, Pair):
            first, _, shown = steps.pop(0)
            lefts, rights = _before_pair(first, shown, origin)
            left, right = self._side(origin.left, lefts), self._side(origin.right, rights)
            read = origin if (left, right) == (origin.left, origin.right) else Pair(left, right)
            made.append(_of_pair(first, shown, rows_of(left), rows_of(right)))
            schema = made[0].declared.schema
        else:
            ((_, columns),) = reads
            read, schema = self._origin(origin, columns)
        for stage, planned, shown in steps:
            if planned is None or schema is None:
                made.append(stage)
            else:
                if isinstance(stage, _GATHERING):
                    schema = _leave_out(made, schema, _before_stage(stage, shown, planned))
                made.append(_narrowed(stage, schema, shown, planned))
            schema = made[-1].declared.schema
        if schema is not None:
            _leave_out(made, schema, names)
        same = read is origin and len(made) == len(part.stages)
        if same and all(new is old for new, old in zip(made, part.stages, strict=True)):
            return part
        return PlanPart(read, tuple(made))

    def _side(self, side: PlanPart, names: Names) -> PlanPart:
        schema = rows_of(side)
        return self._part(side, [name for name in schema.names if name in names])

    def _origin(self, origin: Exchange | Input, names: Names) -> tuple[Exchange | Input, pa.Schema | None]:
        """What is read, and its schema."""
        if isinstance(origin, Exchange):
            made = self.made.get(origin, origin)
            return made, made.leg.schema
        schema = origin.schema
        if schema is None or origin.with_columns is None:
            return origin, schema
        columns = _some(names, schema)
        if len(columns) == len(schema.names):
            return origin, schema
        fewer = origin.with_columns(columns)
        return fewer, fewer.schema


def _leave_out(made: list[Stage], schema: pa.Schema, names: Names) -> pa.Schema:
    """Add a stage that leaves the other columns out, if there are any; the schema after it."""
    kept = _some(names, schema)
    if len(kept) == len(schema.names):
        return schema
    left_out = [name for name in schema.names if name not in {*kept}]
    declared = Declared(f"without {', '.join(map(repr, left_out))}", _subset(schema, kept))
    made.append(KeepStage(declared))
    return declared.schema


def _narrowed(stage: Stage, schema: pa.Schema, names: Names, planned: pa.Schema) -> Stage:
    """The stage over an input of this schema, whose result has these columns at least; the stage itself if that
    changes nothing. ``planned`` is the schema that its input has in the plan.
    """
    declared, is_whole = stage.declared, len(schema.names) == len(planned.names)
    if isinstance(stage, _SAME_COLUMNS):
        return stage if is_whole else replace(stage, declared=_only(declared, schema.names))
    shown = _some(names, declared.schema)
    if is_whole and len(shown) == len(declared.schema.names):
        return stage
    match stage:
        case SelectStage():
            made = dict(zip(declared.schema.names, stage.expressions, strict=True))
            expressions = tuple(made[name] for name in shown)
            return replace(stage, expressions=expressions, declared=_only(declared, shown))
        case AlignStage() | KeepStage():
            return replace(stage, declared=_only(declared, shown))
        case PartialStage() | MergeStage():
            reduction = stage.reduction.with_columns(
                names if isinstance(stage, PartialStage) else schema.names
            )
            return replace(stage, reduction=reduction, declared=replace(declared, schema=reduction.schema))
        case FinalStage():
            return _narrowed_final(stage, schema, shown)
        case TableJoinStage():
            plan = stage.plan.with_columns(shown, schema, stage.plan.right_schema)
            return replace(stage, plan=plan, declared=_only(declared, shown))
    return stage


_SAME_COLUMNS = (FilterStage, SortStage, LimitStage, TopStage)


def _narrowed_final(stage: FinalStage, schema: pa.Schema, names: Names) -> FinalStage:
    reduction: Reduction = stage.reduction.with_columns(schema.names)
    first = len(stage.reduction.keys) + len(stage.reduction.carried)
    before_names = stage.reduction.schema.names[first:]
    places = {
        name: place
        for place, name in enumerate(reduction.schema.names[len(reduction.keys) + len(reduction.carried) :])
    }
    results = tuple(
        replace(result, states=tuple(places[before_names[state]] for state in result.states))
        for result in stage.results
        if result.name in names
    )
    shown = {*reduction.keys, *reduction.carried, *(result.name for result in results)}
    kept = [name for name in stage.declared.schema.names if name in shown]
    return replace(stage, reduction=reduction, results=results, declared=_only(stage.declared, kept))


def _of_pair(stage: Stage, names: Names, left: pa.Schema, right: pa.Schema) -> Stage:
    """The stage over two inputs of these schemas, whose result has these columns."""
    if not isinstance(stage, JoinStage | AsofStage):
        return stage
    plan, shown = stage.plan, _some(names, stage.declared.schema)
    same = plan.left_schema.names == left.names and plan.right_schema.names == right.names
    if same and len(shown) == len(stage.declared.schema.names):
        return stage
    return replace(stage, plan=plan.with_columns(shown, left, right), declared=_only(stage.declared, shown))


def _subset(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def _only(declared: Declared, names: Iterable[str]) -> Declared:
    return replace(declared, schema=_subset(declared.schema, names))
