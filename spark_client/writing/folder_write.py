"""One write below a path: the hidden folder with its files, whether its driver lives, and the turn of its commit.

Guarantee: of all writes below a path, of any driver on any host, one commits at a time; and what a write has left that
ended without its end is removed by the next one.

The hidden folder
    ``_flight_writes`` below the path; readers pass over it. A write has an id, which no other has, and in the folder

    ==================  =================================================================================
    ``ID.owner-…``      its kind and driver: machine, process and its start, host; from the first call to the last
    ``ID.lives-T``      the time T, anew while the driver lives
    ``ID.choosing``     it is about to take a number
    ``ID.turn-N``       it has the number N, and waits for its turn, or has it
    ``ID.commit``       what its commit does (:class:`Journal`), written before it does anything
    ``ID.done``         the commit has reached its point
    ``ID/``             files of its tasks' attempts
    ==================  =================================================================================

    All but ``ID.commit`` and ``ID/`` are names of empty files, which are there as a whole or not at all. The owner's
    goes last. What has none is of no write that goes on: a task that outlived its job made it. Other names, as of a
    file system's or a desktop's own files, are of no write: they stay.

Turns
    Stores have neither locks nor files that only one of two writers can make. They do show a file in each listing after
    it was written. That is enough for Lamport's bakery: a write takes a number greater than all that it sees, and waits
    for those with smaller ones, of two equal ones for the smaller id, and for those that are choosing.

Listings
    What is written or deleted while a listing goes on is in it or not, each name for itself. So the folder is listed
    twice, and what either listing has counts, of writes that both have: a write that had its number when the first one
    no longer found it choosing has it in the second one, and one that is in the first one had its owner before.

Driver that died
    On its own machine its process tells: there is none of this number and start. From elsewhere it is dead when
    ``LEASE_SECONDS`` have passed since the time in its file, so clocks may differ by half of that. The next write, at
    its begin, and those that wait for its turn, settle its commit by the journal (``settle`` of the caller) and remove
    its files. What cannot be settled now, as where files may not be deleted, is left to the writes after it. Several
    may do so at once: each step is fine twice, and concerns files of that write, or that its journal names, only. A
    write whose files are removed though its driver lives, because it stood still for so long, fails: the commit misses
    them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

from spark_client.connection import LeaseKeeper, TimedOut
from spark_client.executors import start_of

from .storage_place import Place

_log = logging.getLogger(__name__)
HIDDEN = "_flight_writes"
LEASE_SECONDS = 300.0
TURN_SECONDS = 900.0
"""A commit waits so long for others; longer than a lease, so that one of a dead driver does not end it."""
_FIRST_POLL_SECONDS, _POLL_SECONDS = 0.005, 0.25
_ID = re.compile("[0-9a-f]{32}")
_OWNER = re.compile(r"([^-]+)-([^-]+)-(\d+)-(\d+)-(.*)")
_going_on: set[str] = set()
"""The writes of this process."""


@dataclass(frozen=True)
class Journal:
    """What a commit does: it gives ``files`` their names, then deletes ``replaced``, which had these stamps
    (:meth:`.Place.stamps`). ``marked``: there was a ``_SUCCESS`` before. ``kind`` is the write's.
    """

    files: Mapping[str, str]
    replaced: Mapping[str, str] = field(default_factory=dict)
    marked: bool = False
    kind: str = ""


Settle = Callable[[str, Journal | None, bool], None]
"""Finishes or undoes the commit of the write of this id, without a journal one that it has not begun, or has ended; and
whether it has said that it reached its commit point.
"""


@dataclass
class FolderWrite:
    """One write below ``place``; as a context manager from its first call to its last. Not thread-safe.

    Args:
        settle: is called for each write of this kind that did not end, before its files are removed.
        kind: those of another kind are left to writes of theirs.
    """

    place: Place
    settle: Settle
    kind: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self._hidden = self.place.below(HIDDEN)
        self._lives_at = 0
        self._has_ended = False
        self._keeper = LeaseKeeper(self._renew, LEASE_SECONDS, f"a write to {self.place.folder}")

    @property
    def folder(self) -> str:
        """For the files of its tasks, below the place."""
        return f"{HIDDEN}/{self.id}"

    def __enter__(self) -> Self:
        """Remove what dead writes have left, and begin."""
        for write, facts in self._writes().items():
            if not _lives(write, facts):
                self._recover(write, facts.kind)
        _going_on.add(self.id)
        try:
            self._mark("-".join(map(str, ("owner", self.kind, *_this_process()))))
            self._renew()
        except BaseException:
            _going_on.discard(self.id)
            raise
        self._keeper.begin()
        return self

    def __exit__(self, *error: object) -> None:
        """Settle a commit that did not end, and remove all that is hidden of the write. What cannot be removed now is
        of a dead write from then on.
        """
        self._keeper.close()
        _going_on.discard(self.id)
        try:
            self._recover(self.id, self.kind, has_ended=self._has_ended)
            self.place.remove_empty([HIDDEN])
        except Exception as failed:  # noqa: BLE001 - what is not settled has an error of its own already
            _log.warning("the next write to %s removes what this one has left: %s", self.place.folder, failed)

    def take_turn(self) -> None:
        """Wait until no other write below the path commits; none does from then on, until this one's end. Raises
        TimedOut: another one has not ended.
        """
        self._mark("choosing")
        number = 1 + max((facts.number for facts in self._writes().values()), default=0)
        self._mark(f"turn-{number}")
        self._hidden.delete(f"{self.id}.choosing")
        pause_seconds, deadline = _FIRST_POLL_SECONDS, time.monotonic() + TURN_SECONDS
        while (other := self._before(number)) is not None:
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"the commit of another write to {self.place.folder} has not ended for {TURN_SECONDS:g} s; its "
                    f"driver is process {other.pid} on {other.host}: end it, or write again later"
                )
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _POLL_SECONDS)

    def begin_commit(self, journal: Journal) -> None:
        """From now on the driver, or the next write after a crash, goes by the journal."""
        self._hidden.put(f"{self.id}.commit", json.dumps(asdict(journal) | {"kind": self.kind}))

    def reach_commit_point(self) -> None:
        """From now on the journal is done to its end, and before it was undone."""
        self._mark("done")

    def end_commit(self) -> None:
        """All of the journal is done."""
        self._hidden.delete(f"{self.id}.commit")
        self._has_ended = True

    def _before(self, number: int) -> _Facts | None:
        """A write that has its turn before this one's number, once those of dead drivers are settled."""
        for write, facts in self._writes().items():
            waits = facts.chooses or (facts.number and (facts.number, write) < (number, self.id))
            if write == self.id or not waits:
                continue
            if _lives(write, facts):
                return facts
            self._recover(write, facts.kind)
        return None

    def _writes(self) -> dict[str, _Facts]:
        """What is there of each write, by its id, in two listings."""
        first, second = self._kinds(), self._kinds()
        return {write: _Facts.of(first[write] | second[write]) for write in first.keys() & second.keys()}

    def _kinds(self) -> dict[str, set[str]]:
        kinds: dict[str, set[str]] = defaultdict(set)
        for name in self._hidden.names():
            write, _, kind = name.partition(".")
            if _ID.fullmatch(write):
                kinds[write].add(kind)
        return kinds

    def _mark(self, kind: str) -> None:
        self._hidden.mark(f"{self.id}.{kind}")

    def _renew(self) -> None:
        before = self._lives_at
        self._lives_at = int(time.time())
        self._mark(f"lives-{self._lives_at}")
        if before not in (0, self._lives_at):
            self._hidden.delete(f"{self.id}.lives-{before}")

    def _recover(self, write: str, kind: str, *, has_ended: bool = False) -> None:
        """Settle the write, and remove what is hidden of it, in an order in which it can end anywhere, and be begun
        again by any other write. ``kind`` is empty if the write has no owner.
        """
        if kind not in (self.kind, ""):
            return
        if not has_ended:
            try:
                text = self._hidden.get(f"{write}.commit")
                journal = None if text is None else Journal(**json.loads(text))
                if journal is not None and journal.kind != self.kind:
                    return
                if journal is not None or kind:
                    self.settle(write, journal, self._hidden.has(f"{write}.done"))
            except Exception as error:  # noqa: BLE001 - it must not end all later writes
                _log.warning("what a write to %s has left is not settled yet: %s", self.place.folder, error)
                return
            self._hidden.delete(f"{write}.commit")
        try:
            self._hidden.delete_folder(write)
        except OSError as error:  # as where a task writes to it at this moment
            _log.info("left to the next write: %s", error)
        names = [name for name in self._hidden.names() if name.startswith(f"{write}.")]
        owners = [name for name in names if name.startswith(f"{write}.owner-")]
        self._hidden.delete_all(set(names) - set(owners))
        self._hidden.delete_all(owners)


