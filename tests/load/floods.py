"""Clients that try to keep a server from serving others, each kind in a process of its own.

    python -m tests.load.floods garbage grpc://127.0.0.1:8815 http://127.0.0.1:8816 TOKEN SEED

says ``ready``, floods until its standard input ends, and answers with one JSON number: how many things it has sent.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from tests.load.garbage import RPCS, Garbage
from tests.support.bulk import RawGet
from tests.support.open_calls import OpenCalls, begun_message
from tests.support.raw_flight import RawFlight, Refused, field, path, put_messages

ROOT = Path(__file__).resolve().parents[2]
THREADS = 4
MOST_CONNECTIONS = 1500
CALLS_OF_A_CONNECTION = 300
LARGE_HEADER_BYTES = 60_000
COLUMNS = 20_000
SLOW_BYTES = 32 << 20


@dataclass(frozen=True)
class Victim:
    """A server, and the token of its clients."""

    grpc: str
    http: str
    token: str

    def connect(self, lane: str) -> socket.socket:
        """A connection without a word. Raises OSError."""
        parts = urlsplit(getattr(self, lane))
        return socket.create_connection((parts.hostname, parts.port), 5.0)

    def raw(self, token: str | None = None) -> RawFlight:
        """A client over gRPC."""
        return RawFlight(self.grpc, token=self.token if token is None else token)


Step = Callable[[], object]
Flood = Callable[[Victim, ExitStack, random.Random], Step]
"""Makes the step that a thread repeats; what it holds ends with the stack."""


def _close(things: list[socket.socket] | list[OpenCalls] | list[ExitStack]) -> None:
    for each in things:
        each.close()


def connections(victim: Victim, held: ExitStack, chance: random.Random) -> Step:
    """Connections to both ports that say nothing, the oldest closed for a new one."""
    open_: list[socket.socket] = []
    held.callback(_close, open_)

    def step() -> None:
        if len(open_) >= MOST_CONNECTIONS // THREADS:
            open_.pop(0).close()
        open_.append(victim.connect(chance.choice(["grpc", "http"])))

    return step


def half_open(victim: Victim, held: ExitStack, chance: random.Random) -> Step:
    """Heads of requests that never end, and calls whose message never comes whole."""
    sockets: list[socket.socket] = []
    calls: list[OpenCalls] = []
    held.callback(_close, sockets)
    held.callback(_close, calls)

    def step() -> None:
        if chance.random() < 0.2:
            if len(sockets) >= 200:
                sockets.pop(0).close()
            sockets.append(victim.connect("http"))
            sockets[-1].sendall(b"GET /v1/datasets/d HTTP/1.1\r\nHost: 127.0.0.1\r\nX-")
            return
        if not calls or calls[-1].closed or len(calls[-1].ended) > CALLS_OF_A_CONNECTION:
            if len(calls) >= 5:
                calls.pop(0).close()
            calls.append(OpenCalls(victim.grpc, token=victim.token))
        last = calls[-1]
        last.send(last.begin(chance.choice(RPCS)), begun_message(1 << 20, b"x" * 1000))
        while last.take(0.0):
            pass

    return step


def giant_schemas(victim: Victim, held: ExitStack, chance: random.Random) -> Step:
    """Puts whose schema has thousands of columns."""
    schema = pa.schema([(f"column {number}", pa.int8()) for number in range(COLUMNS)])
    (message,) = put_messages(path("giant"), [], schema=schema)
    raw = held.enter_context(victim.raw())
    return lambda: raw.put([message])


def slow_readers(victim: Victim, held: ExitStack, chance: random.Random) -> Step:
    """Readers on both lanes that take the beginning of a large dataset and no more."""
    raw = held.enter_context(victim.raw())
    with suppress(Refused):
        batch = pa.record_batch({"n": np.arange(1 << 17)})
        raw.put(put_messages(path("slow"), [batch] * (SLOW_BYTES // batch.nbytes)))
    open_: list[ExitStack] = []
    held.callback(_close, open_)

    def step() -> None:
        if len(open_) >= 50:
            open_.pop(0).close()
        reader = ExitStack()
        open_.append(reader)
        if chance.random() < 0.5:
            bearer = {"Authorization": f"Bearer {victim.token}"}
            url = f"{victim.http}/v1/datasets/slow"
            reader.enter_context(RawGet(url, headers=bearer, receive_buffer_bytes=64 << 10)).head()
        else:
            call = raw.call("DoGet", field(1, b"slow"))
            reader.callback(call.cancel)
            next(call)

    return step


def actions(victim: Victim, held: ExitStack, chance: random.Random) -> Step:
    """Small calls as fast as they are answered."""
    raw = held.enter_context(victim.raw())
    name = f"a{chance.getrandbits(32)}"
    bodies = [
        ("create", name),
        ("statistics", None),
        ("renew", name),
        ("why", None),
        ("drop", name),
        ("locations", None),
    ]
    turn = count()

    def step() -> None:
        action, dataset = bodies[next(turn) % len(bodies)]
        raw.action(action, {} if dataset is None else {"dataset": dataset})

    return step


def wrong_tokens(victim: Victim, held: ExitStack, chance: random.Random) -> Step:
    """Calls, requests and handshakes of clients that guess."""

    def step() -> None:
        guess = f"{chance.getrandbits(64):x}"
        if chance.random() < 0.4:
            with RawGet(f"{victim.http}/v1/statistics", headers={"Authorization": f"Bearer {guess}"}) as raw:
                raw.answer()
            return
        with victim.raw(guess) as raw:
            for _ in range(20):
                with suppress(Refused):
                    raw.ask("Handshake", iter([]))
                with suppress(Refused):
                    raw.action("statistics")

    return step


def large_headers(victim: Victim, held: ExitStack, chance: random.Random) -> Step:
    """Requests whose head is as large as it may be, and larger."""

    def step() -> None:
        size = chance.choice([7_000, LARGE_HEADER_BYTES, 10 * LARGE_HEADER_BYTES])
        if chance.random() < 0.5:
            with victim.connect("http") as connection:
                head = f"GET /v1/datasets HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: {'x' * size}\r\n\r\n"
                connection.sendall(head.encode())
                connection.recv(1000)
            return
        with victim.raw("x" * size) as raw:
            raw.action("locations")

    return step


def many_datasets(victim: Victim, held: ExitStack, chance: random.Random) -> Step:
    """Datasets that are created and never used."""
    raw = held.enter_context(victim.raw())
    return lambda: raw.action("create", {"dataset": f"m{chance.getrandbits(40)}", "partitions": 100})


def garbage(victim: Victim, held: ExitStack, chance: random.Random) -> Step:
    """Random bytes, real requests with changes, and HTTP/2 frames that fit nowhere."""
    return Garbage(victim.connect, held.enter_context(victim.raw()), victim.token, chance).send


FLOODS: dict[str, Flood] = {
    each.__name__: each
    for each in (
        connections,
        half_open,
        giant_schemas,
        slow_readers,
        actions,
        wrong_tokens,
        large_headers,
        many_datasets,
        garbage,
    )
}


class FloodProcess:
    """One flood; also a context manager that ends it."""

    def __init__(self, name: str, grpc: str, http: str, token: str, seed: int = 1) -> None:
        self.sent = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.load.floods", name, grpc, http, token, str(seed)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def end(self) -> None:
        """End it; ``sent`` is then how many things it has sent."""
        answer, _ = self._process.communicate()
        self.sent = int(json.loads(answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """See the module's text."""
    name, grpc, http, token, seed = sys.argv[1:]
    victim, ended, sent = Victim(grpc, http, token), threading.Event(), [0] * THREADS

    def one(number: int) -> None:
        with ExitStack() as held:
            step = FLOODS[name](victim, held, random.Random(int(seed) * THREADS + number))
            while not ended.is_set():
                # The server refuses, closes and is silent: any of it is right here.
                with suppress(Exception):
                    step()
                sent[number] += 1

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join(10.0)
    print(json.dumps(sum(sent)), flush=True)


if __name__ == "__main__":
    main()
