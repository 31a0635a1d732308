"""Reads a broadcast through a server of the task's executor, which passes it on to other hosts while it arrives.

Guarantee: the bursts are those of the broadcast's server, each once and in order, wherever they came from. All comes
from that server itself where the executor has none, and for what is left when that one fails.

Who holds what
    The executor's server has the frames as a dataset of kind ``source`` (``tree_relay``), within its own limits of
    memory and disk, while it is read and for ``LEASE_SECONDS`` more. The servers ask each other with the token that all
    of them have; so the broadcast's server must have the same one.

A broadcast below ``TREE_BYTES`` comes from its server: starting one in the executor takes longer.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

from flight_server.protocol import AlreadyExists, FlightShuffleError, dump_json
from spark_client.connection import RemoteServer
from spark_client.executors import ExecutorServers
from spark_client.lanes import BatchBurst, PartitionStream
from spark_client.merge import DatasetRef

_log = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
TREE_BYTES = 16 << 20
_CREATE_SECONDS = 30.0


def bursts(
    source: DatasetRef, servers: ExecutorServers | None, host: str | None, file: str
) -> Generator[BatchBurst, None, None]:
    """The bursts of the only partition. Raises as ``PartitionStream.read_burst``.

    Args:
        servers: of the executors; None to read from the broadcast's server.
        host, file: as this host has named itself and its file to the broadcast's server (``host_copies.keep``).
    """
    first = 0
    if servers is not None and host is not None:
        try:
            with _near(source, servers, host, file) as near:
                while near is not None and (burst := near.read_burst()) is not None:
                    first = near.next_frame
                    yield burst
            if near is not None:
                return
        except FlightShuffleError as error:
            _log.info("broadcast %r is read from its server: %s", source.dataset, error)
    with closing(source.stream(0, first)) as stream:
        while (burst := stream.read_burst()) is not None:
            yield burst


@contextmanager
def _near(
    source: DatasetRef, servers: ExecutorServers, host: str, file: str
) -> Iterator[PartitionStream | None]:
    """The stream of the executor's server; None if that is the broadcast's, or has another token."""
    origin, here = source.server, servers.here()
    if here.location == origin.location or origin.token != servers.token:
        yield None
        return
    name = f"copies/{file}"
    spec = {
        "flight": origin.location,
        "dataset": source.dataset,
        "generation": source.generation,
        "token": servers.token,
        "tree": {"host": host, "file": file, "location": here.location},
    }
    body = {"dataset": name, "kind": "source", "source": spec, "lease_seconds": LEASE_SECONDS}
    timeouts = replace(origin.timeouts, tries=1)  # the broadcast's server has it, too
    server = RemoteServer(
        here.location, token=servers.token, timeouts=timeouts, reading=origin.reading, direct=True
    )
    with closing(server):
        # It exists where another directory of this host has made it.
        with suppress(AlreadyExists):
            server.action("create", dump_json(body), _CREATE_SECONDS, once=True)
        with closing(DatasetRef.find(server, name).stream(0)) as stream:
            yield stream
