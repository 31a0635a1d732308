"""Holding: the action ``hold`` on a changelog, on disk before it is answered."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from functools import partial

from flight_server.access import ANYONE, Permission
from flight_server.datasets import Caller
from flight_server.protocol import HoldRequest, NotFound, Unavailable
from flight_server.storage import DiskTrouble, in_thread

from .changelog import Changelog
from .holds import Hold
from .journal import hold_entry, release_entry
from .saving import OF_KEPT_FOR_HOLDS


async def take_hold(
    changelog: Changelog, request: HoldRequest, threads: Executor, caller: Caller
) -> dict[str, object]:
    """Take, renew, move or release a hold; it is on disk.

    Raises:
        DatasetDropped, DataQuarantined: the changelog takes no writes.
        Compacted, InvalidRequest, OutOfBudget: see :meth:`Holds.check`.
        NotFound: a release of a hold that there is not.
        Forbidden: the hold, or the one to be released, is another principal's, and the caller is no admin.
        Unavailable: the disk refuses.
    """
    async with changelog.turn:
        changelog.step("write")
        for name in {request.hold, request.releases} - {None}:
            _check_owner(changelog, changelog.holds.get(str(name)), caller)
        released = set() if request.releases is None else {request.releases} - {request.hold}
        if request.release and not changelog.holds.knows(request.hold):
            raise NotFound(
                f"dataset {changelog.name!r} has no hold {request.hold!r}: it was never taken, was released, or "
                "ended long ago; 'statistics' lists the holds that there are",
                dataset=changelog.name,
            )
        if request.release:
            released.add(request.hold)
        now = time.monotonic()
        until = now + request.lease_seconds
        held = changelog.holds.get(request.hold)
        entries = [release_entry(sorted(released))] if released else []
        if request.release:
            version = changelog.upper if held is None else held.version
        else:
            version = changelog.holds.check(request.hold, request.version, changelog.since, changelog.upper)
            # Before the disk is awaited, so that no merge goes past it meanwhile.
            hold = changelog.holds.put(
                request.hold, version, until, taken=now, owner=request.owner, principal=_name_of(caller)
            )
            entries.append(hold_entry(request.hold, hold))
        try:
            await in_thread(threads, partial(changelog.log.append, entries, of_kept=OF_KEPT_FOR_HOLDS))
        except DiskTrouble as trouble:
            raise Unavailable(
                f"dataset {changelog.name!r}: the hold is not on disk: {trouble}; ask again",
                dataset=changelog.name,
            ) from None
        changelog.holds.release(released)
    changelog.wake()
    return {
        "hold": request.hold,
        "version": version,
        "since": changelog.since,
        "upper": changelog.upper,
        "lease_left_seconds": 0.0 if request.release else round(until - time.monotonic(), 3),
    }


def _check_owner(changelog: Changelog, hold: Hold | None, caller: Caller) -> None:
    if hold is not None and hold.principal not in (None, caller.principal.name):
        caller.check_permission(Permission.ADMIN, changelog.name, ", whose hold another principal has taken")


def _name_of(caller: Caller) -> str | None:
    """The principal; None on a server without tokens, where any client may do everything."""
    return None if caller.principal.name == ANYONE else caller.principal.name
