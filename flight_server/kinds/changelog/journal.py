"""Journal: the files of a changelog, and the order in which they are written.

Guarantee: a commit is acknowledged after it is in the log; a run that a merge wrote counts from the moment when the
state file names it. So a crash at any point loses no acknowledged version and counts none twice.

Files of a changelog's directory
    ``flight-server.json``   the marker, see ``storage.ownership``
    ``changelog``            the state file, the JSON object of :class:`StateRecord`
    ``log-000001`` …         the commits after version ``covered``, in entries of these headers:
                                 {"commits": [[version, time, rows, [id, version] or null], …], "files": [name, …]}
                                 {"hold": name, "version": v, "until": time, "taken": time, "owner": text or null,
                                  "principal": text, if it has one}
                                 {"release": [name, …]}
                             The body has the commits' updates; ``files`` are runs of a large put, each with the rows
                             of the one version.
    ``run-000001`` …         runs that the state file or a log entry names; others, such as the output of a merge in
                             progress, are deleted at the next start

    Times are seconds since the epoch.

Covering
    ``covered`` is the last version up to which all updates are in the state file's runs. A log whose versions are all
    covered is deleted. Entries of covered versions that are still in a log are passed over.
"""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from flight_server.protocol import CreateRequest
from flight_server.storage import TransactionEntry, parse_transaction

from .holds import Hold, Holds
from .runs import STATE_NAME, UNFINISHED_NAME, Damaged, LogEntry
from .timeline import monotonic_time, past_time, wall_time

HOLD_FIELDS = ("version", "until", "taken", "owner", "principal")
_LOG = re.compile("log-([0-9]{6,})")
_RUN = re.compile("run-([0-9]{6,})")


@dataclass(frozen=True)
class LoggedCommit:
    """One version, as the log says it. ``transaction``: see :class:`~flight_server.protocol.Transaction`."""

    version: int
    time: float
    rows: int
    transaction: tuple[str, int] | None

    def to_json(self) -> list[Any]:
        return [self.version, self.time, self.rows, self.transaction]


@dataclass
class StateRecord:
    """The state file. ``keep`` and ``schema`` as ``create`` gave them; ``holds`` as :func:`stored_hold`;
    ``transactions`` and ``forgotten``: see ``datasets.transactions``.
    """

    dataset: str
    generation: str
    schema: str
    keep: dict[str, Any] | None
    delay_seconds: float
    lease_seconds: float | None
    since: int = 0
    covered: int = 0
    covered_time: float = 0.0
    first_log: int = 1
    runs: list[tuple[str, int | None]] = field(default_factory=list)
    holds: dict[str, list[Any]] = field(default_factory=dict)
    lapsed: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, TransactionEntry] = field(default_factory=dict)
    forgotten: str = ""

    @classmethod
    def new(cls, request: CreateRequest, generation: str) -> StateRecord:
        """Of a changelog that a request creates, with its schema and its delay."""
        assert request.schema is not None
        assert request.delay_seconds is not None
        keep = None if request.keep is None else request.keep.to_json()
        return cls(
            request.dataset,
            generation,
            request.schema,
            keep,
            request.delay_seconds,
            request.lease_seconds,
            covered_time=time.time(),
        )

    def to_json(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def parse(cls, value: dict[str, Any]) -> StateRecord:
        """Raises Damaged."""
        try:
            for each in fields(cls):
                if each.name not in value:
                    raise Damaged(f"{STATE_NAME} lacks {each.name}")
            state = cls(**value)
            state.runs = [
                (str(name), None if version is None else int(version)) for name, version in state.runs
            ]
            state.transactions = {
                name: parse_transaction(value) for name, value in state.transactions.items()
            }
            base64.b64decode(state.forgotten, validate=True)
            for name, _ in state.runs:
                if not _RUN.fullmatch(name):
                    raise Damaged(f"{STATE_NAME} names a run {name!r}")
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Damaged(f"{STATE_NAME} does not have its fields: {error}") from error
        return state


def commit_entry(commits: list[LoggedCommit], files: list[str], body: bytes) -> LogEntry:
    """The entry of a group of commits."""
    header: dict[str, Any] = {"commits": [commit.to_json() for commit in commits]}
    return LogEntry(header | ({"files": files} if files else {}), body)


def hold_entry(name: str, hold: Hold) -> LogEntry:
    """The entry of a hold."""
    return LogEntry({"hold": name, **dict(zip(HOLD_FIELDS, stored_hold(hold), strict=False))}, b"")


def stored_hold(hold: Hold) -> list[Any]:
    """Its ``HOLD_FIELDS``, with times of the host's clock; without the principal if it has none."""
    principal = [] if hold.principal is None else [hold.principal]
    return [hold.version, wall_time(hold.until), wall_time(hold.taken), hold.owner, *principal]


def bring_back_hold(holds: Holds, name: str, stored: Sequence[Any]) -> None:
    """Put a hold as :func:`stored_hold` gave it. Raises TypeError or ValueError."""
    version, until, taken, owner, principal = (*stored, None)[:5]
    holds.put(
        name,
        int(version),
        monotonic_time(float(until)),
        taken=past_time(float(taken)),
        owner=None if owner is None else str(owner),
        principal=None if principal is None else str(principal),
    )


def release_entry(names: list[str]) -> LogEntry:
    """The entry of holds that end."""
    return LogEntry({"release": names}, b"")


def commits_of(entry: LogEntry) -> list[LoggedCommit]:
    """The commits of an entry; none for one of holds. Raises Damaged."""
    try:
        return [
            LoggedCommit(
                int(version), float(time), int(rows), None if said is None else (str(said[0]), int(said[1]))
            )
            for version, time, rows, said in entry.header.get("commits", ())
        ]
    except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
        raise Damaged(f"a log entry does not have its fields: {error}") from error


def log_name(number: int) -> str:
    """The name of a log."""
    return f"log-{number:06}"


def run_name(number: int) -> str:
    """The name of a run file."""
    return f"run-{number:06}"


def numbered(directory: Path) -> tuple[dict[int, Path], dict[int, Path]]:
    """The logs and the runs in a directory, by number."""
    logs, runs = dict[int, Path](), dict[int, Path]()
    for entry in os.scandir(directory):
        for pattern, found in ((_LOG, logs), (_RUN, runs)):
            match = pattern.fullmatch(entry.name)
            if match is not None:
                found[int(match[1])] = directory / entry.name
    return dict(sorted(logs.items())), dict(sorted(runs.items()))


def ours(name: str) -> bool:
    """Whether a file of this name is a changelog's own, beside the marker."""
    return bool(name in (STATE_NAME, UNFINISHED_NAME) or _LOG.fullmatch(name) or _RUN.fullmatch(name))
