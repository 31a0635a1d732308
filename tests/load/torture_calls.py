"""The calls of one client of the torture: each is made against the server, and its answer given to its name's history.

Giving up: about a third of the calls that change something end after 1 to 50 ms, by the call's deadline, by a reset of
the connection or by a cancellation. What the server then did is not known.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import (
    BadFrame,
    CorruptFrame,
    DamagedMessage,
    FlightShuffleError,
    InternalError,
    NotFound,
    OutOfBudget,
    PartitionFailed,
    PutCommand,
    Released,
    Retention,
    StaleTicket,
    Ticket,
    Unavailable,
)
from flight_server.protocol.errors import DataQuarantined, from_json
from spark_client.connection import LaneChoice, RemoteServer, TimedOut
from spark_client.lanes import BrokenStream, Closed, PutStream, partition_streams
from tests.load import marked_rows, name_model
from tests.load.call_history import CallHistory
from tests.load.changelog_model import Update
from tests.load.marked_rows import SCHEMA, Rows, Seen, WrongRows
from tests.load.name_model import Call, Found

HANG_SECONDS = 30.0
"""A call without an answer for so long fails the run."""
SCHEMA_TEXT = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
_LANES: tuple[LaneChoice, ...] = ("auto", "grpc", "bulk")
_BATCH_ROWS = (100, 3_000, 28_000)
# From how many rows to how many, and how often.
_SIZES = (
    (0, 0, 6),
    (1, 40, 24),
    (41, 3_000, 30),
    (3_001, 60_000, 26),
    (60_001, 250_000, 8),
    (250_001, 700_000, 2),
)
# No answer of a server may be one of these: they say that it lost or damaged something, or has a bug.
_FAULTS = (InternalError, CorruptFrame, DataQuarantined, BadFrame, DamagedMessage)


class Hang(AssertionError):
    """A call had no answer for ``HANG_SECONDS``."""


class Fault(AssertionError):
    """An error that no server may answer."""


class Unreadable(Fault):
    """What is sealed gave its reader an error."""


class Gone(FlightShuffleError):
    """The name led to a dataset, and that was gone before its end was read."""

    code = "gone"


@dataclass
class Name:
    """One name: its history, who uses it, and what was written to it. ``began``: as for ``CallHistory``."""

    name: str
    began: float
    durable_share: float = 0.0
    retention: Retention = field(default_factory=Retention)
    """Of all that is created under it."""
    history: CallHistory = field(init=False)
    users: int = 0
    alone: bool = False
    """Its one user waits until nothing of it is uncertain."""
    versions: Counter[str] = field(default_factory=Counter)
    """The last version of each id of a transaction."""
    ended: dict[int, float | None] = field(default_factory=dict)
    """When each write was answered, on the monotonic clock; None: not yet, or never."""
    readers: Counter[str] = field(default_factory=Counter)
    """How many reads of each generation have begun, if its retention counts them; of one that was recovered those only
    that had begun before it was sealed."""
    early_readers: Counter[str] = field(default_factory=Counter)
    """Of these, those that had begun before it was sealed."""

    def crash(self) -> None:
        """The server's process has ended."""
        self.history.crash()
        self.readers = self.early_readers.copy()

    def __post_init__(self) -> None:
        self.history = CallHistory(self.name, self.began)


@dataclass
class Shared:
    """What all clients of a run share."""

    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    written: dict[int, Rows] = field(default_factory=dict)
    """The rows of each write that may become visible."""
    updates: dict[int, Update] = field(default_factory=dict)
    """What the commits to changelogs bring."""
    times: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Of these."""
    done: Counter[str] = field(default_factory=Counter)
    source: str = ""
    """The path of files for datasets of kind ``source``, below the directory that servers may read."""
    source_rows: int = 0
    """The write whose rows they have."""
    http: str = ""
    """The present server's address on the bulk lane."""
    gave_up: threading.Event = field(default_factory=threading.Event)
    """Set when a change was given up: a good moment to kill the server."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set at the end of the traffic: no new calls are made."""
    killed: threading.Event = field(default_factory=threading.Event)
    """Set before the server is killed during the traffic."""
    disk_doubtful_until: float = 0.0
    """Until then, on the monotonic clock, a change that was refused may be in a log, where a crash makes it count."""
    disk_keeps_files: bool = False
    """Whether it has refused to remove some: a server deletes those when it starts."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Of what clients count together."""

    def new_write(self, name: Name, rows: Rows) -> int:
        number = next(self.numbers)
        self.written[number] = rows
        name.ended[number] = None
        return number


