"""Keep rules: the part of its history that a dataset with versions keeps, as ``create`` declares and ``statistics``
shows it.

    latest         {"rule", "key", "order_by"}                       the greatest row of each key
    top_k          {"rule", "key", "order_by", "k"}                  the k greatest
    until_closed   {"rule", "key", "closed_by", "keep"}              all rows of a key; once one has the values of
                                                                     ``closed_by``, the ones that ``keep`` keeps of
                                                                     the others: a latest or top_k without a key
    pair           {"rule", "key", "kind", "values", "order_by", "emit"}
                                                                     rows without a partner: of one key, a row whose
                                                                     column ``kind`` has the first of the two values
                                                                     and one with the second cancel. ``emit`` names a
                                                                     dataset that gets a row for each pair
    (no rule)                                                        every row

``order_by`` lists columns, the first one counts most; with ``-`` before its name the smallest value is the greatest.
A null is below every value. Rows that tie are ordered by all columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .bodies import Fields
from .dataset_names import check_dataset_name
from .errors import InvalidRequest

DIFF_COLUMN = "_diff"
"""How often a row of a put is asserted (above zero) or retracted (below); once if there is no such column."""
VERSION_COLUMN, HASH_COLUMN = "_version", "_hash"
RESERVED_COLUMNS = (DIFF_COLUMN, VERSION_COLUMN, HASH_COLUMN)
MAX_K = 1_000_000


class RuleName(StrEnum):
    """The names of the rules."""

    LATEST = "latest"
    TOP_K = "top_k"
    UNTIL_CLOSED = "until_closed"
    PAIR = "pair"


@dataclass(frozen=True)
class Order:
    """A column of ``order_by``."""

    column: str
    smallest_first: bool = False

    def to_json(self) -> str:
        return f"-{self.column}" if self.smallest_first else self.column


@dataclass(frozen=True)
class KeepRule:
    """One rule; fields without use have their defaults. ``closed_by``: columns and values of a closing row."""

    rule: RuleName
    key: tuple[str, ...]
    order_by: tuple[Order, ...] = ()
    k: int = 1
    closed_by: tuple[tuple[str, Any], ...] = ()
    kind: str | None = None
    values: tuple[Any, Any] | None = None
    emit: str | None = None

    @classmethod
    def parse(cls, value: object) -> KeepRule:
        """Raises InvalidRequest, also for fields that the rule does not have."""
        if not isinstance(value, dict):
            raise InvalidRequest(f"'keep' is an object with a 'rule', one of {', '.join(RuleName)}")
        fields = Fields(dict(value), "keep")
        name = fields.text("rule")
        if name not in set(RuleName):
            raise InvalidRequest(f"keep: 'rule' is one of {', '.join(RuleName)}, not {name!r}")
        rule = RuleName(name)
        key = _columns(fields.any("key"), "key")
        match rule:
            case RuleName.LATEST | RuleName.TOP_K:
                parsed = cls(rule, key, _order(fields.any("order_by")), _k(fields, rule))
            case RuleName.UNTIL_CLOSED:
                closed_by = _closed_by(fields.any("closed_by"))
                inner = fields.any("keep")
                if not isinstance(inner, dict):
                    raise InvalidRequest(
                        "keep: 'until_closed' needs 'keep', a rule 'latest' or 'top_k' without a key"
                    )
                winner = Fields(dict(inner), "keep: 'keep'")
                how = winner.text("rule")
                if how not in (RuleName.LATEST, RuleName.TOP_K):
                    raise InvalidRequest(f"keep: the 'keep' of a closed key is latest or top_k, not {how!r}")
                parsed = cls(
                    rule, key, _order(winner.any("order_by")), _k(winner, RuleName(how)), closed_by=closed_by
                )
                winner.end()
            case RuleName.PAIR:
                kind, values = fields.text("kind"), fields.any("values")
                emit = fields.text("emit")
                order = fields.any("order_by")
                if kind is None or not isinstance(values, list) or len(values) != 2 or values[0] == values[1]:
                    raise InvalidRequest(
                        "keep: 'pair' needs 'kind', a column, and 'values', its two different values, as "
                        '["send", "recv"]'
                    )
                parsed = cls(
                    rule,
                    key,
                    () if order is None else _order(order),
                    kind=kind,
                    values=(_scalar(values[0], "values"), _scalar(values[1], "values")),
                    emit=None if emit is None else check_dataset_name(emit),
                )
        fields.end()
        return parsed

    def to_json(self) -> dict[str, Any]:
        """JSON that :meth:`parse` parses to the same rule."""
        body: dict[str, Any] = {"rule": self.rule.value}
        if self.key:
            body["key"] = list(self.key)
        order = [each.to_json() for each in self.order_by]
        match self.rule:
            case RuleName.LATEST | RuleName.TOP_K:
                body |= {"order_by": order} | ({"k": self.k} if self.rule is RuleName.TOP_K else {})
            case RuleName.UNTIL_CLOSED:
                inner = {"rule": "top_k", "order_by": order, "k": self.k}
                body |= {"closed_by": dict(self.closed_by), "keep": inner}
            case RuleName.PAIR:
                assert self.values is not None
                body |= {
                    "kind": self.kind,
                    "values": list(self.values),
                    "order_by": order or None,
                    "emit": self.emit,
                }
        return {name: value for name, value in body.items() if value is not None}

    @property
    def columns(self) -> list[str]:
        named = [*self.key, *(each.column for each in self.order_by), *(name for name, _ in self.closed_by)]
        return [*named, *([] if self.kind is None else [self.kind])]


def _k(fields: Fields, rule: RuleName) -> int:
    if rule is RuleName.LATEST:
        return 1
    k = fields.integer("k", 1, MAX_K)
    if k is None:
        raise InvalidRequest("keep: 'top_k' needs 'k'")
    return k


def _columns(value: object, what: str) -> tuple[str, ...]:
    if value is None or value == []:
        raise InvalidRequest(f"keep: this rule needs {what!r}, a list of columns")
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidRequest(f"keep: {what!r} is a list of columns, not {value!r}")
    _check_unique(names, what)
    return tuple(names)


def _order(value: object) -> tuple[Order, ...]:
    names = _columns(value, "order_by")
    orders = tuple(Order(name.removeprefix("-"), name.startswith("-")) for name in names)
    _check_unique([each.column for each in orders], "order_by")
    return orders


def _check_unique(names: Iterable[str], what: str) -> None:
    listed = list(names)
    if len(set(listed)) != len(listed):
        raise InvalidRequest(f"keep: {what!r} names a column twice: {listed}")


def _closed_by(value: object) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, dict) or not value:
        raise InvalidRequest(
            "keep: 'until_closed' needs 'closed_by', the columns and values of a closing row, as "
            '{"kind": "closed"}'
        )
    return tuple((str(name), _scalar(each, "closed_by")) for name, each in value.items())


def _scalar(value: object, what: str) -> Any:
    if not isinstance(value, str | int | float | bool):
        raise InvalidRequest(f"keep: {what!r} has texts, numbers or true and false, not {value!r}")
    return value
