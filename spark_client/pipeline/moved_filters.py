"""Moves filters to where fewer rows go through the steps after them: before exchanges, joins and aggregates, and into
scans, which leave out row groups by their statistics and rows before they decode other columns.

Guarantee: the result has the rows that it had. A filter moves before a step only if

* each row of the step's result that the filter keeps is made of rows that the filter keeps, too, and of no other: its
  columns are columns of one input of the step, maybe under another name. So it does not pass a limit, nor a step that
  computes its columns, nor a join to the side of which rows without a match have nulls, nor a function of the user's;
* the step is not also needed without it: an exchange that several legs read, or that is persisted, gets all rows;
* its result depends on the row alone: a filter by random numbers stays.

Errors
    Before a join or another filter it sees rows that it would not have seen. So only conditions that cannot fail
    (``arrow.cannot_fail``) pass those; the others pass steps that change no row. Steps behind a moved filter see fewer
    rows: what would have failed for the others does not fail. Nothing else may fail than before.

Conditions that are joined by "and" move one by one, where the whole cannot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa

from spark_client.arrow import Declared, cannot_fail, conjuncts, is_repeatable, needed, renamed
from spark_client.steps import (
    AlignStage,
    AsofStage,
    FilterStage,
    FinalStage,
    JoinStage,
    MergeStage,
    PartialStage,
    SortStage,
    Stage,
    TableJoinStage,
)

from .needed_columns import inputs_of, rows_of
from .nodes import Exchange, Input, Leg, Origin, PlanPart, exchanges, reachable, source_of

_OF_GROUPS = (PartialStage, MergeStage, FinalStage)
_COSTLY = (TableJoinStage, SortStage, *_OF_GROUPS)
"""The stages before which a filter saves work, also if it does not come farther."""
_SIDES = {"inner": ("left", "right"), "left": ("left",), "right": ("right",), "full": ()}
"""The sides of a join before which its rows may be filtered; of another join the left one."""
_MOVED = ", moved ahead"


def with_moved_filters(
    leg: Leg, is_persisted: Callable[[Exchange], bool], is_there: Callable[[Exchange], bool]
) -> tuple[Leg, dict[Exchange, Leg]]:
    """The leg, and that of each exchange before it, readers first, with filters as early as they may be.

    Args:
        is_persisted: whether an exchange keeps all of its rows.
        is_there: whether an exchange need not be written, and so nothing before it be looked at.
    """
    order = [each for each in reachable([leg], is_there) if not is_there(each)]
    readers = Counter(
        node for each in [leg, *(exchange.leg for exchange in order)] for node in exchanges(each)
    )
    moves = _Moves({each for each in order if readers[each] == 1 and not is_persisted(each)})
    return moves.leg(leg), {each: moves.leg(each.leg, each) for each in order}


class _Moves:
    """Moves the filters of one leg after the other, each leg after those that read it; ``alone`` are the exchanges that
    need only send what their one reader keeps.
    """

    def __init__(self, alone: Collection[Exchange]) -> None:
        self._alone = alone
        self._sent: dict[Exchange, list[Stage]] = {}
        """The filters that have moved before an exchange."""

    def leg(self, leg: Leg, sender: Exchange | None = None) -> Leg:
        """The leg, which ``sender`` sends."""
        added = () if sender is None else self._sent.get(sender, ())
        parts = tuple(self.part(part, added) for part in leg.parts)
        return leg if parts == leg.parts else replace(leg, parts=parts)

    def part(self, part: PlanPart, added: Iterable[Stage] = ()) -> PlanPart:
        """The part, with stages more."""
        moved = _Part(self, part.origin)
        for stage in (*part.stages, *added):
            moved.add(stage)
        same = moved.origin is part.origin and len(moved.stages) == len(part.stages)
        if same and all(new is old for new, old in zip(moved.stages, part.stages, strict=True)):
            return part
        return PlanPart(moved.origin, tuple(moved.stages))

    def send(self, exchange: Exchange, condition: Any, name: str) -> bool:
        """Whether from now on the exchange sends only rows for which the condition is true."""
        if exchange not in self._alone:
            return False
        sent = self._sent.setdefault(exchange, [])
        _insert(sent, len(sent), condition, name, exchange.leg.schema)
        return True


def _insert(stages: list[Stage], place: int, condition: Any, name: str, schema: pa.Schema) -> None:
    """Add a filter at a place; to the one before it, if that is of the same stage of the user's."""
    name = name if name.endswith(_MOVED) else name + _MOVED
    last = stages[place - 1] if place else None
    if isinstance(last, FilterStage) and last.declared.stage == name:
        stages[place - 1] = replace(last, expression=last.expression & condition)
    else:
        stages.insert(place, FilterStage(condition, Declared(name, schema)))


