"""Ambiguous names: texts that can be a dataset's name, or name a partition of another dataset.

    text                        where                     as a name              as a partition
    ==========================  ========================  =====================  =======================
    ``d/3``                     a ticket that is no JSON  the dataset ``d/3``    partition 3 of ``d``
    ``d/partitions/3``          a path of the bulk lane   that whole name        partition 3 of ``d``

Guarantee: the text has the meaning that exists. If both exist it is refused, so that a dataset that is created later
never answers the readers of another one. A partition exists if its dataset has so many; a dataset whose files are in
quarantine exists, too. These forms have one meaning always: a JSON ticket, as get_flight_info gives it;
a path with ``?generation=``, as it gives it; a path whose name has its slashes as ``%2F``.
"""

from __future__ import annotations

import re
from typing import Protocol

from flight_server.protocol import InvalidRequest, Ticket, parse_partition

from .dataset import Dataset

_NUMBER = re.compile(r"[0-9]{1,6}")


class Names(Protocol):
    """A :class:`Caller`, as far as it is asked here."""

    def has(self, name: str) -> bool: ...

    def leads_to(self, name: str, generation: str) -> bool: ...

    def get(self, name: str, generation: str | None = None) -> Dataset | None: ...

    def check_quarantine(self, name: str) -> None: ...


def meant(names: Names, ticket: Ticket) -> tuple[str, int | None]:
    """The dataset's name and the partition of a ticket; neither need exist. Raises as :func:`one_meaning`."""
    name = partitioned_name(ticket)
    if name is None or not names.has(name):
        return ticket.dataset, ticket.partition
    return one_meaning(names, ticket.dataset, name, parse_partition(ticket.dataset[len(name) + 1 :]))


def partitioned_name(ticket: Ticket) -> str | None:
    """The dataset of which the ticket may name a partition in a bare text."""
    name, _, number = ticket.dataset.rpartition("/")
    return name if ticket.bare and _NUMBER.fullmatch(number) else None


def one_meaning(
    names: Names, whole: str, name: str, index: int, generation: str | None = None
) -> tuple[str, int | None]:
    """``whole`` and None for the dataset of that name, or ``name`` and ``index`` for the partition.

    Raises:
        InvalidRequest: both exist, and no generation says which.
        DataQuarantined: the dataset ``whole`` is in quarantine, and no generation says which.
    """
    partitioned, is_dataset = names.get(name, generation), names.has(whole)
    if generation is not None:
        is_dataset = names.leads_to(whole, generation) or (is_dataset and partitioned is None)
    elif not is_dataset:
        names.check_quarantine(whole)
    elif partitioned is not None and index < partitioned.partition_count:
        raise InvalidRequest(
            f"{whole!r} is a dataset, and partition {index} of dataset {name!r} is there, too: take the tickets and "
            'locations of get_flight_info, or a ticket {"dataset": …}; in a path the name of a dataset may have its '
            "slashes as %2F",
            dataset=whole,
        )
    return (whole, None) if is_dataset else (name, index)
