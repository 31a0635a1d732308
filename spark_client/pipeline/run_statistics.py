"""The rows, bytes and seconds of a run of a plan, for programs; and a plan for people: its steps from the last one
back, the placement of each exchange, and the statistics of a run.

In the text a step stands above the one that it reads. Where it reads several, each is a branch. An exchange has a
number, and one that is used twice is shown once; the other place has only the number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_client.arrow import readable_size
from spark_client.jobs import SealedDataset, Shares

from .nodes import Exchange, Input, Leg, PlanPart, SampledRanges


@dataclass(frozen=True)
class ExchangeStatistics:
    """One exchange. Sizes are bytes as the server stores them, times seconds.

    Args:
        exchange: as in the plan.
        name: the argument ``name``; None without one.
        dataset: on the server.
        partitions: empty ones, too.
        median_bytes, largest_bytes: of a partition with rows; 0 if none has any.
        tasks: how many wrote it; 0 if the driver did.
        pieces: how many partitions, pieces of partitions, or splits of files those tasks read; 0 from a DataFrame.
        spilled_bytes: the bytes that the stages of those tasks, and the streams that they read, wrote to files of their
            own, for want of memory.
        job_seconds: how long the driver waited for the Spark job and the seal.
        reading_tasks: how many tasks read it in this run, or will for the DataFrame; 0 if the driver reads it.
        cut_partitions: how many partitions those tasks read in pieces.
        is_reused: it was persisted by an earlier run, which the other numbers are of.
        empty_partitions: how many partitions have no rows.
        servers: the bytes that each server has of it, by location; more than one where it is spread.
    """

    exchange: str
    name: str | None
    dataset: str
    partitions: int
    rows: int
    size_bytes: int
    median_bytes: int
    largest_bytes: int
    tasks: int
    pieces: int
    spilled_bytes: int
    job_seconds: float
    reading_tasks: int = 0
    cut_partitions: int = 0
    is_reused: bool = False
    empty_partitions: int = 0
    servers: Mapping[str, int] = field(default_factory=dict)

    @property
    def skew(self) -> float:
        """The largest partition's size in medians of those with rows; 1 if none has any."""
        return self.largest_bytes / self.median_bytes if self.median_bytes else 1.0

    @classmethod
    def of(
        cls,
        exchange: Exchange,
        sealed: SealedDataset,
        shares: Sequence[tuple[Shares, str]],
        *,
        is_reused: bool,
    ) -> ExchangeStatistics:
        """``shares`` are those of the tasks that read it, each with its side of a pair, or an empty text."""
        sizes, work = sealed.partition_bytes, sealed.work
        filled = [size for size in sizes if size] or [0]
        return cls(
            str(exchange),
            exchange.name,
            sealed.source.dataset,
            len(sizes),
            sealed.rows,
            sealed.size_bytes,
            int(np.median(filled)),
            max(filled),
            work.tasks,
            work.pieces,
            work.spilled_bytes,
            sealed.seconds,
            sum(len(each) for each, _ in shares),
            sum(cut.side == side for each, side in shares for cut in each.cuts),
            is_reused,
            sizes.count(0),
            sealed.servers,
        )


@dataclass(frozen=True)
class RunStatistics:
    """One run: its exchanges in the order in which they ran, and the seconds that the driver waited for all of it.

    Stages that run later, when Spark uses the DataFrame of ``toDF``, are not in it.
    """

    exchanges: tuple[ExchangeStatistics, ...]
    seconds: float
    losses: tuple[str, ...] = ()
    """The servers that were lost, after each of which a part of the run was done again, in words."""
    result_seconds: float | None = None
    """How long the driver took for the steps after the last exchange; None if tasks run them, or ran them."""

    @property
    def rows(self) -> int:
        """The rows that were written, over all exchanges."""
        return sum(each.rows for each in self._ran)

    @property
    def size_bytes(self) -> int:
        """The bytes that were written, over all exchanges."""
        return sum(each.size_bytes for each in self._ran)

    @property
    def spilled_bytes(self) -> int:
        """The bytes that tasks wrote to files of their own."""
        return sum(each.spilled_bytes for each in self._ran)

    @property
    def _ran(self) -> list[ExchangeStatistics]:
        return [each for each in self.exchanges if not each.is_reused]

    def __str__(self) -> str:
        ran = self._ran
        reused = len(self.exchanges) - len(ran)
        parts = [
            f"{len(ran)} exchange{'' if len(ran) == 1 else 's'}"
            + (f" and {reused} reused" if reused else ""),
            f"{self.rows:,} rows",
            readable_size(self.size_bytes),
            f"{sum(each.tasks for each in ran):,} tasks",
            f"{self.seconds:.1f} s",
        ]
        in_driver = sum(each.job_seconds for each in ran if not each.tasks) + (self.result_seconds or 0.0)
        if in_driver:
            parts.append(f"{in_driver:.2f} s of them in the driver")
        if self.spilled_bytes:
            parts.append(f"{readable_size(self.spilled_bytes)} spilled")
        if ran:
            longest = max(ran, key=lambda each: each.job_seconds)
            parts.append(
                f"longest {longest.exchange} with {longest.job_seconds:.1f} s, skew {longest.skew:.1f}"
            )
        return "\n".join([", ".join(parts), *(f"run again: {loss}" for loss in self.losses)])