@dataclass(frozen=True)
class _Facts:
    """What the names of a write's files say; ``number`` and ``lives_at`` are 0 where none says it."""

    number: int = 0
    chooses: bool = False
    lives_at: int = 0
    kind: str = ""
    machine: str = ""
    pid: int = 0
    started: int = 0
    host: str = ""

    @classmethod
    def of(cls, kinds: Iterable[str]) -> _Facts:
        facts: dict[str, Any] = {}
        for kind in kinds:
            name, _, rest = kind.partition("-")
            if kind == "choosing":
                facts["chooses"] = True
            elif name == "turn" and rest.isdigit():
                facts["number"] = int(rest)
            elif name == "lives" and rest.isdigit():
                facts["lives_at"] = max(int(rest), facts.get("lives_at", 0))
            elif name == "owner" and (owner := _OWNER.fullmatch(rest)) is not None:
                kind_of_write, machine, pid, started, host = owner.groups()
                facts |= {
                    "kind": kind_of_write,
                    "machine": machine,
                    "pid": int(pid),
                    "started": int(started),
                    "host": host,
                }
        return cls(**facts)


def _lives(write: str, facts: _Facts) -> bool:
    """Whether the write's driver lives and goes on with it."""
    if not facts.machine:
        return False
    machine, pid, *_ = _this_process()
    if facts.machine != machine:
        # A driver that has not said it yet began a moment ago.
        return not facts.lives_at or time.time() - facts.lives_at < LEASE_SECONDS
    return write in _going_on if facts.pid == pid else start_of(facts.pid) == facts.started


@cache
def _machine() -> str:
    """What tells this machine since its start, and the numbers of its processes, from others."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return hashlib.sha256(f"{boot}{Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:16]


def _this_process() -> tuple[str, int, int, str]:
    pid = os.getpid()
    return _machine(), pid, start_of(pid) or 0, socket.gethostname()
