"""ServerList: the servers of one client, where datasets are placed on them, and what they say together.

They are given, or learnt from tasks that have started them (``server_table``). Those that are learnt hold the datasets
of exchanges alone: every other dataset is on the driver's server. What is asked here, for people, changes nothing of
what the driver knows of servers: a server that does not answer is shown as ``gone``, and stays in the list.

Statistics
    Those of several servers are given as those of one. Numbers are sums, and lists are one after the other. A dataset
    that is spread has the rows and bytes of all its portions that were answered for: if these are not all, its
    ``whole`` has those of all, and else is None. It is sealed if all are, and its lease is the one that ends first.
    Where servers have different generations of a name, as after a loss, those of the last one in alphabetical order
    count: a later run of the same write comes later. ``count`` is the number of datasets, or more where a server has
    more than are on its page. A server that is asked at two of its locations counts once.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from typing import Any, TypeVar
from urllib.parse import urlsplit

from flight_server.protocol import DatasetRequest, FlightShuffleError, InvalidRequest, NotFound
from spark_client.connection import RemoteServer, embedded

from .server_table import ServerTable

CALLS_AT_ONCE = 32
_SECONDS = 10.0
T = TypeVar("T")
_FIRST = frozenset({"first", "limit", "partition_count", "server_count", "portions", "whole"})
_ALL = frozenset({"sealed", "durable"})


class DriverServer:
    """A server on the driver's host, started when it is first needed. Thread-safe. The process ends as
    ``connection.embedded`` says.

    Args:
        like: its credentials and options are those of the server, too.
        options: of the process, among them the ``host`` on which it listens, and the token.
    """

    def __init__(self, like: RemoteServer, options: Mapping[str, Any]) -> None:
        self._like = like
        self._options = options
        self._process: embedded.Embedded | None = None
        self._server: RemoteServer | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def started(self) -> RemoteServer | None:
        """None before the first :meth:`server`."""
        return self._server

    def server(self) -> RemoteServer:
        """The server, which the first call starts.

        Raises:
            InvalidRequest: it has no such option; or it is closed.
            Unavailable: it did not start; the message says why.
        """
        with self._lock:
            if self._closed:
                raise InvalidRequest("this ShuffleClient is closed; make a new one")
            if self._server is None:
                self._process = embedded.start(**{"workers": 1, **self._options})
                self._server = self._like.own_at(self._process.location)
            return self._server

    def close(self) -> None:
        """End the server, if it was started. Twice is fine."""
        with self._lock:
            self._closed = True
            server, process = self._server, self._process
        if server is not None:
            server.close()
        if process is not None:
            process.close()


def owner_of(name: str, locations: Iterable[str]) -> str:
    """The location of the server that holds the dataset of this name, where one server does: the same for each client
    of the same servers, in any order of the list; a server that is added takes over its share of the names only
    (rendezvous hashing, Thaler and Ravishankar 1998).
    """

    def weight(location: str) -> tuple[bytes, str]:
        # Not CRC-32: it is linear, so that of three servers one would have half of all names of one length.
        return blake2b(f"{location} {name}".encode(), digest_size=8).digest(), location

    return max(locations, key=weight)


class ServerList:
    """Thread-safe.

    Args:
        first: one of the servers; its credentials and options are used for all.
        locations: of all of them, in one order for the driver and its tasks.
        home: where the servers are learnt, the driver's own. Then ``first`` is not called, and has no location.
    """

    def __init__(
        self, first: RemoteServer, locations: Iterable[str] = (), home: DriverServer | None = None
    ) -> None:
        self.first = first
        self.home = home
        self.table = ServerTable(() if home is not None else tuple(locations) or (first.location,))

    @property
    def locations(self) -> tuple[str, ...]:
        """Of all servers but the driver's, in one order for the driver and its tasks."""
        own = self._own
        return tuple(each for each in self.table.locations if own is None or each != own.location)

    @property
    def all_locations(self) -> tuple[str, ...]:
        """:attr:`locations`, and that of the driver's server if it was started."""
        own = self._own
        return (*self.locations, *(() if own is None else (own.location,)))

    @property
    def _own(self) -> RemoteServer | None:
        return None if self.home is None else self.home.started

    @property
    def main(self) -> RemoteServer:
        """The first one; where they are learnt, the driver's, which this starts."""
        return self.first if self.home is None else self.home.server()

    def at(self, location: str) -> RemoteServer:
        own = self._own
        return own if own is not None and own.location == location else self.first.at(location)

    def of(self, name: str) -> RemoteServer:
        """The server of a dataset that one server holds, see :func:`owner_of`."""
        return self.main if self.home is not None else self.at(owner_of(name, self.locations))

    def with_part(self, name: str) -> RemoteServer | None:
        """A server that has a dataset or a part of it; None if there is none, or they do not answer."""
        body = DatasetRequest(name).encode()
        with suppress(FlightShuffleError):
            answers, _ = self.answers(lambda server, **how: server.action("statistics", body, **how))
            return self.at(next(iter(answers)))
        return None

    def each(self, call: Callable[[RemoteServer], T], locations: Iterable[str]) -> list[T]:
        """The results of a call at each server, made at once."""
        servers = [self.at(each) for each in locations]
        if len(servers) < 2:
            return [call(each) for each in servers]
        with ThreadPoolExecutor(min(CALLS_AT_ONCE, len(servers)), "servers") as threads:
            return list(threads.map(call, servers))

    def answers(self, call: Callable[..., T]) -> tuple[dict[str, T], list[dict[str, Any]]]:
        """What each of :attr:`asked` answers, by its location, and those that did not, as ``statistics`` has them:
        ``location``, ``start`` if it is known, and the reason why it is ``gone``.

        Args:
            call: is given a deadline and made once (``timeout_seconds`` and ``once``), or, if there is no other server,
                made as all calls.

        Raises:
            FlightShuffleError: no server has answered.
            NotFound: all have, and none has the dataset.
        """
        locations = self.all_locations or (self.main.location,)
        how: dict[str, Any] = {} if len(locations) == 1 else {"timeout_seconds": _SECONDS, "once": True}

        def ask(server: RemoteServer) -> T | FlightShuffleError:
            try:
                return call(server, **how)
            except FlightShuffleError as error:
                return error

        ends = dict(zip(locations, self.each(ask, locations), strict=True))
        errors = {each: end for each, end in ends.items() if isinstance(end, FlightShuffleError)}
        if len(errors) == len(ends):
            raise min(errors.values(), key=lambda error: isinstance(error, NotFound))
        gone = [
            {"location": each, "start": self.table.start(each), "gone": error.message}
            for each, error in errors.items()
            if not isinstance(error, NotFound)
        ]
        return {k: end for k, end in ends.items() if not isinstance(end, FlightShuffleError)}, gone

    def statistics(self, dataset: str | None = None) -> dict[str, Any]:
        """The action ``statistics`` of one server; of several together, with all of them
        under ``servers``, of a dataset with those that hold it. Servers in executors do not start the driver's.

        Raises as :meth:`answers`.
        """
        body = DatasetRequest(dataset).encode()
        answers, gone = self.answers(lambda server, **how: server.action("statistics", body, **how))
        servers = listed(answers, gone)
        return combined([*answers.values()]) | ({"servers": servers} if servers else {})

    def end(self) -> None:
        """End the driver's server, and those that were learnt, with all workers of their supervisors: one that cannot
        be reached ends with its executor. Given servers go on. Twice is fine.
        """

        def workers(server: RemoteServer) -> list[str]:
            with suppress(FlightShuffleError):
                return list(server.action("locations", timeout_seconds=_SECONDS, once=True)["servers"])
            return [server.location]

        def drain(server: RemoteServer) -> None:
            with suppress(FlightShuffleError):
                server.action("drain", timeout_seconds=_SECONDS, once=True)

        if self.home is not None:
            every = [each for locations in self.each(workers, self.locations) for each in locations]
            self.each(drain, dict.fromkeys(every))
            self.table.forget_all()
            self.home.close()


