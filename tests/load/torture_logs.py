"""What the torture does with changelogs: puts with and without transactions, deletes, retractions, holds, snapshots and
changes at versions that are held, or may be compacted.

A name keeps the latest row of each key, and its rows are deleted by their keys; or it keeps all rows, and they are
retracted, each at most once and only after its put was answered.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import (
    Compacted,
    FlightShuffleError,
    NotFound,
    PutCommand,
    Transaction,
)
from spark_client.lanes import BrokenStream, PutStream
from tests.load.call_history import CallHistory
from tests.load.changelog_model import (
    Commit,
    Contents,
    CreateLog,
    DropLog,
    HoldVersion,
    LogState,
    ReadLog,
    Row,
    Rule,
    Shown,
    Update,
)
from tests.load.marked_rows import WrongRows
from tests.load.torture_calls import HANG_SECONDS, Calls, Name, Shared, Unreadable, cancelled_after, created
from tests.support.changelogs import declaration

KEEP = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64()), ("value", pa.int64())])
SIGNED = SCHEMA.append(pa.field("_diff", pa.int64()))
HOLDS = ("h0", "h1", "h2")
HOLD_SECONDS = 3600.0
MOST_VERSIONS = 80
"""A changelog with more is dropped soon: what it may have been grows with them."""
_SIZES = ((1, 5, 60), (6, 300, 30), (3_000, 20_000, 8))
_BATCH_ROWS = 8_000


class LogName(Name):
    """A name of changelogs, of one rule."""

    def __init__(self, name: str, began: float, rule: Rule, shared: Shared) -> None:
        super().__init__(name, began)
        self.history = CallHistory(name, began, LogState())
        self.rule = rule
        self.contents = Contents(rule, shared.updates)
        self.generation: str | None = None
        self.live: list[tuple[str, Row]] = []
        """Rows that were put, each with the generation; one that a client takes back leaves it."""
        self.lock = threading.Lock()


class LogCalls(Calls):
    """A client of changelogs."""

    name: LogName

    def create(self) -> None:
        """Make the changelog, where it is absent."""
        keep = {"keep": KEEP} if self.name.rule == "latest" else {}
        body = declaration(self.name.name, SCHEMA, delay_seconds=self.chance.choice((0.0, 0.0, 0.2)), **keep)
        answer = self.made(
            CreateLog(next(self.shared.numbers)), lambda: self.action("create", body), told=created
        )
        if answer is not None:
            self.name.generation = answer["generation"]

    def drop(self) -> None:
        """Drop the changelog."""
        call = DropLog(next(self.shared.numbers))
        self.made(call, lambda: self.action("drop", {"dataset": self.name.name}))

    def commit(self) -> None:
        """Commit rows."""
        name = self.name
        if (generation := self._generation()) is None:
            return
        rows = self._rows()
        if self._commit(generation, Update(dict.fromkeys(rows, 1))) and name.rule == "all":
            with name.lock:
                name.live += [(generation, row) for row in rows]

    def take_away(self) -> None:
        """Retract rows that were put, or delete keys."""
        name = self.name
        if (generation := self._generation()) is None:
            return
        if name.rule == "latest":
            keys = self.chance.sample(range(200), self.chance.randint(1, 40))
            self._commit(generation, Update({}, frozenset(keys)))
            return
        with name.lock:
            count = min(len(name.live), self.chance.randint(1, 500))
            taken, name.live = name.live[:count], name.live[count:]
        if rows := {row: -1 for generation_of, row in taken if generation_of == generation}:
            self._commit(generation, Update(rows))

    def hold(self) -> None:
        """Take, move or release a hold."""
        hold = self.chance.choice(HOLDS)
        release = self.likely(0.3)
        version = None if release or self.likely(0.7) else self._some_version()
        body = {"dataset": self.name.name, "hold": hold, "lease_seconds": HOLD_SECONDS}
        body |= {"release": True} if release else {} if version is None else {"version": version}
        call = HoldVersion(next(self.shared.numbers), hold, version, release)
        self.made(
            call,
            lambda: self.action("hold", body),
            told=lambda answer: "ok" if release else answer["version"],
        )

    def read(self) -> None:
        """Read a snapshot or changes, at any version."""
        as_of = self._some_version() if self.likely(0.5) else None
        after = self._some_version() if self.likely(0.4) else None
        if as_of is not None and after is not None:
            as_of, after = max(as_of, after), min(as_of, after)
        self.read_within(self.chance.choice((0.02, 3.0, 10.0)), as_of, after)

    def read_within(self, seconds: float, as_of: int | None = None, after: int | None = None) -> object:
        """What a reader gets: :class:`Shown`, ``not found``, ``compacted`` or the error of a read without an answer."""
        call = ReadLog(next(self.shared.numbers), as_of, after)
        history, began = self.name.history, time.monotonic()
        history.begin(call)
        try:
            version, rows = self._rows_of(as_of, after, seconds)
        except Compacted as error:
            self._answered(call, "compacted", error.message[:80])
            self.shared.done["read log: compacted"] += 1
            return "compacted"
        except NotFound as error:
            self._answered(call, "not found", error.message[:80])
            self.shared.done["read log: not found"] += 1
            return "not found"
        except FlightShuffleError as error:
            self.check(error, time.monotonic() - began)
            history.answered(call, lambda _: True, f"no rows: {error.code}: {error.message[:300]}")
            self.shared.done[f"read log: {error.code}"] += 1
            return error
        text = f"version {version} with {len(rows)} rows, of {sum(rows.values())}"
        history.answered(call, lambda answer: self._is_shown(answer, version, rows), text)
        self.shared.done["read log"] += 1
        return version

    def verify(self) -> None:
        """Read a name that no other call uses, if its changelog must be there."""
        must = all(state.log is not None for state in self.name.history.states())
        found: object = None
        for _ in range(5):
            found = self.read_within(HANG_SECONDS)
            if not isinstance(found, FlightShuffleError) or self.shared.killed.is_set():
                break
            time.sleep(0.2)
        if must and isinstance(found, FlightShuffleError):
            raise Unreadable(f"{self.name.name} cannot be read: {found.code}: {found.message}")
        for version in {
            version for state in self.name.history.states() if state.log for _, version in state.log.holds
        }:
            self.read_within(HANG_SECONDS, as_of=version)

    def clear(self) -> None:
        self.drop()

    def _generation(self) -> str | None:
        if self.name.generation is None:
            self.create()
        return self.name.generation

    def _commit(self, generation: str, update: Update) -> bool:
        """Commit it, with a transaction once more if there was no answer; whether it was answered."""
        name, number = self.name, next(self.shared.numbers)
        self.shared.updates[number] = update
        transaction = None
        if self.likely(0.5):
            # What is retracted must have been put, and not another client's rows under the same number.
            id_ = f"t{self.chance.randrange(2) if name.rule == 'latest' else number}"
            transaction = id_, name.versions[id_] + 1
        for _ in range(3 if transaction else 1):
            call = Commit(next(self.shared.numbers), number, transaction)
            text = f"{len(update.rows)} rows, {len(update.deleted)} keys"
            made = self.made(
                call,
                lambda: self._send(generation, update, number, transaction),
                text,
                told=lambda answer: answer["version"],
            )
            if made is not None:
                if transaction is not None:
                    name.versions[transaction[0]] = max(name.versions[transaction[0]], transaction[1])
                if made["version"] > MOST_VERSIONS and self.likely(0.2):
                    self.drop()
                return True
        if self.likely(0.5):  # it may have been dropped meanwhile
            self.create()
        return False

    def _send(
        self, generation: str, update: Update, number: int, transaction: tuple[str, int] | None
    ) -> dict[str, Any]:
        command = PutCommand(
            self.name.name,
            producer=0,
            attempt=f"a{number}",
            generation=generation,
            transaction=None if transaction is None else Transaction(*transaction),
            delete=bool(update.deleted),
        )
        table = _table(update)
        patience = self.patience_seconds(0.25)
        with (
            PutStream(self.server, command, table.schema) as stream,
            cancelled_after(stream.cancel, patience),
        ):
            for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
                stream.write(batch)
            return stream.commit()

    def _rows_of(self, as_of: int | None, after: int | None, seconds: float) -> tuple[int, Counter[Row]]:
        """The version, and each row with its count."""
        asked = {"as_of": as_of, "after": after}
        body = {"dataset": self.name.name, **{key: each for key, each in asked.items() if each is not None}}
        ticket = flight.Ticket(json.dumps(body).encode())
        rows, version, is_whole = Counter[Row](), None, False
        with self.server.calling(self.name.name) as (client, _):
            for chunk in client.do_get(ticket, self.server.call_options(seconds)):
                said = json.loads(chunk.app_metadata.to_pybytes())
                if version not in (None, said["version"]) or is_whole:
                    raise WrongRows(f"{self.name.name}: a read of one version gives {said} after {version}")
                version, is_whole = said["version"], said.get("last", False)
                columns = [column.to_pylist() for column in chunk.data.columns]
                counts = columns.pop() if after is not None else [1] * chunk.data.num_rows
                for row, count in zip(zip(*columns, strict=True), counts, strict=True):
                    rows[row] += count
        if not is_whole or version is None:
            raise BrokenStream("the stream ended before its last message")
        return version, rows

    def _is_shown(self, answer: object, version: int, rows: Mapping[Row, int]) -> bool:
        return (
            isinstance(answer, Shown)
            and answer.version == version
            and self.name.contents.shown(answer) == rows
        )

    def _some_version(self) -> int:
        states = [state.log for state in self.name.history.states() if state.log is not None]
        upper = max((len(log.commits) for log in states), default=0)
        held = [version for log in states for _, version in log.holds]
        versions: list[int] = [*held, upper, max(0, upper - 1), self.chance.randint(0, upper)]
        return self.chance.choice(versions)

    def _rows(self) -> list[Row]:
        low, high, _ = self.chance.choices(_SIZES, [share for *_, share in _SIZES])[0]
        count = self.chance.randint(low, high)
        first = next(self.shared.times) * 100_000
        # Each time is one row's alone; an earlier one may come later.
        return [
            (
                self.chance.randrange(max(200, count)),
                self.chance.randrange(1 << 20) << 40 | first + number,
                first + number,
            )
            for number in range(count)
        ]


def _table(update: Update) -> pa.Table:
    if update.deleted:
        return pa.table({"key": pa.array(sorted(update.deleted), pa.int64())})
    keys, times, values = zip(*update.rows, strict=True)
    columns = [pa.array(each, pa.int64()) for each in (keys, times, values)]
    if set(update.rows.values()) == {1}:
        return pa.table(columns, schema=SCHEMA)
    return pa.table([*columns, pa.array(list(update.rows.values()), pa.int64())], schema=SIGNED)
