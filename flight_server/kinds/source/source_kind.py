"""SourceKind: the kind ``source``, as the server's other rooms see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from flight_server.datasets import Catalogue, Dataset
from flight_server.frames import SchemaMessage
from flight_server.kinds import DatasetKind, check_no_deletes, check_no_transaction
from flight_server.protocol import Conflict, CreateRequest, PutCommand

if TYPE_CHECKING:
    from .creation import Sources


class SourceKind(DatasetKind):
    """Datasets of kind ``source``. ``sources`` is called in a thread, because its first call imports libraries."""

    def __init__(self, catalogue: Catalogue, sources: Callable[[], Sources]) -> None:
        super().__init__(catalogue)
        self._sources = sources

    async def create(self, request: CreateRequest, schema: SchemaMessage | None) -> tuple[Dataset, bool]:
        """Raises as :meth:`Sources.create`."""
        sources = await asyncio.to_thread(self._sources)
        return await sources.create(request, schema)

    def sink(self, command: PutCommand, dataset: Dataset | None, schema: SchemaMessage) -> NoReturn:
        assert dataset is not None
        check_no_deletes(self.catalogue, command)
        check_no_transaction(command)
        raise Conflict(
            f"dataset {dataset.name!r} is of kind {dataset.kind.value!r}, which takes no puts; choose another name",
            dataset=dataset.name,
        )
