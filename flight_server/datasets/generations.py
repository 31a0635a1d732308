"""Generations: which incarnation of a dataset's name a ticket is for, which process made it, and why it is gone. And
starts: each process draws an id of its own, so that a server that was started again, on any port, is another one.

A generation that this process has not made is of an earlier start of the server, of another server, or of none: the
errors claim no more than that.

Endings
    An error about a dataset that was taken away says why and when: which client dropped it, or that its lease or
    retention ended, another write took its name, or its own write failed. A call that comes after its streams have
    ended learns it, too, unless ``_MOST`` other datasets have gone since, or the server has restarted. Each text
    follows the dataset's name in a sentence. How to keep it stands in brackets, where that is known.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from datetime import UTC, datetime

from flight_server.protocol import NotFound, ServerLost, StaleTicket

_WRITE_DIGITS = 14
_GENERATION = re.compile(r"[0-9a-f]{16}")
OVERWRITTEN = "was overwritten"
SERVER_ENDED = "ended with its server"
_MOST = 10_000
"""The last names that are known: as long ones as may be take some MiB."""


class _Process:
    """A random prefix of this process; a forked child draws its own."""

    def __init__(self) -> None:
        self.draw()

    def draw(self) -> None:
        self.start = secrets.token_hex(8)
        self.prefix = self.start[:8]
        self.numbers = itertools.count(secrets.randbits(24))


_process = _Process()
os.register_at_fork(after_in_child=_process.draw)


def own_start() -> str:
    """The id of this start of the server."""
    return _process.start


def check_start(name: str, start: str | None) -> None:
    """Raise ServerLost if a request for a dataset is for another start than this."""
    if start is not None and start != _process.start:
        raise ServerLost.about(
            name,
            f": what is asked for is held by the server with the start {_shown(start)}, and this one's is "
            f"{_process.start!r}: that server has ended, or this is another one; write the dataset again",
            start=start,
            server_start=_process.start,
        )


def new_generation() -> str:
    """An opaque name that no other incarnation on any server has: this process's random bits and a number."""
    return f"{_process.prefix}{next(_process.numbers) & 0xFFFFFFFF:08x}"


def is_earlier_run(generation: str, other: str) -> bool:
    """Whether both are runs of one write over several servers, and ``generation`` is the earlier one."""
    return generation[:_WRITE_DIGITS] == other[:_WRITE_DIGITS] and generation < other


def from_this_process(generation: str) -> bool:
    """Whether this process, so this start of the server, made it."""
    return generation.startswith(_process.prefix)


class DroppedRuns:
    """The last generation that was dropped of each of the last writes over several servers.

    A put creates such a dataset (``PutCreate``). The task of a job that has failed may put, for as long as Spark has
    not ended it, after the driver has dropped the dataset: also on a server that had nothing of it. So no late put
    begins it again.
    """

    def __init__(self) -> None:
        self._generations: dict[str, str] = {}

    def add(self, name: str, generation: str) -> None:
        """The generation was dropped, or would have been. One that this server has drawn no put creates."""
        if not _GENERATION.fullmatch(generation) or from_this_process(generation):
            return
        before = self._generations.pop(name, generation)
        self._generations[name] = before if is_earlier_run(generation, before) else generation
        if len(self._generations) > _MOST:
            del self._generations[next(iter(self._generations))]

    def has(self, name: str, generation: str) -> bool:
        """Whether this run, or a later one of the same write, was dropped."""
        dropped = self._generations.get(name)
        return dropped is not None and (dropped == generation or is_earlier_run(generation, dropped))


def dropped_by(client: str) -> str:
    """A call of this client, its address, has dropped the dataset now."""
    return f"was dropped by the client {client} at {_now()}"


def lease_ended(seconds: float | None, failure: BaseException | None) -> str:
    """The lease has ended now. Of a dataset that has failed it is the time in which its readers get the failure."""
    if failure is not None:
        return f"was removed at {_now()}, because its write had failed ({failure})"
    return (
        f"ended with its lease of {seconds:g} s at {_now()} (to keep one, create it with a longer "
        "lease_seconds, or read, write or renew it within that time)"
    )


def retention_ended(seconds: float | None) -> str:
    """The retention has ended now."""
    return f"ended with its retention of {seconds:g} s at {_now()} (create it with a longer one)"


class Endings:
    """Why the last generation that was taken away of each of the last names is gone."""

    def __init__(self) -> None:
        # By name; a generation that the name never led to has an entry of its own.
        self._known: dict[tuple[str, str | None], tuple[str, str]] = {}

    def add(self, name: str, generation: str, why: str, *, staged: bool = False) -> None:
        """``staged``: the name never led to it."""
        key = name, generation if staged else None
        self._known.pop(key, None)
        self._known[key] = generation, why
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def of(self, name: str, generation: str | None) -> str | None:
        """Why that generation, or the last one, is gone; None if that is not known."""
        last, why = self._known.get((name, None), (None, None))
        if generation in (None, last):
            return why
        return self._known.get((name, generation), (None, None))[1]


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def missing(
    name: str, generation: str | None, started: str, *, here: bool, ended: Endings | None = None
) -> NotFound:
    """The error for a name that leads to no dataset. ``here``: the request says that this start had it: the generation
    of a write over several servers is none of theirs. ``ended``: knows why datasets are gone.
    """
    known = None if ended is None else ended.of(name, generation)
    here = here or known is not None or generation is None or from_this_process(generation)
    why = f"there is no dataset {name!r}"
    if known is not None:
        why += f": it {known}; list_flights shows what there is"
    elif here or generation is None:
        why += (
            ": it was never written, it ended long ago, or it was lost when the server was started, at "
            f"{started}; list_flights shows what there is"
        )
    elif not _GENERATION.fullmatch(generation):
        why += f", and {_shown(generation)} is no generation that a server gives; list_flights shows what there is"
    else:
        why = (
            f"dataset {name!r} is not here: its generation {generation} is not of this start of the server, at "
            f"{started}. The server was restarted, and only durable datasets outlive that, or it is another server's; "
            "write it again"
        )
    return NotFound(why, **_facts(name, generation, started, here=here), ended=known)


def stale(name: str, generation: str, started: str, *, here: bool, ended: Endings) -> StaleTicket:
    """The error for a name that leads to another generation. ``here`` and ``ended`` as for :func:`missing`."""
    known = ended.of(name, generation)
    here = here or known is not None or from_this_process(generation)
    if known is not None:
        why = f"the ticket is for an earlier generation of dataset {name!r}, which {known}"
    elif here:
        why = f"the ticket is for an earlier generation of dataset {name!r}, which was replaced"
    elif not _GENERATION.fullmatch(generation):
        why = f"the ticket is for generation {_shown(generation)} of dataset {name!r}, which no server gives"
    else:
        why = (
            f"the ticket is for generation {generation} of dataset {name!r}, which is not of this start of the server, "
            f"at {started}: it was lost when the server was restarted, or is another server's"
        )
    return StaleTicket(f"{why}; ask get_flight_info again", **_facts(name, generation, started, here=here))


def _facts(name: str, generation: str | None, started: str, *, here: bool) -> dict[str, str | bool | None]:
    earlier = not here and generation is not None and _GENERATION.fullmatch(generation) is not None
    facts = {"dataset": name, "generation": generation, "server_started": started, "restarted": earlier}
    return facts | ({"server_start": own_start()} if earlier else {})


def _shown(generation: str) -> str:
    return repr(generation if len(generation) <= 40 else generation[:40] + "…")