class _Part:
    """The stages of a part so far, over its origin, whose filters have moved."""

    def __init__(self, moves: _Moves, origin: Origin) -> None:
        self._moves = moves
        self.origin = origin
        self.stages: list[Stage] = []

    def add(self, stage: Stage) -> None:
        """Add a stage; a filter where it belongs."""
        if not isinstance(stage, FilterStage) or not is_repeatable(stage.expression):
            self.stages.append(stage)
            return
        name = stage.declared.stage
        if self._leaves(self._way(stage.expression), name):
            return
        conditions = conjuncts(stage.expression)
        left = [each for each in conditions if not self._move(each, name)]
        if len(left) == len(conditions):
            self.stages.append(stage)
        elif left:
            self.stages.append(replace(stage, expression=reduce(and_, left)))

    def _move(self, condition: Any, name: str) -> bool:
        """Whether a condition over the rows after all stages has moved ahead."""
        way = self._way(condition)
        if self._leaves(way, name):
            return True
        if way.place == len(self.stages):
            return False
        schema = self._inputs()[way.place]
        assert schema is not None
        _insert(self.stages, way.place, way.condition, name, schema)
        return True

    def _way(self, condition: Any) -> _Way:
        inputs = self._inputs()
        place = len(self.stages)
        way = _Way(place, condition)
        while place and (schema := inputs[place - 1]) is not None:
            stage = self.stages[place - 1]
            earlier = _before(condition, stage, schema)
            if earlier is None:
                return way
            place, condition = place - 1, earlier
            if isinstance(stage, _COSTLY):
                way = _Way(place, condition)
        return replace(way, at_start=condition)

    def _inputs(self) -> list[pa.Schema | None]:
        return inputs_of(PlanPart(self.origin, tuple(self.stages)))

    def _leaves(self, way: _Way, name: str) -> bool:
        """Whether the condition has moved to what the part reads."""
        origin, condition = self.origin, way.at_start
        if condition is None:
            return False
        if isinstance(origin, Exchange):
            return self._moves.send(origin, condition, name)
        if isinstance(origin, Input):
            made = None if origin.with_filter is None else origin.with_filter(condition, name)
            self.origin = made or origin
            return made is not None
        for is_left in (True, False):
            side = origin.left if is_left else origin.right
            own = _of_side(condition, self.stages[0], is_left=is_left)
            if own is not None:
                added: list[Stage] = []
                _insert(added, 0, own, name, rows_of(side))
                side = self._moves.part(side, added)
                self.origin = replace(origin, **{"left" if is_left else "right": side})
                return True
        return False


@dataclass(frozen=True)
class _Way:
    """How far a condition may move: to the place of a stage, where it saves work, and, as ``at_start``, to where the
    part begins, or right behind the join of a pair; None if it does not get there.
    """

    place: int
    condition: Any
    at_start: Any = None


def _before(condition: Any, stage: Stage, schema: pa.Schema) -> Any:
    """The condition over the stage's input, which has this schema; None if it is not the same there."""
    declared = stage.declared.schema
    if isinstance(stage, TableJoinStage):
        return _of_side(condition, stage, is_left=True)
    names = {}
    for name in needed(condition, declared):
        own = (
            schema.names[declared.get_field_index(name)]
            if isinstance(stage, AlignStage)
            else source_of(stage, name)
        )
        if own is None or schema.field(own).type != declared.field(name).type:
            return None
        if isinstance(stage, _OF_GROUPS) and _has_zeros(schema.field(own).type):
            return None
        names[name] = own
    if isinstance(stage, FilterStage) and not cannot_fail(condition, declared):
        return None
    return renamed(condition, names) if names else None


def _has_zeros(kind: pa.DataType) -> bool:
    """Whether a group may have other values than its rows: of -0.0 and 0.0 it has one."""
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _of_side(condition: Any, stage: Stage, *, is_left: bool) -> Any:
    """The condition over one side of a join; None if it is not of its columns, or must see the matches only."""
    if not isinstance(stage, JoinStage | AsofStage | TableJoinStage):
        return None
    plan, declared = stage.plan, stage.declared.schema
    if ("left" if is_left else "right") not in _SIDES.get(plan.how, ("left",)):
        return None
    columns = dict(zip(declared.names, plan.columns, strict=True))
    names = {}
    for name in needed(condition, declared):
        column = columns[name]
        own, other = (column.left, column.right) if is_left else (column.right, column.left)
        if own is None or other is not None:
            return None
        names[name] = own
    if plan.how not in ("left", "right") and not cannot_fail(condition, declared):
        return None
    return renamed(condition, names) if names else None
