"""The declaration of a changelog: its schema, its keep rule, its delay.

Guarantee: a wrong rule is refused here as the server would (``protocol.keep_rules`` describes the rules), before
anything is sent. The server compares the columns with the schema.

:func:`latest`, :func:`top_k`, :func:`until_closed` and :func:`pair` make a rule without its ``key`` and ``order_by``,
which :func:`declaration` adds.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from flight_server.protocol import CreateRequest, InvalidRequest, KeepRule, Kind, Order, RuleName

Columns = str | Sequence[str] | None


def latest() -> KeepRule:
    """Keep the row of each key that is the greatest by ``order_by``."""
    return KeepRule(RuleName.LATEST, ())


def top_k(k: int) -> KeepRule:
    """Keep the ``k`` greatest rows of each key by ``order_by``."""
    return KeepRule(RuleName.TOP_K, (), k=k)


def until_closed(closed_by: Mapping[str, Any], k: int = 1) -> KeepRule:
    """Keep all rows of a key until one has the values of ``closed_by``; then the ``k`` greatest of the others."""
    return KeepRule(RuleName.UNTIL_CLOSED, (), k=k, closed_by=tuple(closed_by.items()))


def pair(kind: str = "kind", values: tuple[Any, Any] = ("send", "recv"), emit: str | None = None) -> KeepRule:
    """Keep the rows without a partner: of one key, a row whose column ``kind`` has the first of ``values`` and one that
    has the second cancel. ``emit`` names a changelog that gets a row for each pair.
    """
    return KeepRule(RuleName.PAIR, (), kind=kind, values=values, emit=emit)


def declaration(
    dataset: str,
    schema: pa.Schema,
    *,
    keep: KeepRule | None = None,
    key: Columns = None,
    order_by: Columns = None,
    delay_seconds: float | None = None,
) -> CreateRequest:
    """The body of ``create``. Raises InvalidRequest: the rule lacks an argument or has one that it cannot use, or a
    number is out of range.
    """
    if keep is None:
        if key is not None or order_by is not None:
            raise InvalidRequest("'key' and 'order_by' go with 'keep', such as keep=latest()")
    elif not isinstance(keep, KeepRule):
        raise InvalidRequest(f"keep is a rule, such as latest() or top_k(3), not {keep!r}")
    else:
        order = tuple(Order(name.removeprefix("-"), name.startswith("-")) for name in _names(order_by))
        keep = KeepRule.parse(replace(keep, key=_names(key), order_by=order).to_json())
    request = CreateRequest(
        dataset,
        Kind.CHANGELOG,
        schema=encoded_schema(schema),
        keep=keep,
        delay_seconds=delay_seconds,
    )
    return CreateRequest.parse(request.encode())


def encoded_schema(schema: pa.Schema) -> str:
    """The schema as ``create`` takes it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _names(columns: Columns) -> tuple[str, ...]:
    return () if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)
