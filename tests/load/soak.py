"""The traffic of the soak: random puts, gets, cancels, kills and drops, and what must hold throughout.

Every reader that reaches the end checks that it got the numbers 0 to n-1 once each and in order, where n is the total
in the stream's trailers. Every other end of a reader must be one of the service's own errors.
Clients that are killed run in processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from flight_server.protocol.errors import FlightShuffleError
from spark_client import ShuffleClient
from tests.support.server_process import ServerProcess

NAMES = [f"soak/{number}" for number in range(12)]
WORKERS = 8
# What may go wrong for a client of names that others write, drop and overwrite at the same time.
EXPECTED = (FlightShuffleError, pa.ArrowException, KeyError)

_VICTIM = """
import sys, time
import numpy as np, pyarrow as pa
from pyarrow import flight
location, name, verb = sys.argv[1:]
client = flight.connect(location)
batch = pa.record_batch([pa.array(np.arange(50_000))], names=["n"])
print("running", flush=True)
try:
    if verb == "put":
        writer, _ = client.do_put(flight.FlightDescriptor.for_command(
            b'{"dataset":"%s","mode":"overwrite"}' % name.encode()), batch.schema)
        while True:
            writer.write_batch(batch)
            time.sleep(0.002)
    for _ in client.do_get(flight.Ticket(name.encode())):
        time.sleep(0.01)
except Exception:
    pass
time.sleep(30)
"""


def numbers(start: int, count: int) -> pa.RecordBatch:
    """Consecutive numbers, so that a gap, a repetition or a stranger's row shows."""
    return pa.record_batch([pa.array(np.arange(start, start + count))], names=["n"])


@dataclass
class Soak:
    """One run against one server."""

    server: ServerProcess
    seconds: float
    seed: int
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Keep the workers busy until the time is over."""
        deadline = asyncio.get_running_loop().time() + self.seconds
        async with asyncio.TaskGroup() as group:
            for worker in range(WORKERS):
                group.create_task(self._work(random.Random(self.seed * 1000 + worker), deadline))

    async def _work(self, chance: random.Random, deadline: float) -> None:
        verbs: list[tuple[Callable[[random.Random], Awaitable[None]], int]] = [
            (self._put, 8),
            (self._get, 10),
            (self._cancel, 4),
            (self._broken_put, 3),
            (self._shuffle, 4),
            (self._drop, 4),
            (self._kill, 1),
        ]
        actions, weights = zip(*verbs, strict=True)
        while asyncio.get_running_loop().time() < deadline:
            action = chance.choices(actions, weights)[0]
            try:
                await action(chance)
                self.done[action.__name__.strip("_")] += 1
            except EXPECTED:
                self.done[f"{action.__name__.strip('_')} refused"] += 1

    async def _put(self, chance: random.Random) -> None:
        count, rows = chance.randint(0, 40), chance.choice([1, 100, 10_000, 60_000])

        def put() -> None:
            with ShuffleClient(self.server.location) as client:
                batches = (numbers(number * rows, rows) for number in range(count))
                schema = numbers(0, 1).schema
                mode = chance.choice(["create", "overwrite"])
                client.put(
                    chance.choice(NAMES), pa.RecordBatchReader.from_batches(schema, batches), mode=mode
                )

        await asyncio.to_thread(put)

    async def _get(self, chance: random.Random) -> None:
        def get() -> pa.Table:
            with ShuffleClient(self.server.location) as client:
                return client.get(chance.choice(NAMES), ordered=True).read_all()

        self._check(await asyncio.to_thread(get))

    async def _cancel(self, chance: random.Random) -> None:
        def read_some() -> None:
            with flight.connect(self.server.location) as client:
                stream = client.do_get(flight.Ticket(chance.choice(NAMES).encode()))
                for count, _ in enumerate(stream):
                    if count >= 2:
                        stream.cancel()
                        return

        await asyncio.to_thread(read_some)

    async def _broken_put(self, chance: random.Random) -> None:
        """A client whose source of batches fails in the middle."""

        def source() -> Any:
            yield numbers(0, 20_000)
            raise OSError("the source broke")

        def put() -> None:
            with ShuffleClient(self.server.location) as client:
                reader = pa.RecordBatchReader.from_batches(numbers(0, 1).schema, source())
                try:
                    client.put(chance.choice(NAMES), reader, mode="overwrite")
                except OSError:
                    return
                self.wrong.append("a put whose source broke was taken for complete")

        await asyncio.to_thread(put)

    async def _shuffle(self, chance: random.Random) -> None:
        """Producers with two attempts each, of which the driver accepts one."""
        name = f"soak/shuffle-{chance.getrandbits(32):08x}"
        producers, partitions, rows = chance.randint(1, 3), chance.randint(1, 4), chance.choice([10, 5_000])
        await asyncio.to_thread(self._run_shuffle, name, producers, partitions, rows)

    def _run_shuffle(self, name: str, producers: int, partitions: int, rows: int) -> None:
        with flight.connect(self.server.location) as client:

            def act(verb: str, **body: Any) -> None:
                list(client.do_action((verb, json.dumps({"dataset": name, **body}).encode())))

            act("create", kind="shuffle", partitions=partitions, lease_seconds=20)
            try:
                for producer in range(producers):
                    for attempt in ("lost", "won"):
                        self._attempt(client, name, (producer, attempt), partitions, rows)
                act("seal", attempts={str(producer): "won" for producer in range(producers)})
                for index in range(partitions):
                    table = client.do_get(flight.Ticket(f"{name}/{index}".encode())).read_all()
                    if table.num_rows != producers * rows:
                        self.wrong.append(f"{name}/{index}: {table.num_rows} rows, not {producers * rows}")
            finally:
                act("drop")

    @staticmethod
    def _attempt(client: Any, name: str, who: tuple[int, str], partitions: int, rows: int) -> None:
        producer, attempt = who
        body = json.dumps({"dataset": name, "producer": producer, "attempt": attempt}).encode()
        batch = numbers(0, rows)
        writer, reader = client.do_put(flight.FlightDescriptor.for_command(body), batch.schema)
        for index in range(partitions):
            writer.write_with_metadata(batch, str(index).encode())
        totals = {"rows": rows * partitions, "frames": partitions}
        writer.write_metadata(json.dumps({"commit": totals}).encode())
        writer.done_writing()
        reader.read()
        writer.close()

    async def _drop(self, chance: random.Random) -> None:
        def drop() -> None:
            with ShuffleClient(self.server.location) as client:
                client.drop(chance.choice(NAMES))

        await asyncio.to_thread(drop)

    async def _kill(self, chance: random.Random) -> None:
        """A client that is gone without a word."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _VICTIM,
            self.server.location,
            chance.choice(NAMES),
            chance.choice(["get", "put"]),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        await process.stdout.readline()
        await asyncio.sleep(chance.random() / 2)
        process.send_signal(signal.SIGKILL)
        await process.wait()

    def _check(self, table: pa.Table) -> None:
        found = table.column("n").to_numpy()
        if not np.array_equal(found, np.arange(len(found))):
            self.wrong.append(f"a reader got {len(found)} rows that are not 0 to {len(found) - 1} in order")
