"""Principals: the holders of tokens, and what each may do with datasets of which names.

Guarantee: a principal *sees* a dataset if it has any permission on a prefix of its name; what it does not see does not
exist for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


class Permission(StrEnum):
    """A permission on all datasets whose names begin with a prefix.

    ``read``: their rows, schemas and FlightInfos. ``write``: create, put, seal, drop. ``admin``: ``write``, and what
    other principals hold.
    """

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True)
class Quotas:
    """The most that one principal may have at a time; None for no limit. ``streams``: running puts and gets."""

    bytes: int | None = None
    datasets: int | None = None
    streams: int | None = None


@dataclass(frozen=True)
class Principal:
    """A principal, and the prefixes on which it has each permission; ``""`` is a prefix of every name."""

    name: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    quotas: Quotas = field(default_factory=Quotas)

    def sees(self, dataset: str) -> bool:
        return dataset.startswith(self._seen)

    def may(self, permission: Permission, dataset: str) -> bool:
        return dataset.startswith(self._prefixes[permission])

    @cached_property
    def sees_all(self) -> bool:
        """Whether it may know the numbers of the whole server: it has ``read`` or ``admin`` on every name."""
        return "" in (*self.read, *self.admin)

    def covers(self, other: Principal) -> bool:
        """Whether it has all permissions of the other one."""
        mine, others = self._prefixes, other._prefixes
        return all(prefix.startswith(mine[each]) for each in Permission for prefix in others[each])

    @cached_property
    def _prefixes(self) -> dict[Permission, tuple[str, ...]]:
        write = (*self.write, *self.admin)
        return {Permission.READ: self.read, Permission.WRITE: write, Permission.ADMIN: self.admin}

    @cached_property
    def _seen(self) -> tuple[str, ...]:
        return (*self.read, *self.write, *self.admin)


ANYONE = "anyone"
"""The principal of all clients of a server without tokens."""
OWN = "token"
"""The principal of ``--token``."""


def unlimited(name: str) -> Principal:
    """The principal of a server without tokens, or of its one ``--token``: it may do everything."""
    return Principal(name, read=("",), write=("",), admin=("",))


ANONYMOUS = Principal("")
"""The principal of calls that need no token: it may do nothing else."""
