"""Caller: the principal of one call, and the datasets as far as it may see them.

Guarantee: lanes and actions reach datasets only through their caller. A dataset that the principal does not see is
reported exactly as a name that leads nowhere: by the same error, with the same text and detail, whether it is there,
staged or damaged. One that it sees, but on which it lacks the permission of the call's operation, is refused by its
name alone, whether it is there or not.
"""

from __future__ import annotations

from collections.abc import Callable

from flight_server.access import Operation, Permission, Principal, Resource
from flight_server.protocol import Forbidden, NotFound, Ticket

from .ambiguous_names import meant, one_meaning, partitioned_name
from .catalogue import Catalogue
from .dataset import Dataset
from .generations import check_start, missing
from .listed_partitions import first_of
from .spread import check_names_start


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
        """The name, and the partition, of a ticket among the datasets that the principal sees. Raises as
        :func:`~.ambiguous_names.meant`.
        """
        return meant(self, ticket)

    def one_meaning(
        self, whole: str, name: str, index: int, generation: str | None
    ) -> tuple[str, int | None]:
        """Raises as :func:`~.ambiguous_names.one_meaning`; among the datasets that the principal sees."""
        return one_meaning(self, whole, name, index, generation)

    def resolve(self, ticket: Ticket) -> tuple[Dataset, int]:
        """The dataset and the partition of a ticket, of several the first one. A bare ``name/3`` may be partition 3,
        see ``ambiguous_names``.

        Raises:
            InvalidRequest: the ticket names no partition, and the dataset has several; or it can mean two things; or
                it names no start, and other servers hold a part of the dataset.
            ServerLost, NotFound, DataQuarantined, StaleTicket, OutOfBudget, Forbidden: see :meth:`find` and
                :meth:`Dataset.partition`.
        """
        name, index = meant(self, ticket)
        try:
            dataset = self.portion_of(name, ticket.generation, ticket.start)
        except NotFound as error:
            other = partitioned_name(ticket)
            if other is None or "ended" in error.detail:
                raise
            self._check_ended(other)
            raise
        if index is None:
            index = first_of(dataset, ticket)
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

    # Names, as ``ambiguous_names`` asks for them

    def has(self, name: str) -> bool:
        return self.principal.sees(name) and self._catalogue.has(name)

    def leads_to(self, name: str, generation: str) -> bool:
        return self.principal.sees(name) and self._catalogue.leads_to(name, generation)

    def get(self, name: str, generation: str | None = None) -> Dataset | None:
        return self._catalogue.get(name, generation) if self.principal.sees(name) else None

    def check_quarantine(self, name: str) -> None:
        if self.principal.sees(name):
            self._catalogue.check_quarantine(name)
