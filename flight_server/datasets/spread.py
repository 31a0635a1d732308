"""A dataset that is spread over several servers, as one of them knows it from its seal.

Guarantee: what a seal says of this server is right, or nothing is sealed. Of the others the server knows only what it
is told. It holds O(servers), and asks none of them. A part is never read as the whole: a request for frames names the
start of the server that holds them, or is refused, also one that came before the seal.
"""

from __future__ import annotations

from flight_server.memory import Metadata, Reservation
from flight_server.protocol import Conflict, InvalidRequest, SealRequest, ServerPortion

from .dataset import Dataset
from .generations import check_start, own_start


def check_servers(dataset: Dataset, request: SealRequest) -> None:
    """Compare a seal with this server, before anything is sealed. Raises ServerLost: it is for another start; Conflict:
    the list lacks this server, or has other rows of it, or is not that of the first seal.
    """
    check_start(dataset.name, request.start)
    if request.servers is None:
        return
    refused = f"dataset {dataset.name!r} cannot be sealed with this list of servers"
    if dataset.durable:
        raise Conflict(f"{refused}: it is durable, and is held by one server", dataset=dataset.name)
    start = own_start()
    mine = next((each for each in request.servers if each.start == start), None)
    if mine is None:
        why = f"this server, whose start is {start}, is not in it"
        raise Conflict(f"{refused}: {why}", dataset=dataset.name, start=start)
    if dataset.servers not in ((), request.servers):
        raise Conflict(f"{refused}: it was sealed with another one", dataset=dataset.name)
    chosen = dataset.attempts.chosen(request.attempts)
    if chosen is not None:
        rows = sum(each.rows for each in chosen)
    elif dataset.sealed:
        rows = sum(each.totals.rows for each in dataset.partitions())
    else:
        return  # another call of the seal, which was compared, moves them
    if rows != mine.rows:
        why = f"it says that this server has {mine.rows} rows, and it has {rows}"
        raise Conflict(f"{refused}: {why}", dataset=dataset.name, start=start)


def server_count(dataset: Dataset) -> int:
    """How many servers hold a part of it, as far as this one was told."""
    return max(1, len(dataset.servers))


def check_names_start(dataset: Dataset, start: str | None) -> None:
    """Raise InvalidRequest if a request for frames names no start, and other servers hold a part of the dataset."""
    if start is None and server_count(dataset) > 1:
        raise InvalidRequest(
            f"this server holds a part of dataset {dataset.name!r} only, and {server_count(dataset) - 1} others the "
            "rest: ask get_flight_info, on any of them; each of its tickets and locations names the start of the "
            "server that holds the part",
            dataset=dataset.name,
        )


def whole(dataset: Dataset) -> dict[str, int] | None:
    """How many servers have a part, and the rows and stored bytes of all parts; None if this one has everything."""
    held = dataset.servers
    if len(held) < 2:
        return None
    rows, size_bytes = sum(each.rows for each in held), sum(each.bytes for each in held)
    return {"servers": len(held), "rows": rows, "bytes": size_bytes}


class _Held(tuple[ServerPortion, ...]):  # noqa: SLOT001  # a tuple with slots can have no attribute
    """A list of servers, and the room that it has for as long as it is held."""

    room: Reservation


def set_servers(dataset: Dataset, servers: tuple[ServerPortion, ...], metadata: Metadata) -> None:
    """Let the dataset have this list. Raises OutOfBudget."""
    if servers == dataset.servers:
        return
    held = _Held(servers)
    size_bytes = sum(each.kept_bytes for each in servers)
    held.room = metadata.reserve(size_bytes, f"the servers of dataset {dataset.name!r}", dataset=dataset.name)
    dataset.servers = held
