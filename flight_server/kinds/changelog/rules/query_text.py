"""The text of a user's query: one SELECT over ``input`` that gives the same for the same rows.

DuckDB's own parser reads it. A table must be ``input`` or a name that the query defines by WITH, without a schema
before it; rows may also come from VALUES, a subquery, ``range``, ``generate_series`` and ``unnest``. A query is refused
if it may give something else for the same rows: functions that DuckDB itself does not call consistent (random numbers,
the clock, settings, variables), the clock's words without parentheses, and samples.

The names in the parser's tree are those of DuckDB 2. A table whose node has other names is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb

from .query_errors import first_line, refused

INPUT = "input"
_ROW_SOURCES = frozenset({"generate_series", "range", "unnest"})
# Names without parentheses that the parser takes for columns.
_CLOCK_WORDS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
# `error` stops the query, which the user may want.
_UNSETTLED = """
    SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT' AND function_name <> 'error'
"""


def check_query(query: str, connection: duckdb.DuckDBPyConnection) -> None:
    """Raises InvalidRequest for a query that is not allowed. Does not run it."""
    try:
        if len(connection.extract_statements(query)) != 1:
            raise refused(query, "it is not one statement")
        (text,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone() or ("{}",)
        unsettled = {name for (name,) in connection.execute(_UNSETTLED).fetchall()}
    except duckdb.Error as error:
        raise refused(query, first_line(error)) from error
    parsed = json.loads(text)
    if parsed["error"]:
        raise refused(query, f"it is not a SELECT: {parsed['error_message']}")
    nodes = list(_nodes(parsed))
    defined = {str(each["key"]).lower() for node in nodes for each in node.get("cte_map", {}).get("map", ())}
    for node in nodes:
        _check_sources(node, query, {INPUT} | defined)
        _check_settled(node, query, unsettled)


def _check_sources(node: dict[str, Any], query: str, known: set[str]) -> None:
    match node.get("type"):
        case "BASE_TABLE":
            parts = [node.get("catalog_name"), node.get("schema_name"), node.get("table_name")]
            name = ".".join(str(part) for part in parts if part).lower()
            if name not in known:
                raise refused(query, f"it reads {name!r}, and there is only the table 'input'")
        case "TABLE_FUNCTION":
            name = str(node["function"].get("function_name")).lower()
            if name not in _ROW_SOURCES:
                raise refused(query, f"it reads from {name!r}, and there is only the table 'input'")
        case "SHOW_REF":
            raise refused(query, "it describes tables")


def _check_settled(node: dict[str, Any], query: str, unsettled: set[str]) -> None:
    function = str(node.get("function_name")).lower()
    if function in unsettled:
        raise refused(query, f"{function!r} does not give the same for the same rows")
    column = [str(part).lower() for part in node.get("column_names", ())]
    if node.get("type") == "COLUMN_REF" and len(column) == 1 and column[0] in _CLOCK_WORDS:
        raise refused(query, f"{column[0]!r} is the clock; for a column of that name write input.{column[0]}")
    if node.get("sample"):
        raise refused(query, "a sample is not the same each time")


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of a JSON document."""
    open_ = [tree]
    while open_:
        match open_.pop():
            case dict() as node:
                yield node
                open_.extend(node.values())
            case list() as nodes:
                open_.extend(nodes)
