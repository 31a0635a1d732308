"""DriverLoop: makes the calls that the :class:`~.dataset_machine.DatasetMachine` asks for, and tells it their ends.

Guarantee: an event of the machine happens under a lock, and no call under it. The calls of an event are made at once,
but those to one server that can wait one after the other: when it does not answer one, the others to it are not made.

Threads
    The first dataset starts two daemon threads. One renews the leases every third of a lease. The other one makes the
    calls of finalizers: a collector runs in any thread and between any two lines of it, also where the thread holds a
    lock, so a finalizer must not wait, take a lock or start a thread. These calls may wait for a server that does not
    answer as often as there are any, while the others' leases go on. An error of a call is logged, and the thread goes
    on; if one could not be started, the next dataset starts it.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from flight_server.protocol import (
    DatasetRequest,
    FlightShuffleError,
    InvalidRequest,
    NotFound,
    SealRequest,
    folder_of,
    index_of,
)
from spark_client.connection import AWAY, TimedOut, Unreachable, refuses
from spark_client.lanes import store_of

from .dataset_machine import DatasetMachine, HeldState, Holder
from .driver_calls import (
    DriverCall,
    Drop,
    Fail,
    FindObject,
    Look,
    Patience,
    PlannedDataset,
    RemoveObjects,
    Renew,
    Report,
    RunJob,
    Seal,
    ServerCall,
)
from .server_list import CALLS_AT_ONCE, ServerList
from .server_table import Presence

BRIEF_SECONDS = 10.0
SILENT_SECONDS = 2.0
"""The deadline of a call that can wait, to a server that did not answer the last one."""
_AWAY = (*AWAY, TimedOut)
_LEFT_OUT = (Presence.SILENT, Presence.LOST)
_log = logging.getLogger(__name__)

Call = Callable[[], object]
Event = Callable[[DatasetMachine], list[DriverCall]]


class End(NamedTuple):
    """What a call that was made at ``asked_seconds`` has ended with. ``is_refused``: the server refuses connections."""

    call: ServerCall
    asked_seconds: float
    answer: Mapping[str, Any]
    error: Exception | None = None
    is_refused: bool = False


class DriverLoop:
    """Thread-safe.

    Args:
        lease_seconds: how long the datasets outlive a driver that died.
        host: an object that must live as long as the datasets, such as an embedded server: the thread refers to it.
    """

    def __init__(self, servers: ServerList, lease_seconds: float, host: object = None) -> None:
        self.servers = servers
        self.lease_seconds = lease_seconds
        self._host = host
        self._machine = DatasetMachine(servers.table)
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._closing: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._threads: dict[Call, threading.Thread] = {}
        self._is_closed = False
        self._kept_alive: dict[str, object] = {}
        self.put_locations: dict[str, tuple[str, ...]] = {}
        """Of each server that was looked at, by its location, where it takes puts on the bulk lane."""

    # Events.

    @contextmanager
    def machine(self) -> Iterator[DatasetMachine]:
        """The machine, for what needs no call."""
        with self._lock:
            yield self._machine

    def act(self, event: Event, run: Callable[[RunJob], Iterable[Report]] | None = None) -> list[End]:
        """Make the calls of the event, and those of their ends; what each has ended with.

        Args:
            run: runs a job's tasks; the reports of those that Spark has accepted. Its InvalidRequest is the user's
                mistake, for which no job runs again.

        Raises:
            FlightShuffleError: the job has failed, or ``run`` raised it.
        """
        with self._lock:
            calls = deque(event(self._machine))
            if self._kept_alive:
                for dataset in self._kept_alive.keys() - self._machine.datasets.keys():
                    del self._kept_alive[dataset]
        ends: list[End] = []
        failure: Exception | None = None
        while calls:
            together: list[ServerCall] = []
            while calls and not isinstance(call := calls[0], RunJob | Fail):
                together.append(call)
                calls.popleft()
            if together:
                ends += self._made(together, calls)
                continue
            match calls.popleft():
                case RunJob() as job:
                    assert run is not None
                    calls += self._ran(job, run)
                case Fail() as fail:
                    failure = fail.error
        if failure is not None:
            raise failure
        return ends

    def write(
        self,
        datasets: Mapping[str, PlannedDataset],
        run: Callable[[RunJob], Iterable[Report]],
        holder: Holder,
        *,
        candidates: Iterable[str] = (),
        reads: Iterable[str] = (),
    ) -> None:
        """Write and seal these datasets by a job, see ``DatasetMachine.plan`` and :meth:`act`. After any error, also
        Ctrl-C, they are dropped.
        """
        self._keep_threads()
        try:
            self.act(
                lambda machine: machine.plan(
                    datasets,
                    secrets.token_hex(7),
                    holder,
                    time.monotonic(),
                    candidates=candidates,
                    reads=reads,
                ),
                run,
            )
        except BaseException:
            self.act(lambda machine: machine.abandon(datasets, holder))
            raise

    def _ran(self, job: RunJob, run: Callable[[RunJob], Iterable[Report]]) -> list[DriverCall]:
        try:
            reports = [*run(job)]
        except Exception as error:  # noqa: BLE001 - the machine decides whether it is raised
            with self._lock:
                is_final = isinstance(error, InvalidRequest)
                return self._machine.run_failed(job, error, time.monotonic(), is_final=is_final)
        with self._lock:
            return self._machine.ended(job, reports, time.monotonic())

    # Holding.

    def lost(self, datasets: Iterable[str]) -> set[str]:
        """Those of which a server has lost a part. Waits for servers that do not answer, up to the deadline of a
        call.
        """
        names = [*datasets]
        self.act(lambda machine: machine.check(names))
        with self._lock:
            return {each for each in names if self._machine.state(each) is HeldState.LOST}

    def is_whole(self, dataset: str) -> bool:
        """Whether each part of a sealed dataset is there, and it was not released. Waits as :meth:`lost`."""
        is_lost = bool(self.lost([dataset]))
        with self._lock:
            return not is_lost and dataset in self._machine.datasets

    def end(self, holder: Holder, datasets: Iterable[str] | None = None) -> None:
        """The holder needs these datasets, or any, no more. What a server that does not answer has of them ends with
        its lease.
        """
        self.act(lambda machine: machine.end_hold(holder, datasets))

    def release(self, event: Event) -> None:
        """An event that releases datasets.

        Raises:
            FlightShuffleError: no server has answered its drops, and no object was deleted; what servers have ends with
                its lease.
        """
        errors = [end.error for end in self.act(event) if isinstance(end.call, Drop | RemoveObjects)]
        if errors and errors[0] is not None and all(errors):
            raise errors[0]

    def keep_alive(self, dataset: str, thing: object) -> None:
        """Keep a thing until the dataset is released."""
        with self._lock:
            self._kept_alive[dataset] = thing

    # Calls.

    def _made(self, calls: Sequence[ServerCall], later: deque[DriverCall]) -> list[End]:
        """Make the calls; ``later`` gets those that their ends lead to."""
        groups: list[list[ServerCall]] = []
        at: dict[str, list[ServerCall]] = {}
        for call in calls:
            if isinstance(call, Renew | Drop):
                if call.location not in at:
                    groups.append(at.setdefault(call.location, []))
                at[call.location].append(call)
            else:
                groups.append([call])
        make = partial(self._made_in_turn, later)
        if len(groups) == 1:
            return make(groups[0])
        with ThreadPoolExecutor(min(CALLS_AT_ONCE, len(groups)), "driver-calls") as threads:
            return [end for ends in threads.map(make, groups) for end in ends]

    def _made_in_turn(self, later: deque[DriverCall], calls: Sequence[ServerCall]) -> list[End]:
        """The machine is told each end at once: what another server takes long to say must not make it old."""
        ends: list[End] = []
        for call in calls:
            is_away = bool(ends) and isinstance(ends[-1].error, _AWAY)
            end = ends[-1]._replace(call=call) if is_away else self._end(call)
            ends.append(end)
            with self._lock:
                later += self._ended(end)
        return ends

    def _end(self, call: ServerCall) -> End:
        asked_seconds = time.monotonic()
        try:
            return End(call, asked_seconds, self._answer(call))
        except FlightShuffleError as error:
            _log.info("%s: %s", call, error.message)
            is_refused = isinstance(error, AWAY) and refuses([getattr(call, "location", "")])
            return End(call, asked_seconds, {}, error, is_refused)
        except Exception as error:  # noqa: BLE001 - it is this call's end; the others are made
            _log.info("%s: %r", call, error)
            return End(call, asked_seconds, {}, error)

    def _ended(self, end: End) -> list[DriverCall]:
        call, asked_seconds, answer, error, is_refused = end
        now_seconds = time.monotonic()
        if error is None:
            return self._machine.answered(call, answer, now_seconds, asked_seconds)
        if (
            isinstance(call, Renew)
            and call.start
            and isinstance(error, NotFound)
            and self._machine.datasets.get(call.dataset) == call.generation  # it was not released meanwhile
        ):
            _log.warning("dataset %s is gone from the server %s: %s", call.dataset, call.location, error)
        elif isinstance(call, Look) and self.servers.table.presence(call.location) not in _LEFT_OUT:
            _log.warning("the server %s is left out until it answers: %s", call.location, error)
        return self._machine.failed(call, error, now_seconds, asked_seconds, refused=is_refused)

    def _answer(self, call: ServerCall) -> Mapping[str, Any]:
        """Raises FlightShuffleError; of an object, OSError or Arrow's errors."""
        match call:
            case FindObject():
                files, path = store_of(index_of(call.address))
                files.open_input_file(path).close()
                return {}
            case RemoveObjects():
                files, path = store_of(folder_of(call.prefix, call.dataset, call.generation))
                with suppress(FileNotFoundError):
                    files.delete_dir(path)
                return {}
            case Look():
                answer = self._call_action(call.location, "locations", b"", call.patience)
                self.put_locations[call.location] = tuple(answer.get("put_locations", ()))
                return answer
            case Renew():
                body = DatasetRequest(call.dataset, call.generation).encode()
                return self._call_action(call.location, "renew", body, call.patience)
            case Drop():
                body = DatasetRequest(call.dataset, call.generation).encode()
                try:
                    return self._call_action(call.location, "drop", body, Patience.BRIEF)
                except NotFound:
                    return {}
            case Seal():
                return self._sealed(call)

    def _call_action(self, location: str, action: str, body: bytes, patience: Patience) -> dict[str, Any]:
        server = self.servers.at(location)
        seconds: float | None = None
        if patience is Patience.BRIEF:
            is_silent = self.servers.table.presence(location) is Presence.SILENT
            # A round of renewals must end before the next one begins.
            seconds = min(SILENT_SECONDS if is_silent else BRIEF_SECONDS, self.lease_seconds / 6)
        try:
            return server.action(action, body, seconds, once=patience is not Patience.RESTART)
        except Unreachable:
            # A connection that breaks is neither a refusal nor a silence.
            if patience is not Patience.ANSWER or refuses([location]):
                raise
        return server.action(action, body)

    def _sealed(self, call: Seal) -> dict[str, Any]:
        server = self.servers.at(call.location)
        request = SealRequest(
            call.dataset,
            call.generation,
            dict(call.attempts),
            start=call.server.start,
            servers=call.servers,
            offload=call.offload,
            largest=call.largest,
        )
        # The answer comes when the object is written; the server has a deadline for each part of it.
        seconds = None if call.offload is None else server.timeouts.stream_seconds
        # A start that refuses connections does not come back.
        return server.action("seal", request.encode(), seconds, once=refuses([call.location]))

    # The threads.

    def after_collection(self, thing: object, call: Call) -> weakref.finalize[..., object]:
        """Make the call after ``thing`` was collected, to which it must not refer; not at the interpreter's end. The
        answer's ``detach`` takes it back.
        """
        self._keep_threads()
        end = weakref.finalize(thing, self._calls.put, call)
        end.atexit = False
        return end

    def _keep_threads(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            for run, name in ((self._renew_in_turn, "leases"), (self._make_calls, "after-collection")):
                if run not in self._threads or not self._threads[run].is_alive():
                    self._threads[run] = threading.Thread(target=run, name=name, daemon=True)
                    self._threads[run].start()

    def _renew_in_turn(self) -> None:
        interval_seconds = self.lease_seconds / 3
        renewal_seconds = time.monotonic() + interval_seconds
        while True:
            with suppress(queue.Empty):
                return self._closing.get(timeout=max(0.0, renewal_seconds - time.monotonic()))
            renewal_seconds = time.monotonic() + interval_seconds
            _made_or_logged(self._renew)

    def _make_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            _made_or_logged(call)
            del call  # which may refer to much, while this thread waits

    def _renew(self) -> None:
        self.act(lambda machine: machine.renew())

    def close(self) -> None:
        """Drop all datasets, and end the threads, waiting at most 5 s for the running call of each. Twice is fine."""
        with self._lock:
            self._is_closed = True
            threads, self._threads = [*self._threads.values()], {}
        try:
            self.act(lambda machine: machine.close())
        finally:
            self._closing.put(None)
            self._calls.put(None)
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join(5.0)


def _made_or_logged(call: Call) -> None:
    try:
        call()
    except BaseException:  # noqa: BLE001 - see *Threads*
        _log.exception("a call of a driver's thread failed, and the thread goes on")
