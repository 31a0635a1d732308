"""Many DoGets that begin in the same moment, over a few connections; those of one more are reset at once.

    python -m tests.load.calls grpc://127.0.0.1:8815 d 3000 1000

starts 3,000 calls, which it reads to their end, and 1,000 on a connection of their own, which it cancels as
soon as they are sent. It says ``connected`` before and ``sent`` then, and in the end, as JSON, how many of the
3,000 ended in which way.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

import grpc
from pyarrow import flight

CONNECTIONS = 4
METHOD = "/arrow.flight.protocol.FlightService/DoGet"


def connect(location: str) -> grpc.aio.Channel:
    """A connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    return grpc.aio.insecure_channel(location.removeprefix("grpc://"), options=options)


async def read(call: Any) -> str:
    """What became of a call: its status, and how many messages came before it."""
    messages = 0
    try:
        async for _ in call:
            messages += 1
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    return f"OK after {messages}"


async def run(location: str, dataset: str, calls: int, resets: int) -> None:
    """See the module's text."""
    channels = [connect(location) for _ in range(CONNECTIONS + 1)]
    ticket = flight.Ticket(dataset.encode()).serialize()
    for channel in channels:
        await channel.channel_ready()
    print("connected", flush=True)  # what the parent waits for
    reset, *others = [channel.unary_stream(METHOD) for channel in channels]
    for _ in range(resets):
        call = reset(ticket)
        await asyncio.sleep(0)
        call.cancel()
    reads = [asyncio.ensure_future(read(others[number % CONNECTIONS](ticket))) for number in range(calls)]
    await asyncio.sleep(1)
    print("sent", flush=True)  # and for this
    ends = Counter(await asyncio.gather(*reads))
    print(json.dumps(ends), flush=True)  # the answer
    for channel in channels:
        await channel.close()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
