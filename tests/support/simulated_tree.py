"""A broadcast to many hosts, by the real tree, over links with a rate and a latency, at a clock of its own.

Each host asks the server where to fetch, reads one frame after the other from there, and passes each on once it has it.
A sender's link carries one frame at a time, in turn for each of its readers. A host that reads nothing for
``NOTICE_SECONDS`` from one that is dead, or cannot reach it for as long, says so and asks again.

Limits: nothing else is on the links, CPU costs nothing, and calls take the latency alone.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from flight_server.datasets.copy_tree import FAN_OUT, CopyTree

MIB = 1 << 20
NOTICE_SECONDS = 1.0
SERVER = "server"


@dataclass(eq=False)
class SimulatedHost:
    """``received``: the number of frames, which came in order. ``readers``: the next frame of each, in turn."""

    name: str
    listens: bool = True
    received: int = 0
    lives: bool = True
    parent: SimulatedHost | None = None
    readers: deque[SimulatedHost] = field(default_factory=deque)
    sent: dict[str, int] = field(default_factory=dict)
    sending: bool = False
    sent_frames: int = 0
    ended: float | None = None
    time_outs: int = 0
    asked: int = 0

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1


class SimulatedBroadcast:
    """One broadcast. After :meth:`run` the hosts can be asked.

    Args:
        frames: of ``frame_bytes`` each.
        arrivals: when each host asks.
        silent: the hosts that none can read.
        deaths: when hosts die, by their numbers.
    """

    def __init__(
        self,
        arrivals: Collection[float],
        *,
        frames: int = 1024,
        frame_bytes: int = MIB,
        link_bits_per_second: float = 10e9,
        latency_seconds: float = 0.0002,
        fan_out: int = FAN_OUT,
        silent: Collection[int] = (),
        deaths: Mapping[int, float] | None = None,
    ) -> None:
        self.now = 0.0
        self.frames, self.latency_seconds = frames, latency_seconds
        self.frame_seconds = frame_bytes * 8 / link_bits_per_second
        self.tree = CopyTree(lambda: self.now, fan_out)
        self.server = SimulatedHost(SERVER, received=frames)
        self.hosts = [SimulatedHost(f"h{n}", n not in silent) for n in range(len(arrivals))]
        self.most_readers = self.deepest = 0
        self._named = {each.name: each for each in self.hosts}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0
        for host, arrival in zip(self.hosts, arrivals, strict=True):
            self._after(arrival, partial(self._ask, host))
        for number, death in (deaths or {}).items():
            self._after(death, partial(self._kill, self.hosts[number]))

    def run(self) -> float:
        """Everything; when the last living host had all frames."""
        while self._events:
            self.now, _, happens = heapq.heappop(self._events)
            happens()
        assert all(host.received == self.frames for host in self.living)
        return max(host.ended or 0.0 for host in self.living)

    @property
    def living(self) -> list[SimulatedHost]:
        return [host for host in self.hosts if host.lives]

    def _after(self, seconds: float, happens: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._events, (self.now + seconds, self._planned, happens))

    def _kill(self, host: SimulatedHost) -> None:
        host.lives = False
        for reader in host.readers:
            self._notice(host, reader)
        host.readers.clear()

    def _ask(self, host: SimulatedHost, lost: SimulatedHost | None = None) -> None:
        if not host.lives:
            return
        host.asked += 1
        location = host.name if host.listens else None
        given = self.tree.fetch(host.name, location, None if lost is None else lost.name)
        host.parent = parent = self.server if given is None else self._named[given]
        assert parent.listens
        above: SimulatedHost | None = parent
        while above is not None:
            assert above is not host, "hosts read from each other in a circle"
            above = above.parent
        self.deepest = max(self.deepest, host.depth)
        # The answer, and then the request.
        self._after(2 * self.latency_seconds, partial(self._begin, parent, host))

    def _begin(self, parent: SimulatedHost, host: SimulatedHost) -> None:
        if not parent.lives:
            self._notice(parent, host)
            return
        parent.readers.append(host)
        parent.sent[host.name] = host.received
        self.most_readers = max(self.most_readers, len(parent.readers) if parent is not self.server else 0)
        self._send(parent)

    def _send(self, parent: SimulatedHost) -> None:
        """Begin with the next frame that a reader lacks, if the link is free."""
        for _ in range(len(parent.readers)):
            reader = parent.readers[0]
            parent.readers.rotate(-1)
            lacks_one = parent.sent[reader.name] < parent.received
            if lacks_one and reader.lives and parent.lives and not parent.sending:
                parent.sending = True
                self._after(self.frame_seconds, partial(self._sent, parent, reader))
                break

    def _sent(self, parent: SimulatedHost, reader: SimulatedHost) -> None:
        parent.sending = False
        number = parent.sent[reader.name]
        parent.sent[reader.name] += 1
        if parent.lives and reader.lives:
            parent.sent_frames += 1
            self._after(self.latency_seconds, partial(self._arrive, parent, reader, number))
        if parent.sent[reader.name] == self.frames and reader in parent.readers:
            parent.readers.remove(reader)
        self._send(parent)

    def _arrive(self, parent: SimulatedHost, host: SimulatedHost, number: int) -> None:
        if not host.lives or host.parent is not parent:
            return
        assert number == host.received, "each frame once, in order"
        host.received += 1
        if host.received == self.frames:
            host.ended = self.now
            self._after(self.latency_seconds, partial(self.tree.has_all, host.name))
        self._send(host)

    def _notice(self, parent: SimulatedHost, host: SimulatedHost) -> None:
        self._after(NOTICE_SECONDS, partial(self._lose, parent, host))

    def _lose(self, parent: SimulatedHost, host: SimulatedHost) -> None:
        if host.lives and host.parent is parent and host.received < self.frames:
            host.time_outs += 1
            self._after(self.latency_seconds, partial(self._ask, host, parent))
