"""Endings: why datasets are gone, for the errors of calls that come too late.

Guarantee: an error about a dataset that was taken away says why and when: which client dropped it, or that its lease or
retention ended, another write took its name, or its own write failed. A call that comes after its streams have ended
learns it, too, unless ``_MOST`` other datasets have gone since, or the server has restarted.

Each text follows the dataset's name in a sentence. How to keep it stands in brackets, where that is known.
"""

from __future__ import annotations

from datetime import UTC, datetime

OVERWRITTEN = "was overwritten"
SERVER_ENDED = "ended with its server"
_MOST = 10_000
"""As long names as may be take some MiB."""


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
