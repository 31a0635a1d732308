"""A hold keeps the versions of a changelog from one on readable while the holder lives.

Guarantee: an open :class:`VersionHold` tries to renew its lease every third of it (``connection.leases``). After the
holder has died the server lets the versions be compacted when the lease ends; so it does when the holder lags too far
behind the newest version, and later reads of held versions get ``Compacted``.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from typing import Any

from flight_server.protocol import HOLD, FlightShuffleError, HoldRequest
from spark_client.connection import Closable, LeaseKeeper, owner_of_process
from spark_client.merge import DatasetRef


@dataclass(frozen=True)
class HeldVersion:
    """A hold of any client, as the server lists it.

    Args:
        name: by which it is released.
        owner: of Spark's queries the application, the query and its run, the driver's host and the user. None if the
            holder did not say.
        held_seconds: since it was taken; the version may have moved forward since.
        lease_left_seconds: after which it ends, unless it is renewed.
    """

    name: str
    version: int
    owner: str | None
    held_seconds: float
    lease_left_seconds: float


@dataclass(frozen=True)
class HeldVersions:
    """The version that a hold has, the newest one, and the oldest that could be read when it was renewed."""

    version: int
    upper: int
    since: int


@dataclass(frozen=True)
class NamedHold:
    """A hold by its name, which any process may renew; see ``protocol.HoldRequest``.

    Args:
        ref: the changelog's generation.
        lease_seconds: after which it ends, unless it is renewed.
        owner: in words for people.
    """

    ref: DatasetRef
    name: str
    lease_seconds: float = 60.0
    owner: str | None = None

    def renew(
        self,
        version: int | None = None,
        *,
        releases: str | None = None,
        timeout_seconds: float | None = None,
        once: bool = False,
    ) -> HeldVersions:
        """Hold this version, or the one that the hold has, else the newest. ``releases`` ends another hold of the same
        generation in the same step; ``once`` sends the request without trying again.

        Raises:
            Compacted: the version is before the changelog's ``since``.
            InvalidRequest: it is after its ``upper``, or the lease is out of range.
            NotFound: the changelog was dropped or replaced.
        """
        request = self._request(version=version, releases=releases)
        answer = self.ref.server.action(HOLD, request.encode(), timeout_seconds, once=once)
        return HeldVersions(int(answer["version"]), int(answer["upper"]), int(answer["since"]))

    def release(self) -> None:
        """End it. Raises NotFound if there is none, or the changelog was dropped or replaced."""
        self.ref.server.action(HOLD, self._request(release=True).encode(), once=True)

    def _request(self, **fields: Any) -> HoldRequest:
        ref = self.ref
        return HoldRequest(
            ref.dataset,
            self.name,
            ref.generation,
            lease_seconds=self.lease_seconds,
            owner=self.owner,
            **fields,
        )


class VersionHold(Closable):
    """A hold that the constructor has taken; also a context manager that releases it.

    Args:
        version: the first held version; None for the newest.
        owner: in words for people; None for this process.

    Raises:
        Compacted, InvalidRequest, NotFound: as :meth:`NamedHold.renew`.
    """

    def __init__(
        self,
        ref: DatasetRef,
        version: int | None = None,
        *,
        lease_seconds: float = 60.0,
        owner: str | None = None,
    ) -> None:
        self._hold = NamedHold(ref, uuid.uuid4().hex, lease_seconds, owner or owner_of_process())
        self.version = self._hold.renew(version).version
        self._keeper = LeaseKeeper(
            lambda: self._hold.renew(timeout_seconds=lease_seconds / 6, once=True),
            lease_seconds,
            f"a hold of {ref.dataset}",
        )
        self._keeper.begin()
        self._is_closed = False

    @property
    def name(self) -> str:
        """By which :meth:`Changelog.release` ends it."""
        return self._hold.name

    def advance(self, version: int) -> None:
        """Hold from ``version`` on, which must not be before the held one. Raises as the constructor."""
        self.version = self._hold.renew(version).version

    def close(self) -> None:
        """Release it; a server that cannot be reached does so when the lease ends. Calling it twice is fine."""
        self._keeper.close()
        is_first, self._is_closed = not self._is_closed, True
        if is_first and not self._keeper.is_gone:
            with contextlib.suppress(FlightShuffleError):
                self._hold.release()
