"""Schemas: the schemas of all datasets, each held once and counted in ``metadata``."""

from __future__ import annotations

import weakref

from flight_server.memory import Budget, Reservation
from flight_server.protocol import InvalidRequest

from .schema_message import SchemaMessage

UNCOUNTED_BYTES = 1 << 10
"""A schema up to this size is part of ``DATASET_BYTES``."""


class Schemas:
    """The table of one server. It holds its entries weakly.

    A schema of more than ``UNCOUNTED_BYTES`` has a reservation while a dataset has it; a new dataset whose schema does
    not fit is refused. Datasets hold the ``SchemaMessage``, and this its reservation.
    """

    def __init__(self, budget: Budget) -> None:
        self.max_bytes = budget.max_schema_bytes
        self._metadata = budget.metadata
        self._held: weakref.WeakValueDictionary[bytes, SchemaMessage] = weakref.WeakValueDictionary()

    def hold(self, schema: SchemaMessage, dataset: str) -> SchemaMessage:
        """The shared object of this schema.

        Raises:
            InvalidRequest: it is larger than ``max_bytes``.
            OutOfBudget: ``metadata`` has no room for it.
        """
        size_bytes = len(schema.header)
        if size_bytes > self.max_bytes:
            raise InvalidRequest(
                f"dataset {dataset!r}: its schema has {size_bytes} bytes with its metadata, more than this "
                f"server's limit of {self.max_bytes}: take fewer columns or less metadata, or raise --max-schema",
                dataset=dataset,
                limit_bytes=self.max_bytes,
            )
        return self._held.get(schema.header) or self._new(schema, self.room(size_bytes, dataset))

    def recovered(self, schema: SchemaMessage) -> SchemaMessage:
        """The same for a dataset found at the start: never refused."""
        size_bytes = len(schema.header)
        room = self._metadata.pool.reserve(size_bytes) if size_bytes > UNCOUNTED_BYTES else None
        return self._held.get(schema.header) or self._new(schema, room)

    def room(self, size_bytes: int, dataset: str) -> Reservation | None:
        """A reservation for so much of a schema; None up to ``UNCOUNTED_BYTES``. Raises OutOfBudget."""
        if size_bytes <= UNCOUNTED_BYTES:
            return None
        return self._metadata.reserve(size_bytes, f"the schema of dataset {dataset!r}", dataset=dataset)

    def _new(self, schema: SchemaMessage, room: Reservation | None) -> SchemaMessage:
        held = self._held[schema.header] = SchemaMessage(schema.header, room)
        return held