def place(
    dataset: str,
    producer: int,
    locations: Sequence[str],
    *,
    host: str | None = None,
    tries: int = 0,
) -> str:
    """The location where a task puts its rows. Always the same for the same arguments, in any process.

    Args:
        locations: of the servers, in one order for all tasks; at least one.
        host: the task's. The location is on it, if any is.
        tries: how often Spark has tried the task before. A new try goes to the next server, on whichever host, because
            the one before may be the reason.
    """
    own = [number for number, each in enumerate(locations) if host and urlsplit(each).hostname == host]
    among = own if own and not tries else range(len(locations))
    # Not ``hash``: Python salts it in each process.
    return locations[among[(zlib.crc32(dataset.encode()) + _turn(producer, len(among)) + tries) % len(among)]]


def _turn(producer: int, servers: int) -> int:
    """A number whose remainder by ``servers`` takes each value once for so many producers in a row, and about as often
    as the others for each second, third or eighth producer: Spark deals the tasks of a job to its executors in turn. So
    each block of producers begins at another server, by a golden section further than the last one (multiplicative
    hashing: Knuth, The Art of Computer Programming, volume 3, section 6.4).
    """
    block, place_in_block = divmod(producer, servers)
    return place_in_block + ((block * 2654435769 % 2**32) * servers >> 32)


