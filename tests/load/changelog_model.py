"""What a changelog may be after each call: its sequential specification, in plain Python. See ``name_model``.

The rows of a version are not part of the state, which names the commits only: :class:`Contents` adds them up.

``since`` is the least version that can be asked for, as far as answers tell: a reader was told ``compacted``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from tests.load.name_model import NOT_FOUND, OK, Call, Ended, Step

REMEMBERED = 8
"""Numbers of an id whose versions a server remembers."""

Row = tuple[int, int, int]
"""Key, time, value."""
Rule = Literal["latest", "all"]


class Log(NamedTuple):
    """The changelog that a name leads to."""

    made_by: int
    commits: tuple[int, ...] = ()
    """The commit of each version, from version 1 on."""
    transactions: frozenset[tuple[str, int, int]] = frozenset()
    """Id, number, version."""
    holds: frozenset[tuple[str, int]] = frozenset()
    since: int = 0

    def is_held(self, version: int) -> bool:
        """Whether a hold keeps this version readable."""
        return any(held <= version for _, held in self.holds)


class LogState(NamedTuple):
    """What the server knows of a name of changelogs."""

    log: Log | None = None

    def expired(self) -> Iterator[LogState]:
        yield from ()

    def without_volatile(self) -> LogState:
        return self

    def crashed(self) -> LogState:
        """It is durable."""
        return self


@dataclass(frozen=True)
class CreateLog(Call):
    """Action ``create``. Its answer is whether a changelog was made."""

    def begin(self, state: LogState) -> Iterator[Step]:
        if state.log is None:
            yield LogState(Log(self.number)), Ended("made")
        else:
            yield state, Ended("there")


@dataclass(frozen=True)
class DropLog(Call):
    """Action ``drop`` of the name."""

    sees_absence: ClassVar[bool] = True

    def begin(self, state: LogState) -> Iterator[Step]:
        yield LogState(), NOT_FOUND if state.log is None else OK


@dataclass(frozen=True)
class Commit(Call):
    """A put, or a delete. ``update`` is the number of its rows. Its answer is the version."""

    update: int
    transaction: tuple[str, int] | None = None

    def begin(self, state: LogState) -> Iterator[Step]:
        log = state.log
        if log is None:
            return
        if self.transaction is not None:
            name, number = self.transaction
            known = {each: version for id_, each, version in log.transactions if id_ == name}
            if number in known:
                yield state, Ended(known[number])
                return
            if number < max(known, default=0):
                return
        version = len(log.commits) + 1
        log = log._replace(commits=(*log.commits, self.update))
        if self.transaction is not None:
            log = log._replace(transactions=log.transactions | {(*self.transaction, version)})
        yield LogState(log), Ended(version)


@dataclass(frozen=True)
class HoldVersion(Call):
    """Action ``hold``: of this version, or of the newest. Its answer is the version, of a release ``ok``."""

    hold: str
    version: int | None = None
    releases: bool = False

    def begin(self, state: LogState) -> Iterator[Step]:
        log = state.log
        if log is None:
            return
        held = dict(log.holds)
        before, upper = held.get(self.hold), len(log.commits)
        if self.releases:
            held.pop(self.hold, None)
            yield LogState(log._replace(holds=frozenset(held.items()))), OK
            return
        version = self.version
        if version is None:
            version = upper if before is None else before
        if max(before or 0, log.since) <= version <= upper:
            held[self.hold] = version
            yield LogState(log._replace(holds=frozenset(held.items()))), Ended(version)


class Shown(NamedTuple):
    """The snapshot at ``version``, or the changes ``after`` one up to it."""

    commits: tuple[int, ...]
    """Those up to ``version``."""
    version: int
    after: int | None


@dataclass(frozen=True)
class ReadLog(Call):
    """A read of the snapshot ``as_of`` a version (None: the newest), or of the changes ``after`` one up to it. Its
    answer is :class:`Shown` or ``compacted``.
    """

    as_of: int | None = None
    after: int | None = None

    def begin(self, state: LogState) -> Iterator[Step]:
        log = state.log
        if log is None:
            yield state, NOT_FOUND
            return
        upper = len(log.commits)
        version = upper if self.as_of is None else self.as_of
        oldest = version if self.after is None else self.after
        if oldest <= version <= upper and oldest >= log.since:
            yield state, Ended(Shown(log.commits[:version], version, self.after))
        if oldest < upper and not log.is_held(oldest):
            yield LogState(log._replace(since=max(log.since, oldest + 1))), Ended("compacted")


@dataclass(frozen=True)
class Update:
    """What a commit brings: rows with their counts, or keys whose rows it deletes."""

    rows: Mapping[Row, int]
    deleted: frozenset[int] = frozenset()


class Contents:
    """The rows that each run of commits adds up to, by one rule.

    Args:
        updates: those of each commit, by their numbers.
    """

    def __init__(self, rule: Rule, updates: Mapping[int, Update]) -> None:
        self._rule = rule
        self._updates = updates
        self._known: dict[tuple[int, ...], Mapping[Row, int]] = {}

    def shown(self, shown: Shown) -> Mapping[Row, int]:
        """The rows, each with its count; of changes, those whose count differs."""
        rows = self._at(shown.commits)
        if shown.after is None:
            return rows
        before = self._at(shown.commits[: shown.after])
        changes = {row: rows.get(row, 0) - before.get(row, 0) for row in {**rows, **before}}
        return {row: count for row, count in changes.items() if count}

    def _at(self, commits: tuple[int, ...]) -> Mapping[Row, int]:
        if commits not in self._known:
            if len(self._known) > 30:
                self._known.clear()
            self._known[commits] = self._added_up(commits)
        return self._known[commits]

    def _added_up(self, commits: tuple[int, ...]) -> Mapping[Row, int]:
        updates = [self._updates[each] for each in commits]
        if self._rule == "all":
            counts = Counter[Row]()
            for update in updates:
                for row, count in update.rows.items():
                    counts[row] += count
            return {row: count for row, count in counts.items() if count}
        latest: dict[int, Row] = {}
        for update in updates:
            for key in update.deleted:
                latest.pop(key, None)
            for row in update.rows:
                if row[0] not in latest or latest[row[0]][1] < row[1]:
                    latest[row[0]] = row
        return dict.fromkeys(latest.values(), 1)
