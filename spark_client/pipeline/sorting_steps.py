"""Checks of the columns that rows are ordered by."""

from __future__ import annotations

from typing import Any

from flight_server.protocol import InvalidRequest
from spark_client.arrow import SortKey, check_sortable, is_pair, sort_key
from spark_client.jobs import check_key

from .base import Steps


class Sorting(Steps):
    """See the module."""

    def _sort_keys(self, given: Any, where: str) -> tuple[SortKey, ...]:
        """The keys to sort by, one or a list of them, or none for None, with the columns' names as Spark resolves them.

        Raises:
            InvalidRequest: no such form, no such column, or a type without an order.
        """
        if given is None:
            return ()
        if isinstance(given, str | SortKey) or is_pair(given):
            given = [given]
        if not isinstance(given, list | tuple):
            raise InvalidRequest(
                f"{where}: rows are sorted by names of columns, such as sort=['time desc'], not "
                f"{type(given).__name__}; make an expression a column by select first"
            )
        keys = tuple(sort_key(each, where, self._column) for each in given)
        self._keys(tuple(key.column for key in keys), where)
        for key in keys:
            check_key(self.leg.fields[key.column], where)
            try:
                check_sortable(self._schema.field(key.column).type, key.column)
            except TypeError as error:
                raise InvalidRequest(f"{where}: cannot sort: {error}", column=key.column) from error
        return keys

    def _column(self, name: str) -> str | None:
        """The column that the name stands for; None if there is none."""
        same = self._named(name)
        return self._keys((name,), "sort")[0] if same else None
