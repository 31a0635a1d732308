"""Which call is ended when too many wait for their first message, without gRPC."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from unittest.mock import Mock

from flight_server.lanes.grpc import PendingReads
from flight_server.lanes.grpc.pending_reads import MAX_UNHEARD, PendingRead
from flight_server.memory import MemoryPool
from flight_server.transfer import Arriving


async def test_silent_calls_on_many_connections_end_none_of_a_connection_whose_messages_come() -> None:
    reads = PendingReads(Arriving(MemoryPool(64 << 20), message_bytes=1 << 20), stall_seconds=30.0)
    with ExitStack() as stack:

        def pending(peer: str) -> PendingRead:
            return stack.enter_context(reads.pending(peer, Mock(asyncio.Timeout), first=True))

        with reads.pending("ipv4:127.0.0.1:1", Mock(asyncio.Timeout), first=True):
            pass  # the good client's connection is older than all others
        silent = [pending(f"ipv4:127.0.0.2:{number}") for number in range(MAX_UNHEARD)]
        await asyncio.sleep(0.01)
        good = [pending("ipv4:127.0.0.1:1") for _ in range(8)]
        assert [read.why for read in good] == [None] * 8
        assert sum(read.why is not None for read in silent) == 8