@dataclass(frozen=True)
class LastRun:
    """The last run of a leg: its statistics, those of each exchange of the plan, whether the driver ran the leg's own
    stages, notes about exchanges, and the leg as it ran, if it differs from the user's steps. None or empty before the
    first.
    """

    statistics: RunStatistics | None = None
    exchanges: Mapping[Exchange, ExchangeStatistics] = field(default_factory=dict)
    in_driver: bool = False
    notes: Mapping[Exchange, str] = field(default_factory=dict)
    leg: Leg | None = None


SERVERS_SHOWN = 8


def plan_text(leg: Leg, ran: LastRun, is_persisted: Callable[[Exchange], bool]) -> str:
    """The plan, with what is known of its last run."""
    return "\n".join(_Text(ran, is_persisted).of_leg(leg, ", in the driver" if ran.in_driver else ""))


class _Text:
    def __init__(self, ran: LastRun, is_persisted: Callable[[Exchange], bool]) -> None:
        self._ran = ran
        self._is_persisted = is_persisted
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
            return [*lines, *self._of_exchange(origin, where)]
        return [*lines, *_branches([self._of_part(side, where) for side in part.sides])]

    def _of_exchange(self, exchange: Exchange, where: str) -> list[str]:
        number = self._numbers.get(exchange)
        if number is not None:
            return [f"{exchange} #{number}, see above"]
        number = self._numbers[exchange] = len(self._numbers) + 1
        persisted = ", persisted" if self._is_persisted(exchange) else ""
        note = f", {self._ran.notes[exchange]}" if exchange in self._ran.notes else ""
        lines = [f"{exchange} #{number}: {_placement(exchange)}{_fewer_columns(exchange)}{persisted}{note}"]
        ran = self._ran.exchanges.get(exchange)
        if ran is not None:
            lines += [f"    {line}" for line in _facts(ran)]
            where = "" if ran.tasks else ", in the driver"
        return [*lines, *self.of_leg(exchange.leg, where)]


def _fewer_columns(exchange: Exchange) -> str:
    names, columns = exchange.leg.schema.names, len(exchange.node.leg.schema.names)
    return (
        "" if len(names) == columns else f", {len(names)} of {columns} columns: {', '.join(map(repr, names))}"
    )


def _placement(exchange: Exchange) -> str:
    if exchange.ranges is not None:
        sampled = ", by a sample" if isinstance(exchange.ranges, SampledRanges) else ""
        return f"by ranges of {', '.join(map(str, exchange.ranges.keys))}{sampled}"
    if not exchange.keys:
        return "round robin"
    return f"by the hash of {', '.join(map(repr, exchange.keys))}"


def _facts(ran: ExchangeStatistics) -> list[str]:
    sizes = (
        f"{ran.partitions:,} partitions, {ran.rows:,} rows, {readable_size(ran.size_bytes)}, largest "
        f"{readable_size(ran.largest_bytes)}, median {readable_size(ran.median_bytes)} (skew {ran.skew:.1f})"
    )
    if ran.empty_partitions:
        sizes += f", {ran.empty_partitions:,} without rows"
    writers = f"{ran.tasks:,} tasks" if ran.tasks else "the driver"
    wrote = f"written by {writers} in {ran.job_seconds:.2f} s"
    if ran.is_reused:
        wrote += ", in an earlier run"
    if ran.spilled_bytes:
        wrote += f", {readable_size(ran.spilled_bytes)} spilled"
    if ran.reading_tasks:
        wrote += f"; read by {ran.reading_tasks:,} tasks"
    if ran.cut_partitions:
        wrote += f", {ran.cut_partitions:,} of the partitions in pieces"
    return [sizes, wrote, *_spread(ran.servers)]


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
