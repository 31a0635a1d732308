"""Drops, also of a server that is away for a moment.

A drop by name is sent once, because it is not fine twice: when its answer is lost, the name may lead to another dataset
by the next try. That of a generation is; then a generation that is gone was dropped.
"""

from __future__ import annotations

from flight_server.protocol import DatasetRequest, NotFound

from .transport import RemoteServer


def drop(server: RemoteServer, dataset: str, generation: str | None = None) -> None:
    """Drop a generation of a dataset, or, without one, that which the name leads to.

    Raises:
        NotFound: there is none.
        Unavailable: it may be dropped or not.
    """
    request, tries = DatasetRequest(dataset, generation).encode(), 0
    if generation is None:
        server.action("renew", request)  # which waits until the server is back
        server.action("drop", request, once=True)
        return

    def call() -> None:
        nonlocal tries
        tries += 1
        try:
            server.action("drop", request, once=True)
        except NotFound:
            if tries == 1:
                raise

    server.riding_out(call)
