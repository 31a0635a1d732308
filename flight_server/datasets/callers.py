"""Caller: the principal of one call, and the datasets as far as it may see them.

Guarantee: lanes and actions reach datasets only through their caller. A dataset that the principal does not see is
reported exactly as a name that leads nowhere: by the same error, with the same text and detail, whether it is there,
staged or damaged. One that it sees, but on which it lacks the permission of the call's operation, is refused by its
name alone, whether it is there or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from flight_server.access import Operation, Permission, Principal, Resource
from flight_server.protocol import Forbidden, InvalidRequest, Ticket

from .catalogue import Catalogue
from .dataset import Dataset
from .generations import check_start, missing
from .spread import check_names_start


@dataclass(frozen=True, slots=True)
class Caller:
    """One call's. ``operation``: the row of the table of access that the call is dispatched from. Raises Forbidden: the
    operation is on the whole server, and the principal lacks the permission on every name.
    """

    _catalogue: Catalogue
    principal: Principal
    operation: Operation
    peer: str = "unknown"

    def __post_init__(self) -> None:
        if self.operation.resource is Resource.SERVER:
            self._check_server()

    def doing(self, operation: Operation) -> Caller:
        """The same caller in another row. Raises as the constructor."""
        return replace(self, operation=operation)

    # Permissions

    def sees(self, name: str) -> bool:
        return self.principal.sees(name)

    @property
    def sees_all(self) -> bool:
        """Whether it may know the numbers of the whole server."""
        return self.principal.sees_all

    def check(self, name: str, generation: str | None = None, start: str | None = None) -> None:
        """Check the operation's permission on a dataset. Raises ServerLost, NotFound: the principal does not see it,
        unless the call may make it; Forbidden: it lacks the permission.
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
        permission = self.operation.permission
        assert isinstance(permission, Permission)
        if not (self.principal.may(permission, "") or self.principal.may(Permission.ADMIN, "")):
            raise Forbidden(
                f"principal {self.principal.name!r} may not do {self.operation.call!r}: it is for principals that have "
                f'{permission.value!r} on every dataset, that is on the prefix ""; ask who keeps the server\'s '
                "--token-file",
                principal=self.principal.name,
                operation=self.operation.call,
                permission=permission.value,
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

    def resolve(self, ticket: Ticket) -> tuple[Dataset, int]:
        """The dataset and the partition of a ticket, of several the first one.

        Raises:
            InvalidRequest: the ticket names no partition, and the dataset has several; or it names no start, and other
                servers hold a part of the dataset.
            ServerLost, NotFound, DataQuarantined, StaleTicket, OutOfBudget, Forbidden: see :meth:`find` and
                :meth:`Dataset.partition`.
        """
        dataset, index = self.portion_of(ticket.dataset, ticket.generation, ticket.start), ticket.partition
        if index is None:
            index = _first_of(dataset, ticket)
        dataset.partition(index)
        return dataset, index

    def listed(self, prefix: str = "") -> list[Dataset]:
        """Those whose name starts with ``prefix`` that the operation may show, sorted by name."""
        datasets = self._catalogue.listed(prefix)
        permission = self.operation.permission
        shown: Callable[[str], bool] = self.principal.sees
        if isinstance(permission, Permission):
            shown = partial(self.principal.may, permission)
        return [each for each in datasets if shown(each.name)]

    def seen(self, datasets: list[Dataset]) -> list[Dataset]:
        """Those of the datasets, which may have no name, that the principal sees."""
        return [each for each in datasets if self.principal.sees(each.name)]


def _first_of(dataset: Dataset, ticket: Ticket) -> int:
    """The first partition that a ticket without one partition is for. Raises InvalidRequest: it lists none, and the
    dataset has several; NotFound: see :meth:`Dataset.listed`.

    A ticket for versions is for the first, too: a kind that has none says so.
    """
    if ticket.partitions is not None:
        return dataset.listed(ticket.partitions)[0]
    name, count = dataset.name, dataset.partition_count
    if count > 1 and ticket.versions is None:
        raise InvalidRequest.about(
            name,
            f"has {count} partitions and the ticket names none: take the tickets of get_flight_info, or '{name}/0' "
            f"to '{name}/{count - 1}'",
        )
    return 0
