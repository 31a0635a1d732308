"""The torture: random calls that overlap and are given up, on a server with little memory that is killed again and
again, against a model of what it acknowledged.

Guarantee: a run ends with :attr:`Torture.faults` empty only if for each name there is an order of the calls, each at a
moment between its begin and its answer, that explains every answer, every row that a reader got, and what was there
after each end of the process (``name_model``, ``call_history``); if every call was answered within ``HANG_SECONDS``;
if every server started, answered its health check, logged none of ``LOGGED_FAULTS`` and took no more memory than its
limit and ``CONSTANT_BYTES``; and if one whose datasets were all dropped held nothing.

A life of a server
    Some seconds of traffic by ``WORKERS`` clients and ``SLOW_READERS``; then SIGKILL, at a random moment or soon after
    a call was given up, or SIGTERM, or SIGKILL after every name was read or dropped. Then a new server on the same
    directory, with other limits; every name is read before the traffic goes on.

The seed decides what is chosen, not when it happens: a fault may need several runs with its seed.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from flight_server.protocol import FlightShuffleError
from spark_client.connection import RemoteServer, Timeouts, Writing
from tests.load.cleared import clear
from tests.load.torture_calls import HANG_SECONDS, Hang, Name, Shared, Unreadable
from tests.load.torture_jobs import Jobs
from tests.support.forked_server import ForkedServer, ServerFork
from tests.support.proxy import Proxy

MIB = 1 << 20
MOST_MEMORY_BYTES = 64 * MIB
# The process itself, the libraries' own buffers and holes in the heap.
CONSTANT_BYTES = 224 * MIB
NAMES, WORKERS, SLOW_READERS = 10, 8, 2
USERS_AT_ONCE = 3
# After a call was given up the server may still work at it; after this, and when nothing waits, it does not.
SETTLED_SECONDS = 0.5
HEALTH_SECONDS = 0.25
LOGGED_FAULTS = frozenset(
    {
        "background_task_failed",
        "data_damaged",
        "data_quarantined",
        "duty_failed",
        "frame_lost",
        "internal_error",
        "quarantine_incomplete",
        "spiller_failed",
    }
)
_TIMEOUTS = Timeouts(
    connect_seconds=5,
    call_seconds=HANG_SECONDS,
    first_message_seconds=HANG_SECONDS,
    stall_seconds=HANG_SECONDS,
    stream_seconds=HANG_SECONDS,
    tries=2,
)
_ENDS = ("SIGKILL", "read, then SIGKILL", "SIGTERM", "drop, then SIGKILL")
_VERBS = {
    "put": 8,
    "overwrite": 12,
    "create": 8,
    "shuffle": 7,
    "staged": 30,
    "drop": 10,
    "renew": 2,
    "read": 20,
}


class Torture:
    """One run.

    Args:
        directory: for the server's data and log.
        faults_wanted: the run ends early with so many.
    """

    def __init__(self, directory: Path, *, seconds: float, seed: int, faults_wanted: int = 1) -> None:
        self.faults: list[str] = []
        self.shared = Shared()
        self.kills = Counter[str]()
        self.longest_health_seconds = 0.0
        self._directory = directory
        self.seed = seed
        self._chance = random.Random(seed)
        self._began = time.monotonic()
        self._ends = self._began + seconds
        self._faults_wanted = faults_wanted
        self._lock = threading.Condition()
        self._names = [self._name(index) for index in range(NAMES)]
        self._retired: set[str] = set()
        self._traffic_ends = threading.Event()
        self._process: ForkedServer | None = None

    def _name(self, number: int) -> Name:
        # Half of the names rarely are durable.
        return Name(f"torture/n{number}", self._began, durable_share=(0.05, 0.7)[number % 2])

    @property
    def done(self) -> Counter[str]:
        """How often each kind of call had each kind of answer."""
        return self.shared.done

    def summary(self) -> str:
        """What was done, for a reader."""
        ends = ", ".join(f"{count} {how}" for how, count in sorted(self.kills.items()))
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.done.items()))
        return (
            f"seed {self.seed}: {time.monotonic() - self._began:.0f} s, {ends}, {len(self.faults)} faults; "
            f"the slowest answer to a health check took {self.longest_health_seconds:.2f} s\n{done}"
        )

    def run(self) -> None:
        """Let one server after the other live and die until the time is over."""
        with ServerFork() as self._fork:
            while time.monotonic() < self._ends and not self._must_stop():
                self._life()

    # One server.

    def _life(self) -> None:
        self._traffic_ends.clear()
        self.shared.killed.clear()
        self.shared.over.clear()
        faults_before = len(self.faults)
        try:
            process = self._started()
        except RuntimeError as error:
            self._fault(None, f"the server did not start: {error}")
            self._ends = 0
            return
        self._process = process
        self.shared.http = process.http
        with ExitStack() as stack:
            ways = self._ways(process, stack)
            watchdog = threading.Thread(target=self._watch, args=(process,), name="watchdog")
            watchdog.start()
            try:
                self._verify_all(ways, "after the start")
                how = self._traffic(process, ways)
                if how != "SIGKILL":
                    self._verify_all(ways, "at the end of the traffic")
                    self._check_memory(process)
                if how == "drop, then SIGKILL":
                    calls = Jobs(self.shared, ways[:2], self._chance)
                    self._guarded(calls, lambda: clear(calls, ways[0], self._names, process))
            finally:
                self._traffic_ends.set()
                watchdog.join()
        self._end(process, "SIGTERM" if how == "SIGTERM" else "SIGKILL", faults_before)

    def _started(self) -> ForkedServer:
        """A new server. RuntimeError if it does not start."""
        options = self._options()
        log, data_dir = self._directory / "server.log", self._directory / "data"
        try:
            return self._fork.start(log, data_dir=data_dir, **options)
        except RuntimeError as error:
            # What is recovered must have room in memory: a smaller limit than the last server's may be too small.
            if "or raise --memory-limit" not in str(error):
                raise
            return self._fork.start(log, data_dir=data_dir, **options | {"memory_limit": MOST_MEMORY_BYTES})

    def _options(self) -> dict[str, Any]:
        chance = self._chance
        return {
            "memory_limit": chance.choice((16 * MIB, 24 * MIB, 32 * MIB, MOST_MEMORY_BYTES)),
            "segment_size": chance.choice((1 << 18, 1 << 20, 4 << 20)),
            "disk_limit": chance.choice((None, None, 64 * MIB, 256 * MIB)),
            "budget_deadline_seconds": 4,
            "disk_seconds": chance.choice((0.0, 0.01, 0.1)),
            "stall_seconds": 5,
            "drain_grace_seconds": 1,
            "keepalive_seconds": 2,
        }

    def _ways(self, process: ForkedServer, stack: ExitStack) -> list[RemoteServer]:
        """Ways to the server: both lanes for puts, and one whose connections are reset."""
        proxy = stack.enter_context(Proxy.to(process.location))
        self._proxy = proxy
        ways = [
            RemoteServer(process.location, timeouts=_TIMEOUTS, writing=Writing(lane="bulk")),
            RemoteServer(process.location, timeouts=_TIMEOUTS, writing=Writing(lane="grpc")),
            RemoteServer(proxy.location, timeouts=_TIMEOUTS, writing=Writing(lane="grpc")),
        ]
        for way in ways:
            stack.callback(way.close)
        return ways

    def _traffic(self, process: ForkedServer, ways: list[RemoteServer]) -> str:
        """Let the clients work for some seconds; how the server ends: has ended, if it is killed meanwhile."""
        chance = self._chance
        how = chance.choices(_ENDS, (12, 5, 2, 1))[0]
        life_seconds = min(chance.uniform(0.5, 7), max(0.5, self._ends - time.monotonic()))
        ends = time.monotonic() + life_seconds
        stop = threading.Event()
        threads = [
            threading.Thread(
                target=self._work,
                args=(ways, random.Random(chance.random()), stop),
                kwargs={"slowly": index >= WORKERS},
                name=f"client-{index}",
            )
            for index in range(WORKERS + SLOW_READERS)
        ]
        for thread in threads:
            thread.start()
        wants_given_up = chance.random() < 0.5
        while (left := ends - time.monotonic()) > 0 and not self._must_stop():
            time.sleep(min(left, 0.1))
            if chance.random() < 0.05:
                self._proxy.cut()
        if how == "SIGKILL":
            if wants_given_up:
                self.shared.gave_up.clear()
                self.shared.gave_up.wait(1.0)
                time.sleep(chance.choice((0.0, 0.003, 0.02, 0.3)))
            self.shared.over.set()
            stop.set()
            self._traffic_ends.set()
            self.shared.killed.set()
            process.kill()
            self.kills["SIGKILL"] += 1
        stop.set()
        self.shared.over.set()
        deadline = time.monotonic() + HANG_SECONDS * 2
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            self._fault(None, f"clients do not end: {_stacks(None)}")
            self.shared.killed.set()
            process.kill()
        return how

    def _check_memory(self, process: ForkedServer) -> None:
        most_bytes = int(process.ready["memory_limit_bytes"]) + CONSTANT_BYTES
        if process.returncode is None and (taken_bytes := process.peak_rss_bytes()) > most_bytes:
            self._fault(
                None,
                f"the server has taken {taken_bytes >> 20} MiB, and at most {most_bytes >> 20} are right",
            )

    def _end(self, process: ForkedServer, how: str, faults_before: int) -> None:
        if process.returncode is None:
            self.kills[how] += 1
            if how == "SIGTERM":
                try:
                    if (code := process.terminate()) != 0:
                        self._fault(None, f"SIGTERM ended the server with {code}:\n{process.tail()}")
                except RuntimeError as error:
                    self._fault(None, f"SIGTERM does not end the server: {error}\n{_stacks(process.pid)}")
        process.close()
        logged = [line for event in LOGGED_FAULTS for line in process.events(event)]
        if logged and len(self.faults) == faults_before:  # else that is what it logged
            self._fault(None, f"the server has logged {logged[:3]}")
        for name in self._names:
            name.history.crash()

    def _verify_all(self, ways: list[RemoteServer], when: str) -> None:
        """Read every name, while there is no other traffic."""
        calls = Jobs(self.shared, ways[:2], self._chance)
        for name in list(self._names):
            name.history.note(f"read {when}")
            calls.use(name)
            self._guarded(calls, lambda: self._verify(calls, HANG_SECONDS))

    # The clients.

    def _work(
        self, ways: list[RemoteServer], chance: random.Random, stop: threading.Event, *, slowly: bool
    ) -> None:
        calls = Jobs(self.shared, ways, chance)
        while (name := self._take(chance, stop)) is not None:
            calls.use(name)
            verb = "read_slowly" if slowly else chance.choices(list(_VERBS), list(_VERBS.values()))[0]
            try:
                if name.alone:
                    self._guarded(calls, lambda: self._verify(calls, 5.0))
                else:
                    self._guarded(calls, getattr(calls, verb))
            finally:
                self._give_back(name)

    def _take(self, chance: random.Random, stop: threading.Event) -> Name | None:
        """A name to use, alone if many calls of it were given up or by chance; None at the end of the traffic."""
        with self._lock:
            while not stop.is_set() and not self._must_stop():
                name = chance.choice(self._names)
                uncertain = name.history.given_up >= 4 or name.history.worlds > 200
                if not name.users and (uncertain or (name.history.given_up and chance.random() < 0.2)):
                    name.alone = True
                if (name.alone and not name.users) or (
                    not name.alone and name.users < USERS_AT_ONCE and not uncertain
                ):
                    name.users += 1
                    return name
                self._lock.wait(0.02)
        return None

    def _give_back(self, name: Name) -> None:
        with self._lock:
            name.users -= 1
            name.alone = False
            self._lock.notify_all()

    def _verify(self, calls: Jobs, patience_seconds: float) -> None:
        if self._settled(calls, patience_seconds):
            calls.verify()

    def _settled(self, calls: Jobs, patience_seconds: float) -> bool:
        """Wait until the server works no more at calls of this name that were given up; whether it does."""
        name, deadline = calls.name, time.monotonic() + patience_seconds
        waits: Any = None
        while time.monotonic() < deadline:
            if not name.history.given_up:
                return True
            with suppress(FlightShuffleError):
                waits = calls.server.action("why", {"dataset": name.name}).get("waits")
                if not waits and time.monotonic() > name.history.last_given_up + SETTLED_SECONDS:
                    name.history.settle()
                    return True
            if self.shared.killed.is_set():
                return False
            time.sleep(0.05)
        self.done["not settled"] += 1
        name.history.note(f"not settled: {waits}")
        return False

    # Faults.

    def _guarded(self, calls: Jobs, work: Callable[[], object]) -> None:
        """Do something with a name; a fault that it finds is noted, and the name is used no more."""
        try:
            work()
        except Unreadable as fault:
            if not self.shared.killed.is_set():
                self._fault(calls.name, str(fault))
        except Hang as fault:
            assert self._process is not None
            self._fault(calls.name, f"{fault}\n{_stacks(self._process.pid)}")
        except AssertionError as fault:
            self._fault(calls.name, f"{type(fault).__name__}: {fault}")
        except Exception as error:  # noqa: BLE001 - a thread's error would be lost
            self._fault(calls.name, "".join(traceback.format_exception(error)))

    def _fault(self, name: Name | None, text: str) -> None:
        seconds = time.monotonic() - self._began
        log = "" if name is None else "\n" + "\n".join(name.history.log)
        with self._lock:
            kills = sum(self.kills.values())
            self.faults.append(f"seed {self.seed}, after {seconds:.1f} s and {kills} ends: {text}{log}")
            if name is not None and name in self._names:
                self._retired.add(name.name)
                self._names[self._names.index(name)] = self._name(len(self._retired) + NAMES)

    def _must_stop(self) -> bool:
        return len(self.faults) >= self._faults_wanted

    def _watch(self, process: ForkedServer) -> None:
        """Ask the server for its health while there is traffic."""
        while not self._traffic_ends.wait(HEALTH_SECONDS):
            began = time.monotonic()
            try:
                with urlopen(f"{process.http}/healthz", timeout=HANG_SECONDS) as answer:
                    answer.read()
            except OSError as error:
                if self._traffic_ends.is_set() or process.returncode is not None:
                    return
                self._fault(None, f"the server stands still: {error}\n{_stacks(process.pid)}")
                self.shared.killed.set()
                process.kill()
                return
            self.longest_health_seconds = max(self.longest_health_seconds, time.monotonic() - began)


def _stacks(pid: int | None) -> str:
    """The stacks of a process, or of this one's clients."""
    if pid is not None:
        spy = Path(sys.executable).with_name("py-spy")
        dumped = subprocess.run(
            [spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=60, check=False
        )
        return dumped.stdout + dumped.stderr
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
