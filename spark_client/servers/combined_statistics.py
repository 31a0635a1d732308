"""The statistics of several servers as those of one, and the servers themselves.

Numbers are sums, and lists are one after the other. A dataset that is spread has the rows and bytes of all its
portions that were answered for: if these are not all, its ``whole`` has those of all, and else is None. It is sealed if
all are, and its lease is the one that ends first. Where servers have different generations of a name, as after a loss,
those of the last one in alphabetical order count: a later run of the same write comes later.
``count`` is the number of datasets, or more where a server has more than are on its page. A server that is asked at
two of its locations counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FIRST = frozenset({"first", "limit", "partition_count", "server_count", "portions", "whole"})
_ALL = frozenset({"sealed", "durable"})


def combined(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answers of servers to the action ``statistics``, at least one, without ``servers``."""
    answers = [*{_start(each) or number: each for number, each in enumerate(answers)}.values()]
    found: dict[str, Any] = _together("", [{**each, "datasets": {}} for each in answers])
    found.pop("servers", None)
    names = dict.fromkeys(name for answer in answers for name in answer["datasets"])
    found["datasets"] = {name: _dataset([each["datasets"].get(name) for each in answers]) for name in names}
    if "count" in found:
        found["count"] = len(names) + sum(each["count"] - len(each["datasets"]) for each in answers)
    return found


def listed(answers: Mapping[str, Mapping[str, Any]], gone: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each server once, with its numbers or the reason why it is ``gone``: those that were asked, then other workers of
    their supervisors. A server says nothing of itself to principals that do not see all of it.

    Args:
        answers: by location.
        gone: those that did not answer, each with its ``location``, ``start`` and the reason.
    """
    found = [
        dict(answer["servers"][0], location=location)
        for location, answer in answers.items()
        if answer.get("servers")
    ]
    found += gone
    locations, starts = {each["location"] for each in found}, {each["start"] for each in found}
    for answer in answers.values():
        for each in answer.get("servers", [])[1:]:
            if each["location"] not in locations and (each["start"] is None or each["start"] not in starts):
                found.append(each)
                locations.add(each["location"])
                starts.add(each["start"])
    return found


def _start(answer: Mapping[str, Any]) -> str | None:
    """The start of the server that answers, which it does not say to each principal."""
    servers = answer.get("servers")
    return servers[0]["start"] if servers else None


def _dataset(portions: Sequence[Any]) -> Any:
    held = [each for each in portions if each is not None]
    last = max(each["generation"] for each in held)
    # Only an answer about one dataset has starts.
    by_start = {tuple(each.get("starts", [number])): each for number, each in enumerate(held)}
    parts = [each for each in by_start.values() if each["generation"] == last]
    found = _together("", parts)
    return {**found, "whole": None} if len(parts) == found["server_count"] else found


def _together(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if len(values) == 1 or name in _FIRST:
        return first
    if isinstance(first, dict):
        keys = dict.fromkeys(key for each in values for key in each)
        return {key: _together(key, [each[key] for each in values if key in each]) for key in keys}
    if isinstance(first, list):
        return [each for value in values for each in value]
    if isinstance(first, bool):
        return all(values) if name in _ALL else any(values)
    numbers = [each for each in values if isinstance(each, int | float)]
    if len(numbers) < len(values):  # texts; or one has no limit, no lease, no trouble
        return next((each for each in values if isinstance(each, str)), None)
    return min(numbers) if name == "lease_left_seconds" else sum(numbers)
