"""Caller: the principal of one call, and the datasets as far as it may see them.

Guarantee: lanes and actions reach datasets only through their caller. A dataset that the principal does not see is
reported exactly as a name that leads nowhere: by the same error, with the same text and detail, whether it is there,
staged or damaged. One that it sees, but on which it lacks the permission of the call's operation, is refused by its
name alone, whether it is there or not.

Ambiguous names
    Texts that can be a dataset's name, or name a partition of another dataset:

    text                        where                     as a name              as a partition
    ==========================  ========================  =====================  =======================
    ``d/3``                     a ticket that is no JSON  the dataset ``d/3``    partition 3 of ``d``
    ``d/partitions/3``          a path of the bulk lane   that whole name        partition 3 of ``d``

    Such a text has the meaning that exists. If both exist it is refused, so that a dataset that is created later never
    answers the readers of another one. A partition exists if its dataset has so many; a dataset whose files are in
    quarantine exists, too. These forms have one meaning always: a JSON ticket, as get_flight_info gives it; a path with
    ``?generation=``, as it gives it; a path whose name has its slashes as ``%2F``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from flight_server.access import Operation, Permission, Principal, Resource
from flight_server.protocol import Forbidden, InvalidRequest, NotFound, Ticket, parse_partition

from .catalogue import Catalogue
from .dataset import Dataset
from .generations import check_start, missing
from .spread import check_names_start

_NUMBER = re.compile(r"[0-9]{1,6}")


class Caller:
    """One call's. ``operation``: the row of the table of access that the call is dispatched from.

    Raises:
        Forbidden: the operation is on the whole server, and the principal lacks the permission on every name.
    """

    __slots__ = ("_catalogue", "operation", "peer", "principal")

    def __init__(
        self,
        catalogue: Catalogue,
        principal: Principal,
        operation: Operation,
        peer: str = "unknown",
    ) -> None:
        self._catalogue = catalogue
        self.principal = principal
        self.operation = operation
        self.peer = peer
        if operation.resource is Resource.SERVER:
            self._check_server()

    def doing(self, operation: Operation) -> Caller:
        """The same caller in another row. Raises as the constructor."""
        return Caller(self._catalogue, self.principal, operation, self.peer)

    # Permissions

    def sees(self, name: str) -> bool:
        return self.principal.sees(name)

    @property
    def sees_all(self) -> bool:
        """Whether it may know the numbers of the whole server."""
        return self.principal.sees_all

    def check(self, name: str, generation: str | None = None, start: str | None = None) -> None:
        """Check the operation's permission on a dataset.

        Raises:
            ServerLost, NotFound: the principal does not see it, unless the call may make it.
            Forbidden: it lacks the permission.
        """
        operation, principal = self.operation, self.principal
        if operation.resource is not Resource.NEW and not principal.sees(name):
            check_start(name, start)
            raise missing(name, generation, self._catalogue.started, here=start is not None)
        if isinstance(operation.permission, Permission):
            self.check_permission(operation.permission, name)

    def check_permission(self, permission: Permission, name: str, why: str = "") -> None:
        """Raise Forbidden if the principal lacks the permission on that name."""
        if not self.principal.may(permission, name):
            raise Forbidden(
                f"principal {self.principal.name!r} may not do {self.operation.call!r} with dataset {name!r}{why}: it "
                f"needs {permission.value!r} on a prefix of that name; ask who keeps the server's --token-file, or "
                "take a name below a prefix that it has",
                principal=self.principal.name,
                operation=self.operation.call,
                permission=permission.value,
                dataset=name,
            )

    def _check_server(self) -> None:
        wanted = self.operation.permission
        assert isinstance(wanted, Permission)
        if not (self.principal.may(wanted, "") or self.principal.may(Permission.ADMIN, "")):
            raise Forbidden(
                f"principal {self.principal.name!r} may not do {self.operation.call!r}: it is for principals that have "
                f'{wanted.value!r} on every dataset, that is on the prefix ""; ask who keeps the server\'s '
                "--token-file",
                principal=self.principal.name,
                operation=self.operation.call,
                permission=wanted.value,
            )

    # Datasets with the operation's permission

    def find(self, name: str, generation: str | None = None, start: str | None = None) -> Dataset:
        """Raises as :meth:`check` and :meth:`Catalogue.find`."""
        self.check(name, generation, start)
        return self._catalogue.find(name, generation, start)

    def portion_of(self, name: str, generation: str | None, start: str | None) -> Dataset:
        """The dataset, for its frames. Raises as :meth:`find` and :func:`~.spread.check_names_start`."""
        dataset = self.find(name, generation, start)
        check_names_start(dataset, start)
        return dataset

    def meant(self, ticket: Ticket) -> tuple[str, int | None]:
        """The name, and the partition, of a ticket among the datasets that the principal sees; neither need exist.
        Raises as :meth:`one_meaning`.
        """
        name = _partitioned_name(ticket)
        if name is None or not self._has(name):
            return ticket.dataset, ticket.partition
        return self.one_meaning(ticket.dataset, name, parse_partition(ticket.dataset[len(name) + 1 :]))

    def one_meaning(
        self, whole: str, name: str, index: int, generation: str | None = None
    ) -> tuple[str, int | None]:
        """``whole`` and None for the dataset of that name, or ``name`` and ``index`` for the partition; among the
        datasets that the principal sees.

        Raises:
            InvalidRequest: both exist, and no generation says which.
            DataQuarantined: the dataset ``whole`` is in quarantine, and no generation says which.
        """
        catalogue, is_dataset = self._catalogue, self._has(whole)
        partitioned = catalogue.get(name, generation) if self.sees(name) else None
        if generation is not None:
            known = self.sees(whole) and catalogue.leads_to(whole, generation)
            is_dataset = known or (is_dataset and partitioned is None)
        elif not is_dataset:
            if self.sees(whole):
                catalogue.check_quarantine(whole)
        elif partitioned is not None and index < partitioned.partition_count:
            raise InvalidRequest(
                f"{whole!r} is a dataset, and partition {index} of dataset {name!r} is there, too: take the tickets "
                'and locations of get_flight_info, or a ticket {"dataset": …}; in a path the name of a dataset may '
                "have its slashes as %2F",
                dataset=whole,
            )
        return (whole, None) if is_dataset else (name, index)

    def _has(self, name: str) -> bool:
        return self.sees(name) and self._catalogue.has(name)

    def resolve(self, ticket: Ticket) -> tuple[Dataset, int]:
        """The dataset and the partition of a ticket, of several the first one. A bare ``name/3`` may be partition 3,
        see "Ambiguous names".

        Raises:
            InvalidRequest: the ticket names no partition, and the dataset has several; or it can mean two things; or
                it names no start, and other servers hold a part of the dataset.
            ServerLost, NotFound, DataQuarantined, StaleTicket, OutOfBudget, Forbidden: see :meth:`find` and
                :meth:`Dataset.partition`.
        """
        name, index = self.meant(ticket)
        try:
            dataset = self.portion_of(name, ticket.generation, ticket.start)
        except NotFound as error:
            other = _partitioned_name(ticket)
            if other is None or "ended" in error.detail:
                raise
            self._check_ended(other)
            raise
        if index is None:
            index = _first_of(dataset, ticket)
        dataset.partition(index)
        return dataset, index

    def _check_ended(self, name: str) -> None:
        """Raise NotFound if it is known why the dataset is gone, and the principal may know it."""
        try:
            self.find(name)
        except Forbidden:
            pass
        except NotFound as error:
            if "ended" in error.detail:
                raise error from None

    def listed(self, prefix: str = "") -> list[Dataset]:
        """Those whose name starts with ``prefix`` that the operation may show, sorted by name."""
        found = self._catalogue.listed(prefix)
        wanted = self.operation.permission
        shown: Callable[[str], bool] = self.principal.sees
        if isinstance(wanted, Permission):
            shown = lambda name: self.principal.may(wanted, name)  # noqa: E731  # beside the other one
        return [each for each in found if shown(each.name)]

    def seen(self, datasets: list[Dataset]) -> list[Dataset]:
        """Those of the datasets, which may have no name, that the principal sees."""
        return [each for each in datasets if self.principal.sees(each.name)]


def _partitioned_name(ticket: Ticket) -> str | None:
    """The dataset of which the ticket may name a partition in a bare text."""
    name, _, number = ticket.dataset.rpartition("/")
    return name if ticket.bare and _NUMBER.fullmatch(number) else None


def _first_of(dataset: Dataset, ticket: Ticket) -> int:
    """The first partition that a ticket without one partition is for.

    Raises:
        InvalidRequest: it lists none, and the dataset has several.
        NotFound: see :meth:`Dataset.listed`.
    """
    if ticket.partitions is not None:
        return dataset.listed(ticket.partitions)[0]
    name, count = dataset.name, dataset.partition_count
    if count > 1:
        raise InvalidRequest(
            f"dataset {name!r} has {count} partitions and the ticket names none: take "
            f"the tickets of get_flight_info, or '{name}/0' to '{name}/{count - 1}'",
            dataset=name,
        )
    return 0
