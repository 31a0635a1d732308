"""A plan for people: its steps from the last one back, the placement of each exchange, and the statistics of a run.

A step stands above the one that it reads. Where it reads several, each is a branch. An exchange has a number, and one
that is used twice is shown once; the other place has only the number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_client.arrow import readable_size

from .nodes import Exchange, Input, Leg, Pair, PlanPart
from .run_statistics import ExchangeStatistics

Of = Mapping[Exchange, ExchangeStatistics]
SERVERS_SHOWN = 8


def plan_text(
    leg: Leg,
    of: Of,
    is_persisted: Callable[[Exchange], bool] = lambda _: False,
    *,
    notes: Mapping[Exchange, str] | None = None,
    in_driver: bool = False,
) -> str:
    """The plan with the statistics of its exchanges and ``notes`` about them, and whether the leg's own stages ran
    ``in_driver``.
    """
    return "\n".join(_Text(of, is_persisted, notes or {}).of_leg(leg, ", in the driver" if in_driver else ""))


class _Text:
    def __init__(
        self, of: Of, is_persisted: Callable[[Exchange], bool], notes: Mapping[Exchange, str]
    ) -> None:
        self._of = of
        self._is_persisted = is_persisted
        self._notes = notes
        self._numbers: dict[Exchange, int] = {}

    def of_leg(self, leg: Leg, where: str) -> list[str]:
        if leg.single is not None:
            return self._of_part(leg.single, where)
        return ["union", *_branches([self._of_part(part, where) for part in leg.parts])]

    def _of_part(self, part: PlanPart, where: str) -> list[str]:
        stages = [stage.declared.stage for stage in reversed(part.stages)]
        lines = [f"{name}{where}" for name in stages]
        origin = part.origin
        if isinstance(origin, Input):
            return [*lines, f"{origin.label}{where}"]
        if isinstance(origin, Exchange):
            return [*lines, *self._of_exchange(origin)]
        return [*lines, *self._of_pair(origin, where)]

    def _of_pair(self, pair: Pair, where: str) -> list[str]:
        return _branches([self._of_part(side, where) for side in (pair.left, pair.right)])

    def _of_exchange(self, exchange: Exchange) -> list[str]:
        number = self._numbers.get(exchange)
        if number is not None:
            return [f"{exchange} #{number}, see above"]
        number = self._numbers[exchange] = len(self._numbers) + 1
        persisted = ", persisted" if self._is_persisted(exchange) else ""
        note = f", {self._notes[exchange]}" if exchange in self._notes else ""
        lines = [f"{exchange} #{number}: {_placement(exchange)}{persisted}{note}"]
        found = self._of.get(exchange)
        if found is not None:
            lines += [f"    {line}" for line in _facts(found)]
        where = "" if found is None or found.tasks else ", in the driver"
        return [*lines, *self.of_leg(exchange.read(self._is_persisted), where)]


def _placement(exchange: Exchange) -> str:
    if exchange.ranges is not None:
        return f"by ranges of {', '.join(map(str, exchange.ranges.keys))}"
    if not exchange.keys:
        return "round robin"
    keys = ", ".join(map(repr, exchange.keys))
    part = exchange.leg.single
    if (
        part is not None
        and isinstance(part.origin, Input)
        and exchange.hashed_by_spark(part.origin, part.stages)
    ):
        return f"by the hash of {keys}, which Spark computes"
    return f"by the hash of {keys}"


def _facts(found: ExchangeStatistics) -> list[str]:
    sizes = (
        f"{found.partitions:,} partitions, {found.rows:,} rows, {readable_size(found.size_bytes)}, largest "
        f"{readable_size(found.largest_bytes)}, median {readable_size(found.median_bytes)} (skew {found.skew:.1f})"
    )
    if found.empty_partitions:
        sizes += f", {found.empty_partitions:,} without rows"
    writers = f"{found.tasks:,} tasks" if found.tasks else "the driver"
    wrote = f"written by {writers} in {found.job_seconds:.2f} s"
    if found.is_reused:
        wrote += ", in an earlier run"
    if found.spilled_bytes:
        wrote += f", {readable_size(found.spilled_bytes)} spilled"
    if found.reading_tasks:
        wrote += f"; read by {found.reading_tasks:,} tasks"
    if found.cut_partitions:
        wrote += f", {found.cut_partitions:,} of the partitions in pieces"
    return [sizes, wrote, *_spread(found.servers)]


def _spread(servers: Mapping[str, int]) -> list[str]:
    """What each server has, the most first; nothing where there is one."""
    if len(servers) < 2:
        return []
    largest = sorted(servers.items(), key=lambda each: -each[1])
    shown = ", ".join(f"{location} {readable_size(size)}" for location, size in largest[:SERVERS_SHOWN])
    left = len(servers) - SERVERS_SHOWN
    return [f"on {len(servers):,} servers: {shown}" + (f" and {left:,} more" if left > 0 else "")]


def _branches(blocks: list[list[str]]) -> list[str]:
    lines: list[str] = []
    for number, (first, *others) in enumerate(blocks, 1):
        is_last = number == len(blocks)
        lines.append(f"{'└─' if is_last else '├─'} {first}")
        lines += [f"{'  ' if is_last else '│ '} {line}" for line in others]
    return lines
