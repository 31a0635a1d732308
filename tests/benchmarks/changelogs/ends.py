"""The two ends of the open loop, each a process: ``python -m …ends producer|follower OPTIONS``, options in JSON.

Both write what they have seen to the file ``into`` when they end, times in nanoseconds of the machine's monotonic
clock, which all its processes share.

    producer    Prints ``ready`` and reads the time at which to begin. Update ``i`` is due at ``begin + i / rate``,
                whatever has become of those before it. Every ``tick_seconds`` all that are due are added to a
                gathering writer. Writes for each add: its first update, its time, and the version that it was
                committed with.
    follower    Prints ``ready``, and reads the changes up to that of the row whose key is ``END_KEY``. Writes for
                each change its version and when it was received.

Together they give the latency of each update, also of one that the same version replaces and no reader sees.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa

from spark_client import ShuffleClient

NAME = "updates"
SCHEMA = pa.schema([("key", pa.int64()), ("due_ns", pa.int64()), ("value", pa.float64())])
END_KEY = -1
# A prime that divides no number of keys here: neighbours in time are no neighbours in the order of keys.
STRIDE = 7919


def rows(first: int, last: int, keys: int, due_ns: Any) -> pa.RecordBatch:
    """The updates from ``first`` to before ``last``."""
    numbers = np.arange(first, last)
    columns = [numbers * STRIDE % keys, due_ns, numbers.astype(np.float64)]
    return pa.record_batch([pa.array(column) for column in columns], schema=SCHEMA)


def produce(
    location: str,
    into: str,
    *,
    keys: int,
    rate: float,
    seconds: float,
    tick_seconds: float,
    linger_seconds: float,
) -> None:
    """Be the producer."""
    count = int(rate * seconds)
    firsts, added_ns, versions = list[int](), list[int](), list[int]()
    waiting: deque[Future[int]] = deque()
    with (
        ShuffleClient(location) as client,
        client.changelog(NAME).writer(linger_seconds=linger_seconds) as writer,
    ):
        print("ready", flush=True)
        begin_ns, sent = int(sys.stdin.readline()), 0
        while sent < count:
            now_ns = time.monotonic_ns()
            due = min(count, int((now_ns - begin_ns) / 1e9 * rate) + 1) if now_ns >= begin_ns else 0
            if due > sent:
                due_ns = begin_ns + np.arange(sent, due) * int(1e9 / rate)
                waiting.append(writer.add(rows(sent, due, keys, due_ns)))
                firsts.append(sent)
                added_ns.append(now_ns)
                sent = due
            while waiting and waiting[0].done():
                versions.append(waiting.popleft().result())
            next_ns = max(begin_ns + int(sent / rate * 1e9), now_ns + int(tick_seconds * 1e9))
            time.sleep(max(0, next_ns - time.monotonic_ns()) / 1e9)
        end = pa.record_batch([[END_KEY], [time.monotonic_ns()], [0.0]], schema=SCHEMA)
        waiting.append(writer.add(end))
        versions += [future.result() for future in waiting]
    versions.pop()
    np.savez(into, firsts=firsts, added_ns=added_ns, versions=versions)


def follow(location: str, into: str, *, after: int) -> None:
    """Be the follower."""
    versions, received_ns = list[int](), list[int]()
    with ShuffleClient(location) as client, client.changelog(NAME).follow(after) as follower:
        print("ready", flush=True)
        for change in follower:
            received_ns.append(time.monotonic_ns())
            versions.append(change.version)
            # Not with pyarrow.compute: a scalar of Python's imports pandas, which stops a reader for a second.
            if (change.table["key"].to_numpy() == END_KEY).any():
                break
    np.savez(into, versions=versions, received_ns=received_ns)


if __name__ == "__main__":
    end: Any = {"producer": produce, "follower": follow}[sys.argv[1]]
    end(**json.loads(sys.argv[2]))
