"""Copies: what this server has of datasets over several servers, beside its own portions.

Guarantee: a copy is found by its dataset's name, too: by the start whose portion it is; and a request for the whole of
this server's part, such as a drop, is for its own portion and for all copies that it has.
"""

from __future__ import annotations

from typing import Protocol

from flight_server.protocol import copy_name, original

from .dataset import Dataset
from .generations import own_start
from .spread import check_names_start


class PortionCopies:
    """The names of the copies that a server has, by their dataset's."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._names.values()))

    def of(self, dataset: str) -> tuple[str, ...]:
        return tuple(self._names.get(dataset, ()))

    def add(self, name: str) -> None:
        """The name leads to a dataset, which may be a copy. Twice is fine."""
        dataset, start = original(name)
        if start is not None:
            self._names.setdefault(dataset, {})[name] = None

    def remove(self, name: str) -> None:
        """It does no more. Twice is fine."""
        dataset, _ = original(name)
        copies = self._names.get(dataset, {})
        copies.pop(name, None)
        if not copies:
            self._names.pop(dataset, None)


class Holder(Protocol):
    """A :class:`Catalogue`, as far as it is asked here."""

    portion_copies: PortionCopies

    def get(self, name: str, generation: str | None = None) -> Dataset | None: ...

    def find(self, name: str, generation: str | None = None, start: str | None = None) -> Dataset: ...


def portion_of(catalogue: Holder, name: str, generation: str | None, start: str | None) -> Dataset:
    """The dataset of the name that this server has, or its copy of the portion of another start.

    Raises:
        ServerLost, NotFound, DataQuarantined, StaleTicket: see :meth:`Catalogue.find`.
        InvalidRequest: see :func:`~.spread.check_names_start`.
    """
    if start not in (None, own_start()):
        copy = catalogue.get(copy_name(name, start or ""))
        if copy is not None and generation in (None, copy.generation):
            return copy
    found = catalogue.find(name, generation, start)
    check_names_start(found, start)
    return found


def held(catalogue: Holder, name: str, generation: str | None = None) -> list[Dataset]:
    """All that this server has of a dataset, at least one: its own, if it has that, then its copies of other portions.
    Raises as :meth:`Catalogue.find`: it has nothing.
    """
    found = (catalogue.get(each, generation) for each in (name, *catalogue.portion_copies.of(name)))
    mine = [each for each in found if each is not None and generation in (None, each.generation)]
    return mine or [catalogue.find(name, generation)]
