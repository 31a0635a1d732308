"""The query of a request: what its keys say."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from flight_server.datasets import Dataset
from flight_server.protocol import Fields, InvalidRequest, Versions, are_partitions, parse_partition


def query_of(request: web.Request, *known: str) -> dict[str, str]:
    """The query's values.

    Raises:
        InvalidRequest: an unknown key, or one that comes twice.
    """
    query = dict(request.query)
    unknown = ", ".join(repr(key) for key in sorted(query.keys() - set(known)))
    if unknown:
        raise InvalidRequest(f"the query has an unknown key {unknown}; known are {', '.join(known)}")
    if len(request.query) != len(query):
        raise InvalidRequest("a key comes twice in the query")
    return query


def listed_partitions(query: dict[str, str], dataset: Dataset, index: int | None) -> tuple[int, ...] | None:
    """The partitions that a query lists. Raises InvalidRequest, and NotFound for one that is not there."""
    text = query.get("partitions")
    if text is None:
        return None
    partitions = tuple(map(parse_partition, text.split(",")))
    if index is not None or not are_partitions(partitions):
        raise InvalidRequest(
            "'partitions' lists each one once, as 3,7,9, and goes with a path that names none"
        )
    dataset.listed(partitions)
    return partitions


def frame_number(query: dict[str, str], key: str) -> int | None:
    """The number of a frame; None if the query has none. Raises InvalidRequest."""
    return _number(query[key], f"{key!r} is the number of a frame") if key in query else None


def versions_of(query: dict[str, str]) -> Versions | None:
    """The versions that a query asks for; None if it asks for none. Raises InvalidRequest."""
    values: dict[str, Any] = {
        key: _number(query[key], "a version is a number") for key in ("as_of", "after") if key in query
    }
    if "follow" in query:
        if query["follow"] not in ("true", "false"):
            raise InvalidRequest(f"'follow' is true or false, not {query['follow'][:40]!r}")
        values["follow"] = query["follow"] == "true"
    return Versions.find(Fields(values, "the query"))


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise InvalidRequest(f"{what} in ASCII decimal, not {text[:40]!r}")
    return int(text)
