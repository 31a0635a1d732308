"""A hold keeps the versions of a changelog from one on readable while the holder lives.

Guarantee: an open :class:`VersionHold` tries to renew its lease every third of it (``connection.leases``). After the
holder has died the server lets the versions be compacted when the lease ends; so it does when the holder lags too far
behind the newest version, and later reads of held versions get ``Compacted``.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from typing import Self

from flight_server.protocol import HOLD, FlightShuffleError, HoldRequest
from spark_client.connection import LeaseKeeper, owner_of_process

from .version_reads import ChangelogAddress


@dataclass(frozen=True)
class HeldVersion:
    """A hold of any client, as the server lists it.

    Args:
        name: by which it is released.
        owner: who holds: for Spark's queries the application, the query and its run, the driver's host and the user.
            None if the holder did not say.
        held_seconds: since it was taken; the version may have moved forward since.
        lease_left_seconds: after which it ends, unless it is renewed.
    """

    name: str
    version: int
    owner: str | None
    held_seconds: float
    lease_left_seconds: float


class VersionHold:
    """A hold that the constructor has taken; also a context manager that releases it.

    Args:
        version: the first held version; None for the newest.
        name: None for one that no other hold has.
        owner: who holds, in words for people; None for this process.

    Raises:
        Compacted: the version is before the changelog's ``since``.
        InvalidRequest: it is after its ``upper``, or the lease is out of range.
    """

    def __init__(
        self,
        address: ChangelogAddress,
        version: int | None = None,
        *,
        lease_seconds: float = 60.0,
        name: str | None = None,
        owner: str | None = None,
    ) -> None:
        self._address = address
        self._lease_seconds = lease_seconds
        self.name = name or uuid.uuid4().hex
        self._owner = owner or owner_of_process()
        self._version = self._ask(version)
        self._keeper = LeaseKeeper(
            lambda *_: self._ask(timeout_seconds=lease_seconds / 6, once=True), lease_seconds
        )
        self._keeper.add(address.dataset, address.generation)

    @property
    def version(self) -> int:
        """The first version that is held."""
        return self._version

    def advance(self, version: int) -> None:
        """Hold from ``version`` on, which must not be before the held one. Raises as the constructor."""
        self._version = self._ask(version)

    def close(self) -> None:
        """Release it; a server that cannot be reached does so when the lease ends. Twice is fine."""
        self._keeper.close()
        if self._keeper.datasets():
            self._keeper.remove(self._address.dataset)
            with contextlib.suppress(FlightShuffleError):
                self._ask(release=True, once=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(
        self,
        version: int | None = None,
        *,
        release: bool = False,
        timeout_seconds: float | None = None,
        once: bool = False,
    ) -> int:
        request = HoldRequest(
            self._address.dataset,
            self.name,
            self._address.generation,
            version,
            self._lease_seconds,
            release,
            owner=self._owner,
        )
        answer = self._address.server.action(HOLD, request.encode(), timeout_seconds, once=once)
        return int(answer.get("version") or 0)


def release_hold(address: ChangelogAddress, name: str) -> None:
    """End the hold of this name. Raises NotFound if there is none, or the changelog was dropped or replaced."""
    request = HoldRequest(address.dataset, name, address.generation, release=True)
    address.server.action(HOLD, request.encode(), once=True)
