"""What a broadcast's server knows of its copies."""

from __future__ import annotations

from flight_server.protocol import COPIES, CopiesRequest, CopyVerb
from spark_client.broadcast import Broadcast


def hosts_of(shared: Broadcast) -> tuple[set[str], set[str]]:
    """The hosts that keep a copy, and those that are to remove theirs."""
    source = shared._content.source
    request = CopiesRequest(CopyVerb.WHICH, source.dataset, source.generation)
    answer = source.server.action(COPIES, request.encode())
    return set(answer["kept"]), set(answer["withdrawn"])
