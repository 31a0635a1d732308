"""The torture: random calls that overlap and are given up, on a server with little memory that is killed again and
again, against a model of what it acknowledged.

Guarantee: a run ends with :attr:`Torture.faults` empty only if for each name there is an order of the calls, each at a
moment between its begin and its answer, that explains every answer, every row that a reader got, and what was there
after each end of the process (``name_model``, ``call_history``); if every call was answered within ``HANG_SECONDS``;
if every server started, answered its health check, logged none of ``LOGGED_FAULTS`` and took no more memory than its
limit and ``CONSTANT_BYTES``; and if one whose datasets were all dropped held nothing.

A life of a server
    Some seconds of traffic by ``WORKERS`` clients and ``SLOW_READERS``; in some lives the disk is full or fails for
    moments (``_TROUBLES``). Then SIGKILL, at a random moment or soon after a call was given up, or SIGTERM, or SIGKILL
    after every name was read or dropped, or the loss of the machine's power, which takes back what was not synced. Then
    a new server on the same directory, with other limits; every name is read before the traffic goes on.

What it uses
    Streams and shuffles, durable and not, staged writes, changelogs of two rules, a source, which is gone with its
    server and the same when it is made again, and datasets whose retention counts readers, or seconds.

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
from pyarrow import parquet

from flight_server.protocol import FlightShuffleError, Retention
from spark_client.connection import RemoteServer, Timeouts, Writing
from tests.load import marked_rows
from tests.load.cleared import clear
from tests.load.torture_calls import HANG_SECONDS, Calls, Hang, Name, Shared, Unreadable
from tests.load.torture_jobs import Jobs
from tests.load.torture_logs import LogCalls, LogName
from tests.support.faulty_disk import FaultyServer
from tests.support.proxy import Proxy
from tests.support.ram_directory import ram_directory

MIB = 1 << 20
MOST_MEMORY_BYTES = 64 * MIB
# The process itself, the libraries' own buffers and holes in the heap.
CONSTANT_BYTES = 224 * MIB
NAMES, WORKERS, SLOW_READERS = 14, 8, 2
TROUBLE_SHARE = 0.4
"""The lives with a disk that fails."""
USERS_AT_ONCE = 3
# After a call was given up the server may still work at it; after this, and when nothing waits, it does not.
SETTLED_SECONDS = 0.5
HEALTH_SECONDS = 0.25
DOUBT_SECONDS = 2.0
"""So long after a disk works again a server has written over what it refused."""
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
POWER_LOSS = "loss of power"
_ENDS = {"SIGKILL": 9, POWER_LOSS: 6, "read, then SIGKILL": 5, "SIGTERM": 2, "drop, then SIGKILL": 1}
_AT_ONCE = ("SIGKILL", POWER_LOSS)
"""The ends in the middle of the traffic."""
_WRITES = ("open", "mkdir", "write", "pwrite", "pwritev", "wal_write", "db_write")
_SYNCS = ("fsync", "fdatasync", "wal_sync", "db_sync")
_TROUBLES = (
    dict.fromkeys(_WRITES, "ENOSPC"),
    dict.fromkeys((*_WRITES, *_SYNCS), "EIO"),
    dict.fromkeys(_SYNCS, "EIO"),
    {"pwritev": "ENOSPC"},
    {"wal_write": "ENOSPC"},
    {"wal_sync": "EIO"},
    {"db_write": "EIO", "db_sync": "EIO"},
    {"rename": "EIO", "unlink": "EIO"},
)
"""See ``faulty_disk``. Reads do not fail: what was acknowledged stays readable."""
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
_RETAINED_VERBS = {"put": 8, "overwrite": 10, "create": 30, "drop": 5, "renew": 2, "read": 45}
_SOURCE_VERBS = {"source": 30, "drop": 10, "renew": 2, "read": 40}
_LOG_VERBS = {"create": 5, "drop": 1, "commit": 35, "take_away": 12, "hold": 12, "read": 30}
_SOURCE_FILES, _SOURCE_ROWS = 3, 4_000


class Torture:
    """One run.

    Args:
        directory: for the server's log and the files of a source; its data is in memory (``ram_directory``).
        faults_wanted: the run ends early with so many.
    """

    def __init__(self, directory: Path, *, seconds: float, seed: int, faults_wanted: int = 1) -> None:
        self.faults: list[str] = []
        self.shared = Shared()
        self.kills = Counter[str]()
        self.longest_health_seconds = 0.0
        self._directory = directory
        self._sources = directory / "sources"
        self.seed = seed
        self._chance = random.Random(seed)
        self._began = time.monotonic()
        self._ends = self._began + seconds
        self._faults_wanted = faults_wanted
        self._lock = threading.Condition()
        self._retired = 0
        self._names = [self._name(index) for index in range(NAMES)]
        self._write_source()
        self._traffic_ends = threading.Event()
        self._process: FaultyServer | None = None

    def _name(self, index: int) -> Name:
        """The name at this place of the list; another one each time."""
        name, began = f"torture/{index}-r{self._retired}", self._began
        match index:
            case 0 | 1:
                return LogName(name, began, "latest", self.shared)
            case 2:
                return LogName(name, began, "all", self.shared)
            case 3:
                return Name(name, began, durable_share=0.5, retention=Retention(readers=2))
            case 4:
                return Name(name, began, durable_share=0.5, retention=Retention(seconds=2.0))
            case 5:
                return SourceName(name, began)
        # Half of the names rarely are durable.
        return Name(name, began, durable_share=(0.05, 0.7)[index % 2])

    def _write_source(self) -> None:
        """Files for sources. Each text names its own row's number, so that a batch may begin anywhere."""
        streams = [marked_rows.stream_number(0, file) for file in range(_SOURCE_FILES)]
        self.shared.source = "rows"
        self.shared.source_rows = self.shared.new_write(self._names[0], dict.fromkeys(streams, _SOURCE_ROWS))
        folder = self._sources / self.shared.source
        folder.mkdir(parents=True)
        for stream in streams:
            rows = marked_rows.batch(self.shared.source_rows, stream, 0, _SOURCE_ROWS)
            texts = [f"{self.shared.source_rows}/{stream}/{row}/{row % 5}" for row in range(_SOURCE_ROWS)]
            table = pa.Table.from_batches([rows]).set_column(4, "text", pa.array(texts))
            parquet.write_table(table, folder / f"{stream}.parquet", row_group_size=_SOURCE_ROWS // 3)

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
        with ram_directory() as self._ram:
            while time.monotonic() < self._ends and not self._must_stop():
                self._life()

    # One server.

    def _life(self) -> None:
        self._traffic_ends.clear()
        self.shared.killed.clear()
        self.shared.over.clear()
        self.shared.disk_doubtful_until = 0.0
        self.shared.disk_keeps_files = False
        faults_before = len(self.faults)
        how = self._chance.choices(list(_ENDS), list(_ENDS.values()))[0]
        if how == POWER_LOSS and not self._ram.is_relative_to("/dev/shm"):
            how = "SIGKILL"  # another file system uses inode numbers again, see ``platter``
        try:
            process = self._started(loses_power=how == POWER_LOSS)
        except RuntimeError as error:
            self._fault(None, f"the server did not start: {error}")
            self._ends = 0
            return
        self._process = process
        assert process.http is not None
        self.shared.http = process.http
        with ExitStack() as stack:
            ways = self._ways(process, stack)
            watchdog = threading.Thread(target=self._watch, args=(process,), name="watchdog")
            watchdog.start()
            try:
                self._verify_all(ways, "after the start")
                self._traffic(process, ways, how)
                if how not in _AT_ONCE:
                    self._verify_all(ways, "at the end of the traffic")
                    self._check_memory(process)
                if how == "drop, then SIGKILL":
                    client = self._client(ways[:2], self._chance)
                    keeps = self.shared.disk_keeps_files
                    self._guarded(
                        client.jobs,
                        lambda: clear(client.calls, ways[0], self._names, process, disk_keeps_files=keeps),
                    )
            finally:
                self._traffic_ends.set()
                watchdog.join()
        self._end(process, "SIGTERM" if how == "SIGTERM" else "SIGKILL", faults_before)
        if how == POWER_LOSS:
            process.lose_power()
        for name in self._names:
            name.crash()

    @property
    def _data_dir(self) -> Path:
        return self._ram / "data"

    def _started(self, *, loses_power: bool) -> FaultyServer:
        """A new server. RuntimeError if it does not start."""
        options = self._options()
        try:
            return FaultyServer.start(self._data_dir, loses_power=loses_power, **options)
        except RuntimeError as error:
            # What is recovered must have room in memory: a smaller limit than the last server's may be too small.
            if "or raise --memory-limit" not in str(error):
                raise
            options["memory_limit"] = MOST_MEMORY_BYTES
            return FaultyServer.start(self._data_dir, loses_power=loses_power, **options)

    def _options(self) -> dict[str, Any]:
        chance = self._chance
        return {
            "source_roots": self._sources,
            "memory_limit": chance.choice((16 * MIB, 24 * MIB, 32 * MIB, MOST_MEMORY_BYTES)),
            "segment_size": chance.choice((1 << 18, 1 << 20, 4 << 20)),
            "disk_limit": chance.choice((None, None, 64 * MIB, 256 * MIB)),
            "budget_deadline_seconds": 4,
            "slow_seconds": chance.choice((0.0, 0.01, 0.1)),
            "stall_seconds": 5,
            "drain_grace_seconds": 1,
            "keepalive_seconds": 2,
        }

    def _ways(self, process: FaultyServer, stack: ExitStack) -> list[RemoteServer]:
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

    def _traffic(self, process: FaultyServer, ways: list[RemoteServer], how: str) -> None:
        """Let the clients work for some seconds. Where the server ends ``_AT_ONCE``, it has ended then."""
        chance = self._chance
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
        trouble = _Trouble(process, chance, self.shared) if chance.random() < TROUBLE_SHARE else None
        while (left := ends - time.monotonic()) > 0 and not self._must_stop():
            time.sleep(min(left, 0.1))
            if chance.random() < 0.05:
                self._proxy.cut()
            if trouble is not None:
                trouble.tick()
        if how in _AT_ONCE:
            if wants_given_up:
                self.shared.gave_up.clear()
                self.shared.gave_up.wait(1.0)
                time.sleep(chance.choice((0.0, 0.003, 0.02, 0.3)))
            self.shared.over.set()
            stop.set()
            self._traffic_ends.set()
            self.shared.killed.set()
            process.kill()
            self.kills[how] += 1
        process.heal()
        stop.set()
        self.shared.over.set()
        deadline = time.monotonic() + HANG_SECONDS * 2
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            self._fault(None, f"clients do not end: {_stacks(None)}")
            self.shared.killed.set()
            process.kill()

    def _check_memory(self, process: FaultyServer) -> None:
        most_bytes = int(process.ready["memory_limit_bytes"]) + CONSTANT_BYTES
        if process.returncode is None and (taken_bytes := process.peak_rss_bytes()) > most_bytes:
            self._fault(
                None,
                f"the server has taken {taken_bytes >> 20} MiB, and at most {most_bytes >> 20} are right",
            )

    def _end(self, process: FaultyServer, how: str, faults_before: int) -> None:
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

    def _verify_all(self, ways: list[RemoteServer], when: str) -> None:
        """Read every name, while there is no other traffic."""
        client = self._client(ways[:2], self._chance)
        for name in list(self._names):
            name.history.note(f"read {when}")
            calls = client.calls(name)
            self._guarded(calls, partial(self._verify, calls, HANG_SECONDS))

    # The clients.

    def _work(
        self, ways: list[RemoteServer], chance: random.Random, stop: threading.Event, *, slowly: bool
    ) -> None:
        client = self._client(ways, chance)
        while (name := self._take(chance, stop)) is not None:
            calls, verbs = client.calls(name), _verbs(name)
            is_log = isinstance(name, LogName)
            verb = (
                "read_slowly"
                if slowly and not is_log
                else chance.choices(list(verbs), list(verbs.values()))[0]
            )
            try:
                if name.alone:
                    self._guarded(calls, partial(self._verify, calls, 5.0))
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

    def _client(self, ways: list[RemoteServer], chance: random.Random) -> _Client:
        return _Client(Jobs(self.shared, ways, chance), LogCalls(self.shared, ways, chance))

    def _verify(self, calls: Jobs | LogCalls, patience_seconds: float) -> None:
        if self._settled(calls, patience_seconds):
            calls.verify()

    def _settled(self, calls: Calls, patience_seconds: float) -> bool:
        """Wait until the server works no more at calls of this name that were given up; whether it does."""
        name, deadline = calls.name, time.monotonic() + patience_seconds
        waits: Any = None
        while time.monotonic() < deadline:
            if not name.history.given_up:
                return True
            with suppress(FlightShuffleError):
                waits = calls.server.action("why", {"dataset": name.name}).get("waits")
                settled_at = max(
                    name.history.last_given_up + SETTLED_SECONDS, self.shared.disk_doubtful_until
                )
                if not waits and time.monotonic() > settled_at:
                    name.history.settle()
                    return True
            if self.shared.killed.is_set():
                return False
            time.sleep(0.05)
        self.done["not settled"] += 1
        name.history.note(f"not settled: {waits}")
        return False

    # Faults.

    def _guarded(self, calls: Calls, work: Callable[[], object]) -> None:
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
                self._retired += 1
                index = self._names.index(name)
                self._names[index] = self._name(index)

    def _must_stop(self) -> bool:
        return len(self.faults) >= self._faults_wanted

    def _watch(self, process: FaultyServer) -> None:
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


class SourceName(Name):
    """A name of sources."""


@dataclass(frozen=True)
class _Client:
    """The calls of one client, by what a name is for."""

    jobs: Jobs
    logs: LogCalls

    def calls(self, name: Name) -> Jobs | LogCalls:
        """For this name, from now on."""
        calls = self.logs if isinstance(name, LogName) else self.jobs
        calls.use(name)
        return calls


class _Trouble:
    """A disk that is full, or fails, for moments."""

    def __init__(self, process: FaultyServer, chance: random.Random, shared: Shared) -> None:
        self._process = process
        self._shared = shared
        self._chance = chance
        self._until = 0.0

    def tick(self) -> None:
        """Begin or end a moment, by chance."""
        chance = self._chance
        if self._until and time.monotonic() > self._until:
            self._until = 0.0
            self._process.heal()
        elif not self._until and chance.random() < 0.2:
            self._until = time.monotonic() + chance.choice((0.05, 0.3, 1.5))
            functions = chance.choice(_TROUBLES)
            if not functions.keys().isdisjoint(_SYNCS):
                self._shared.disk_doubtful_until = self._until + DOUBT_SECONDS
            self._shared.disk_keeps_files |= "unlink" in functions
            self._process.fail(**functions)


def _verbs(name: Name) -> dict[str, int]:
    """How often each of a client's methods is called for it."""
    if isinstance(name, LogName):
        return _LOG_VERBS
    if isinstance(name, SourceName):
        return _SOURCE_VERBS
    return _VERBS if name.retention == Retention() else _RETAINED_VERBS


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
