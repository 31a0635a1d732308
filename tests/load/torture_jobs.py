"""What the torture does with shuffles and staged writes, as a driver and its tasks do it: created, written by several
producers with several attempts each, sealed or dropped; each step may be given up and made once more.
"""

from __future__ import annotations

from typing import Any

from flight_server.protocol import (
    CreateRequest,
    FlightShuffleError,
    Kind,
    PutCommand,
    SealRequest,
    Transaction,
    WriteMode,
)
from tests.load import marked_rows, name_model
from tests.load.marked_rows import Rows
from tests.load.torture_calls import SCHEMA_TEXT, Calls, created

PARTITIONS, STAGED_PARTITIONS = 4, 100
LEASE_SECONDS = 1.5


class Jobs(Calls):
    """A client that also writes shuffles."""

    def create(self) -> None:
        """A stream with options of its own, then puts into its partitions."""
        if self._is_there() and self.likely(0.8):
            self.overwrite()
            return
        durable, leased = self.likely(self.name.durable_share), self.likely(0.1)
        partitions = self.chance.choice((1, 1, 2, 3))
        if self.name.retention.seconds is not None:
            partitions = 1  # its retention counts from the last seal
        call = name_model.Create(
            next(self.shared.numbers), "stream", durable, leased, partitions, self.name.retention.seconds
        )
        if self._create(call) is not None:
            for index in self.chance.sample(range(partitions), partitions):
                if self.likely(0.9):
                    self.put(index)

    def source(self) -> None:
        """The rows of files that the server pulls, always the same."""
        call = name_model.Create(
            next(self.shared.numbers), "source", durable=False, leased=False, rows=self.shared.source_rows
        )
        request = CreateRequest(
            self.name.name, Kind.SOURCE, source={"format": "parquet", "path": self.shared.source}
        )
        self.made(call, lambda: self.action("create", request.encode()), told=created)

    def shuffle(self) -> None:
        """A shuffle that has the name from the beginning."""
        rows = self._rows_of_streams()
        write = self.shared.new_write(self.name, rows)
        durable, leased = self.likely(self.name.durable_share), self.likely(0.1)
        call = name_model.Create(write, "shuffle", durable, leased, PARTITIONS)
        answer = self._create(call)
        # The write is ended by its seal only.
        self.name.ended[write] = None
        if answer is not None and answer["created"]:
            _Job(self, write, rows, str(answer["generation"]), None, staged=False).run()

    def staged(self) -> None:
        """A staged write."""
        # Nothing can be appended to what is durable.
        shares = (4, 3, 1) if self.name.durable_share > 0.5 else (2, 1, 5)
        mode = self.chance.choices(("overwrite", "new", "append"), shares)[0]
        if mode == "new" and self._is_there() and self.likely(0.8):
            mode = "overwrite"
        rows = self._rows_of_streams()
        write = self.shared.new_write(self.name, rows)
        durable, leased = self.likely(self.name.durable_share), self.likely(0.05)
        transaction = None
        if self.likely(0.4):
            query = f"q{self.chance.randrange(2)}"
            transaction = query, self.name.versions[query] + 1
        for _ in range(3):
            call = name_model.Stage(next(self.shared.numbers), write, mode, durable, leased)
            answer = self._create(call)
            if answer is not None:
                _Job(self, write, rows, str(answer["generation"]), transaction, staged=True).run()
                return

    def clear(self) -> None:
        """Drop the name and its staged writes, of which ``create`` gives the generations once more."""
        self.drop()
        staged = {each.write: each for state in self.name.history.states() for each in state.staged}
        for write, each in staged.items():
            call = name_model.Stage(next(self.shared.numbers), write, each.mode, each.durable, each.leased)
            if (answer := self._create(call)) is not None:
                _Job(self, write, {}, str(answer["generation"]), None, staged=True).drop()

    def _is_there(self) -> bool:
        """Whether the name surely leads to a dataset."""
        return all(state.held is not None for state in self.name.history.states())

    def _create(self, call: name_model.Create | name_model.Stage) -> dict[str, Any] | None:
        staged = isinstance(call, name_model.Stage)
        shuffle = staged or (isinstance(call, name_model.Create) and call.kind == "shuffle")
        request = CreateRequest(
            self.name.name,
            Kind.SHUFFLE if shuffle else Kind.STREAM,
            schema=SCHEMA_TEXT,
            partitions=call.partitions if isinstance(call, name_model.Create) else STAGED_PARTITIONS,
            lease_seconds=LEASE_SECONDS if call.leased else None,
            durable=call.durable,
            retention=self.name.retention,
            mode=WriteMode(call.mode) if isinstance(call, name_model.Stage) else None,
            write=f"w{call.write}" if isinstance(call, name_model.Stage) else None,
        )
        told = None if staged else created
        answer: dict[str, Any] | None = self.made(
            call, lambda: self.action("create", request.encode()), told=told
        )
        return answer

    def _rows_of_streams(self) -> Rows:
        producers, rows = range(self.chance.randint(1, 3)), self.some_rows()
        streams = [
            marked_rows.stream_number(producer, partition)
            for producer in producers
            for partition in self.chance.sample(range(PARTITIONS), self.chance.randint(1, PARTITIONS))
        ]
        return dict.fromkeys(streams, rows // len(streams))


class _Job:
    """One write of a shuffle, after it was created."""

    def __init__(
        self,
        calls: Calls,
        write: int,
        rows: Rows,
        generation: str,
        transaction: tuple[str, int] | None,
        *,
        staged: bool,
    ) -> None:
        self._calls = calls
        self._write = write
        self._rows = rows
        self._generation = generation
        self._transaction = transaction
        self._staged = staged
        self._producers = sorted({stream // 1000 for stream in rows})

    def run(self) -> None:
        """Write it; then seal or drop it, or leave it."""
        calls = self._calls
        accepted: dict[int, str] = {}
        for producer in self._producers:
            if calls.likely(0.15):
                # What is not accepted has the number of no write, so that it is noticed where it shows.
                self._attempt(next(calls.shared.numbers), producer, "lost")
            for attempt in ("a", "b", "c"):
                if self._attempt(self._write, producer, attempt):
                    accepted[producer] = attempt
                    break
        if len(accepted) == len(self._producers) and calls.likely(0.95):
            if self._staged and calls.likely(0.15):
                calls.peek(self._generation)
            if self._seal(accepted):
                return
        if calls.likely(0.7):
            self.drop()

    def _seal(self, accepted: dict[int, str]) -> bool:
        calls = self._calls
        transaction = self._transaction
        partitions = partition_bytes = None
        if self._staged and calls.likely(0.2):
            partition_bytes = 1 << 20
        elif self._staged:
            partitions = PARTITIONS
        request = SealRequest(
            calls.name.name,
            self._generation,
            accepted,
            partitions,
            None if transaction is None else Transaction(*transaction),
            partition_bytes,
        )
        for _ in range(calls.chance.choice((1, 1, 2, 3))):
            call = name_model.Seal(next(calls.shared.numbers), self._write, transaction)
            if calls.made(call, lambda: calls.action("seal", request.encode())) is not None:
                versions = calls.name.versions
                if transaction is not None:
                    versions[transaction[0]] = max(versions[transaction[0]], transaction[1])
                return True
        return False

    def drop(self) -> None:
        calls = self._calls
        only_staged = self._staged and calls.likely(0.5)
        call = name_model.Drop(next(calls.shared.numbers), self._write, only_staged)
        body = {"dataset": calls.name.name, "generation": self._generation, "staged": only_staged}
        calls.made(call, lambda: calls.action("drop", body))

    def _attempt(self, write: int, producer: int, attempt: str) -> bool:
        """Write one attempt of a producer; whether it has committed."""
        calls = self._calls
        streams = [
            (write, stream, stream % 1000, count)
            for stream, count in self._rows.items()
            if stream // 1000 == producer
        ]
        command = PutCommand(calls.name.name, producer=producer, attempt=attempt, generation=self._generation)
        try:
            calls.send(command, streams)
        except FlightShuffleError as error:
            calls.check(error, 0.0)
            calls.shared.done[f"attempt: {error.code}"] += 1
            return False
        calls.shared.done["attempt"] += 1
        return True
