"""Heap: pages for a growing pool before it needs them, and back to the system when it does not.

The kernel provides a page when it is first written to: 0.4 CPU seconds per gigabyte, and up to 2 on a virtual machine
whose host must provide it first. On the event loop that was 0.5 s/GB and more, beside 0.7 for a put and its read. Here
a thread does it ahead of the pool, without the GIL. It moves the cost to another core; only huge pages make it less.

Ahead
    When the pool has grown to within half of ``lead_bytes`` of the populated size, the thread populates the memory of
    the next ``lead_bytes`` of allocations (``allocator.populate``). So it does nothing for a pool that does not grow,
    or that grows into memory that was used before. Neither the pool nor the process, beyond its size at the start, is
    populated above 3/4 of the memory limit: holes in the heap are resident, too. With a limit below 128 MiB nothing is.

Huge pages
    Where the kernel has them, a gigabyte costs 0.05 CPU seconds. On a virtual machine that gives free memory back to
    its host, these are the pages that the host must provide again, at 2 s/GB, while small ones are at hand. So after
    some slow ones the thread takes small pages, until memory was given back.

Given back
    The process keeps freed memory for ``KEEP_FREED_SECONDS``: 5/4 of the most that the pool held, or was populated for,
    in that time, at most the memory limit. When more than ``MAX_HOLES_BYTES`` beyond that is resident, the thread
    returns all that is free. The start of a process frees some, too, which :meth:`Heap.start` returns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue

from . import allocator
from .pool import MemoryPool

_log = logging.getLogger("flight_server.memory")

LOOK_SECONDS = 0.5
KEEP_FREED_SECONDS = 10.0
MAX_HOLES_BYTES = 32 << 20
LEAD_BYTES = 128 << 20
_MIN_LEAD_BYTES = 16 << 20


class Heap:
    """The heap of a process that runs only one server, from :meth:`start` to :meth:`stop`. ``memory``: the server's
    pool, with a limit. ``tuned``: the result of ``allocator.tune``; if False nothing is populated.
    """

    def __init__(self, memory: MemoryPool, *, tuned: bool) -> None:
        assert memory.limit_bytes is not None
        self._memory = memory
        self._limit_bytes = memory.limit_bytes
        self._most_bytes = memory.limit_bytes * 3 // 4
        lead_bytes = min(LEAD_BYTES, memory.limit_bytes // 8)
        self.lead_bytes = lead_bytes if tuned and lead_bytes >= _MIN_LEAD_BYTES else 0
        self.populated_bytes = 0
        """Up to this size the pool grows into memory that was populated or used before."""
        self._wanted_bytes = 0  # the most that was populated for since the last look
        self._huge = True
        self._settled_bytes = allocator.resident_bytes()
        self._lately_bytes: deque[int] = deque(maxlen=int(KEEP_FREED_SECONDS / LOOK_SECONDS))
        # Not an Event: the pool tells also from finalizers, which may interrupt a thread inside the Event's lock.
        self._grown: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="heap", daemon=True)

    def start(self) -> None:
        """Start the thread, return what the start has freed, and count from the size that the process has then."""
        allocator.give_back()
        self._settled_bytes = allocator.resident_bytes()
        self._watch()
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it, for one :meth:`extend` at most. Twice is fine."""
        self._stopping = True
        self._grown.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        self._memory.tell_above(None, self._tell)

    def extend(self) -> None:
        """Populate for the pool's next ``lead_bytes``, unless that would pass 3/4 of the limit."""
        self.populated_bytes = max(self.populated_bytes, self._memory.used_bytes)
        wanted_bytes = self._memory.used_bytes + self.lead_bytes
        if max(wanted_bytes, self._resident_bytes() + self.lead_bytes) <= self._most_bytes:
            huge = allocator.populate(self.lead_bytes, huge=self._huge)
            if huge is not None:
                self._huge = huge
                self.populated_bytes = max(self.populated_bytes, wanted_bytes)
                self._wanted_bytes = wanted_bytes
            else:
                self.lead_bytes = 0
        self._watch()

    def look(self) -> None:
        """Give back what has been free for long enough; every ``LOOK_SECONDS``."""
        self._lately_bytes.append(max(self._memory.used_bytes, self._wanted_bytes))
        self._wanted_bytes = 0
        may_hold_bytes = min(self._limit_bytes, max(self._lately_bytes) * 5 // 4)
        if self._resident_bytes() - may_hold_bytes > MAX_HOLES_BYTES:
            allocator.give_back()
            self._huge = True
        # Also without that: the allocator returns the end of the heap by itself.
        held_bytes = max(0, self._resident_bytes())
        if held_bytes < self.populated_bytes:
            self.populated_bytes = held_bytes
            self._watch()

    def _resident_bytes(self) -> int:
        return allocator.resident_bytes() - self._settled_bytes

    def _run(self) -> None:
        looked = time.monotonic()
        while True:
            grown = True
            try:
                self._grown.get(timeout=LOOK_SECONDS)
            except Empty:
                grown = False
            if self._stopping:
                return
            try:
                if grown:
                    self.extend()
                if time.monotonic() - looked >= LOOK_SECONDS:
                    looked = time.monotonic()
                    self.look()
            except Exception:  # noqa: BLE001  # without this thread the server would never give memory back
                _log.exception("the heap could not be extended or given back")

    def _watch(self) -> None:
        """Be told when the pool comes near the populated size; in any case not before it has grown a little."""
        if self.lead_bytes:
            near_bytes = self.populated_bytes - self.lead_bytes // 2
            grown_bytes = self._memory.used_bytes + self.lead_bytes // 8
            self._memory.tell_above(max(near_bytes, grown_bytes), self._tell)

    def _tell(self) -> None:
        self._grown.put(None)