class Calls:
    """One client, at one name at a time. ``servers`` are ways to the same server."""

    def __init__(self, shared: Shared, servers: list[RemoteServer], chance: random.Random) -> None:
        self.shared = shared
        self.chance = chance
        self._servers = servers
        self.hurries = True
        """Whether calls are given up."""
        self.use(Name("none", 0.0))

    def use(self, name: Name) -> None:
        """Make the next calls for this name, over any of the ways."""
        self.name, self.server = name, self.chance.choice(self._servers)

    def likely(self, share: float) -> bool:
        return self.chance.random() < share

    # Changes.

    def put(self, partition: int = 0, *, overwrites: bool = False) -> bool:
        """Put some rows; whether they were taken."""
        rows = {marked_rows.stream_number(0, partition): self.some_rows()}
        number = self.shared.new_write(self.name, rows)
        call = name_model.Put(number, overwrites, partition, time.monotonic())
        return self.made(call, lambda: self._put(call, rows), f"{rows} rows") is not None

    def overwrite(self) -> None:
        self.put(overwrites=True)

    def drop(self) -> None:
        call = name_model.Drop(next(self.shared.numbers))
        self.made(call, lambda: self.action("drop", {"dataset": self.name.name}))

    def renew(self) -> None:
        call = name_model.Renew(next(self.shared.numbers))
        self.made(call, lambda: self.action("renew", {"dataset": self.name.name}))

    def made(
        self,
        call: Call,
        make: Callable[[], Any],
        said: str = "",
        told: Callable[[Any], object] | None = None,
    ) -> Any:
        """Make a call and tell the history; its answer, None if there was none or it was refused.

        Args:
            told: the model's answer that is in the server's; ``ok`` without it.
        """
        history, what = self.name.history, type(call).__name__.lower()
        if self.hurries and self.shared.over.is_set():
            return None
        history.begin(call, said)
        began = time.monotonic()
        try:
            answer = make()
        except FlightShuffleError as error:
            text = f"{error.code}: {error.message[:300]}"
            self.check(error, time.monotonic() - began)
            if not _is_answer(error) or self._is_doubtful(error):
                history.give_up(call, text)
                self.shared.done[f"{what}: given up"] += 1
                self.shared.gave_up.set()
                return None
            missing = call.sees_absence and isinstance(error, NotFound) and not isinstance(error, StaleTicket)
            self.name.ended[call.number] = time.monotonic()
            self._answered(call, "not found" if missing else "refused", text)
            self.shared.done[f"{what}: {error.code}"] += 1
            return None
        self.name.ended[call.number] = time.monotonic()
        result = "ok" if told is None else told(answer)
        self._answered(call, result, result)
        self.shared.done[what] += 1
        return answer

    def _is_doubtful(self, error: FlightShuffleError) -> bool:
        """Whether a disk that did not sync may have taken what was refused."""
        retryable = isinstance(error, Unavailable | OutOfBudget)
        return retryable and time.monotonic() < self.shared.disk_doubtful_until

    def _answered(self, call: Call, result: object, said: object) -> None:
        self.name.history.answered(call, lambda answer: answer == result, said)

    def check(self, error: FlightShuffleError, seconds: float) -> None:
        """Raise what no server may answer."""
        if isinstance(error, _FAULTS) or type(error) in (FlightShuffleError, PartitionFailed):
            raise Fault(f"{self.name.name}: {type(error).__name__}: {error.message}") from error
        if isinstance(error, TimedOut) and seconds > HANG_SECONDS - 1:
            raise Hang(f"{self.name.name}: no answer for {seconds:.0f} s: {error.message}") from error

    def patience_seconds(self, share: float = 0.35) -> float:
        """The deadline of a call: short in this share of the cases."""
        return self.chance.uniform(0.001, 0.05) if self.hurries and self.likely(share) else HANG_SECONDS

    def action(self, name: str, body: dict[str, Any] | bytes) -> dict[str, Any]:
        # Once: a drop that the client makes again, because its connection was reset, finds nothing to drop.
        return self.server.action(name, body, self.patience_seconds(), once=True)

    def some_rows(self) -> int:
        low, high, _ = self.chance.choices(_SIZES, [share for *_, share in _SIZES])[0]
        return self.chance.randint(low, high)

    def _batch_rows(self, count: int) -> int:
        # Each batch has a dictionary, which takes a KiB of memory for as long as the dataset lives.
        return max(self.chance.choice(_BATCH_ROWS), count // 100)

    def _put(self, call: name_model.Put, rows: Rows) -> object:
        ((stream, count),) = rows.items()
        mode = "overwrite" if call.overwrites else "create"
        command = PutCommand(self.name.name, call.partition, mode=mode)
        if self.likely(0.3):
            self._plain_put(command, call.number, stream, count)
            return "sealed"
        command = replace(command, producer=0, attempt=f"a{call.number}")
        return self.send(command, [(call.number, stream, None, count)])

    def send(
        self, command: PutCommand, streams: Sequence[tuple[int, int, int | None, int]]
    ) -> dict[str, Any]:
        """Put these rows, (write, stream, partition, number of rows), and commit; the answer.

        Raises:
            FlightShuffleError: it was refused, or given up.
        """
        if self.hurries and self.shared.over.is_set():
            raise Closed("the traffic is over")
        patience = self.patience_seconds(0.25)
        with PutStream(self.server, command, SCHEMA) as stream, cancelled_after(stream.cancel, patience):
            for write, number, partition, count in streams:
                for batch in marked_rows.batches(write, number, count, self._batch_rows(count)):
                    stream.write(batch, partition)
            if self.hurries and self.likely(0.03):
                raise Closed("left without a commit")
            return stream.commit()

    def _plain_put(self, command: PutCommand, write: int, stream: int, count: int) -> None:
        """As any Flight client does it: sealed by its clean end."""
        descriptor = flight.FlightDescriptor.for_command(command.encode())
        if command.mode == "create" and self.likely(0.5):
            descriptor = flight.FlightDescriptor.for_path(self.name.name, str(command.partition))
        writer, _, call = self.server.open_put(descriptor, SCHEMA, self.patience_seconds(0.25))
        with call.errors():
            try:
                for batch in marked_rows.batches(write, stream, count, self._batch_rows(count)):
                    writer.write_batch(batch)
            finally:
                # A write fails only when the call has ended; here it says why.
                writer.close()

    # Reads.

    def read(self) -> None:
        """Read all of it at once, or give up soon."""
        self.read_until(time.monotonic() + self.chance.choice((0.02, 1.0, 3.0, 3.0)))

    def read_slowly(self) -> None:
        """Take a frame from time to time."""
        pause = self.chance.choice((0.01, 0.2, 2.0))
        self.read_until(time.monotonic() + self.chance.uniform(2, 8), pause)

    def read_until(self, deadline: float, pause_seconds: float = 0.0) -> object:
        """What a reader gets: the writes that have rows, ``not found``, or the error of a read that gave no answer."""
        call = name_model.Read(next(self.shared.numbers))
        history, began = self.name.history, time.monotonic()
        history.begin(call)
        try:
            if self.likely(0.2) and self.name.retention.readers is None:
                found = self._read_stream(deadline)
            else:
                info = self.server.flight_info(self.name.name, _left(deadline))
                found = self._read(info, deadline, pause_seconds)
        except Released as error:
            history.answered(
                call, lambda answer: isinstance(answer, Found), f"released: {error.message[:80]}"
            )
            self.shared.done["read: released"] += 1
            return "released"
        except NotFound as error:
            self._answered(call, "not found", error.message[:80])
            self.shared.done["read: not found"] += 1
            return "not found"
        except FlightShuffleError as error:
            self.check(error, time.monotonic() - began)
            history.answered(call, lambda _: True, f"no rows: {error.code}: {error.message[:300]}")
            self.shared.done[f"read: {error.code}"] += 1
            return error
        history.answered(call, lambda answer: self._agrees(answer, found, began), found)
        self.shared.done["read"] += 1
        return found

    def _agrees(self, answer: object, found: tuple[int, ...], began: float) -> bool:
        if not isinstance(answer, Found):
            return False
        shown = tuple(write for write in answer.writes if marked_rows.total(self.shared.written[write]))
        if answer.status == "sealed":
            return found == shown
        # The reader has waited for the end of other writes.
        waited = set(found) - set(shown)
        return (
            answer.status == "open"
            and set(shown) <= set(found)
            and all(self._late(write, began) for write in waited)
        )

    def _late(self, write: int, began: float) -> bool:
        ended = self.name.ended.get(write, 0.0)
        return ended is None or ended >= began

    def _read(self, info: flight.FlightInfo, deadline: float, pause_seconds: float) -> tuple[int, ...]:
        seen = Seen()
        lane = self.chance.choice(_LANES)
        generation = json.loads(info.endpoints[0].ticket.ticket)["generation"]
        with self.shared.lock:
            self.name.readers[generation] += 1
            if info.total_records < 0:
                self.name.early_readers[generation] += 1
        for index, stream in enumerate(partition_streams(self.server, info.endpoints, lane=lane)):
            try:
                with cancelled_after(stream.cancel, _left(deadline)):
                    while (run := stream.read_burst()) is not None:
                        for batch in run.batches:
                            seen.add(index, batch)
                        if pause_seconds and self.shared.over.wait(min(pause_seconds, _left(deadline))):
                            raise Closed("the traffic is over")
            except Released as error:
                most = self.name.retention.readers
                if most is None or self.name.readers[generation] <= most:
                    raise Fault(f"{self.name.name}: {error.message}") from error
                raise
            except NotFound as error:
                raise Gone(error.message) from error
            finally:
                stream.close()
        if info.total_records >= 0 and seen.rows != info.total_records:
            raise WrongRows(f"{self.name.name}: {seen.rows} rows came of {info.total_records} announced")
        return seen.writes(self.shared.written)

    def _read_stream(self, deadline: float) -> tuple[int, ...]:
        """Over HTTP, all partitions in one stream."""
        seen = Seen()
        try:
            with urlopen(
                f"{self.shared.http}/v1/datasets/{self.name.name}", timeout=_left(deadline)
            ) as answer:
                for batch in pa.ipc.open_stream(answer):
                    seen.add(0, batch)
                answer.read()  # raises unless the last chunk has come
        except HTTPError as error:
            raise from_json(error.read()) from error
        except (OSError, HTTPException, pa.ArrowException) as error:
            raise BrokenStream(f"the stream broke off: {error!r}") from error
        return seen.writes(self.shared.written)

    def peek(self, generation: str) -> None:
        """Ask for a partition of a generation that is not sealed yet, and leave."""
        ticket = Ticket(self.name.name, self.chance.randrange(100), generation)
        with suppress(FlightShuffleError), self.server.calling() as (client, _):
            client.do_get(flight.Ticket(ticket.encode()), self.server.call_options(0.05)).cancel()

    def verify(self) -> None:
        """Read a name that no other call uses: what is sealed can be read."""
        sealed, found = False, None
        for _ in range(5):
            held = [state.held for state in self.name.history.states()]
            sealed = all(
                each is not None and each.status == "sealed" and not each.leased and each.seconds is None
                for each in held
            )
            found = self.read_until(time.monotonic() + (HANG_SECONDS if sealed else 1.5))
            if not isinstance(found, Unavailable | Gone) or self.shared.killed.is_set():
                break
            time.sleep(0.2)
        if sealed and isinstance(found, FlightShuffleError):
            raise Unreadable(f"{self.name.name} is sealed and cannot be read: {found.code}: {found.message}")


def created(answer: dict[str, Any]) -> str:
    """The model's answer to a ``create``."""
    return "made" if answer["created"] else "there"


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _is_answer(error: FlightShuffleError) -> bool:
    """Whether the server has said that the call has no effect; else it broke off or waits no longer."""
    without = isinstance(error, Closed) or "server" in error.detail
    return not (without or (isinstance(error, Unavailable) and "not dropped yet" in error.message))


@contextmanager
def cancelled_after(cancel: Callable[[], None], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