def combined(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answers of servers to the action ``statistics``, at least one, without ``servers``."""
    answers = [*{_start(each) or number: each for number, each in enumerate(answers)}.values()]
    total: dict[str, Any] = _together("", [{**each, "datasets": {}} for each in answers])
    total.pop("servers", None)
    names = dict.fromkeys(name for answer in answers for name in answer["datasets"])
    total["datasets"] = {name: _dataset([each["datasets"].get(name) for each in answers]) for name in names}
    if "count" in total:
        total["count"] = len(names) + sum(each["count"] - len(each["datasets"]) for each in answers)
    return total


def listed(answers: Mapping[str, Mapping[str, Any]], gone: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each server once, with its numbers or the reason why it is ``gone``: those that were asked, then other workers of
    their supervisors. A server says nothing of itself to principals that do not see all of it.

    Args:
        answers: by location.
        gone: those that did not answer, each with its ``location``, ``start`` and the reason.
    """
    servers = [
        dict(answer["servers"][0], location=location)
        for location, answer in answers.items()
        if answer.get("servers")
    ]
    servers += gone
    locations, starts = {each["location"] for each in servers}, {each["start"] for each in servers}
    for answer in answers.values():
        for each in answer.get("servers", [])[1:]:
            if each["location"] not in locations and (each["start"] is None or each["start"] not in starts):
                servers.append(each)
                locations.add(each["location"])
                starts.add(each["start"])
    return servers


def _start(answer: Mapping[str, Any]) -> str | None:
    """The start of the server that answers, which it does not say to each principal."""
    servers = answer.get("servers")
    return servers[0]["start"] if servers else None


def _dataset(portions: Sequence[Any]) -> Any:
    held = [each for each in portions if each is not None]
    last = max(each["generation"] for each in held)
    # Only an answer about one dataset has starts.
    by_start = {tuple(each.get("starts", [number])): each for number, each in enumerate(held)}
    parts = [each for each in by_start.values() if each["generation"] == last]
    dataset = _together("", parts)
    return {**dataset, "whole": None} if len(parts) == dataset["server_count"] else dataset


def _together(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if len(values) == 1 or name in _FIRST:
        return first
    if isinstance(first, dict):
        keys = dict.fromkeys(key for each in values for key in each)
        return {key: _together(key, [each[key] for each in values if key in each]) for key in keys}
    if isinstance(first, list):
        return [each for value in values for each in value]
    if isinstance(first, bool):
        return all(values) if name in _ALL else any(values)
    numbers = [each for each in values if isinstance(each, int | float)]
    if len(numbers) < len(values):  # texts; or one has no limit, no lease, no trouble
        return next((each for each in values if isinstance(each, str)), None)
    return min(numbers) if name == "lease_left_seconds" else sum(numbers)
