"""SourceKind: the kind ``source``, as the server's other rooms see it.

Guarantee: when ``create`` succeeds, the server has looked at the source and knows its partitions and schema.

    create {"dataset": "d", "kind": "source", "source": {…}}    (see ``files`` and ``relay``)

Creating the same again does not look at the source again. Only a new generation sees new files in a directory; it comes
with a ``create`` after a ``drop``, or when a pull finds that the source has changed (``pulls``).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import structlog

from flight_server.access import acting_for
from flight_server.datasets import Catalogue, Dataset
from flight_server.frames import SchemaMessage
from flight_server.kinds import DatasetKind, check_no_deletes, check_no_transaction
from flight_server.protocol import (
    AlreadyExists,
    Conflict,
    CreateRequest,
    FlightShuffleError,
    InvalidRequest,
    PutCommand,
    dump_json,
    parsed_bytes,
)

from .pulls import Pulling, Pulls, Source

if TYPE_CHECKING:
    from .files import FileSource
    from .relay import RelaySource

_log = structlog.get_logger("flight_server.kinds.source.source_kind")


class SourceKind(DatasetKind):
    """Datasets of kind ``source``."""

    def __init__(self, catalogue: Catalogue, pulling: Pulling) -> None:
        super().__init__(catalogue)
        self._pulling = pulling

    async def create(self, request: CreateRequest, schema: SchemaMessage | None) -> tuple[Dataset, bool]:
        """The dataset, and whether it was made now.

        Raises:
            InvalidRequest: the source is not one; see ``files`` and ``relay`` for more errors.
            Forbidden: the configuration does not allow it.
            AlreadyExists: the name is taken by a dataset created otherwise.
            Draining: the server is going down.
        """
        if schema is not None:
            raise InvalidRequest("create: a source has the schema of what is pulled: leave 'schema' out")
        if request.durable:
            raise InvalidRequest("create: a source is not 'durable': it is pulled again when it is needed")
        known = self._known(request)
        if known is not None:
            return known, False
        source = await self._open(request)
        if request.partitions not in (1, source.partition_count):
            raise InvalidRequest(
                f"create: the source has {source.partition_count} partitions, not {request.partitions}; leave "
                "'partitions' out"
            )
        known = self._known(request)  # another create may have been faster
        if known is not None:
            return known, False
        return self._install(request, source), True

    def sink(self, command: PutCommand, dataset: Dataset | None, schema: SchemaMessage) -> NoReturn:
        assert dataset is not None
        check_no_deletes(self.catalogue, command)
        check_no_transaction(command)
        raise Conflict.about(
            dataset.name, f"is of kind {dataset.kind.value!r}, which takes no puts; choose another name"
        )

    def _known(self, request: CreateRequest) -> Dataset | None:
        """The dataset, if the same request has created it."""
        self.catalogue.check_open()
        known = self.catalogue.get(request.dataset)
        if known is None or known.failure is not None:
            return None
        if not isinstance(known.attached, Pulls) or known.attached.request != request.source:
            raise AlreadyExists.about(
                known.name, "exists and was created otherwise; drop it first, or choose another name"
            )
        return self.catalogue.create(replace(request, partitions=known.partition_count), None)[0]

    def _install(self, request: CreateRequest, source: Source) -> Dataset:
        catalogue, name = self.catalogue, request.dataset
        described_bytes = parsed_bytes(dump_json(request.source or {}))  # as objects
        room = catalogue.budget.metadata.reserve(
            source.held_bytes + described_bytes, f"the source of dataset {name!r}", dataset=name
        )
        dataset = catalogue.prepare(replace(request, partitions=source.partition_count), source.schema)
        assert dataset.schema is not None
        source.schema = dataset.schema  # the one that is counted; equal ones are held once
        renew = partial(self._renew, request)
        dataset.attached = Pulls(self._pulling, source, request.source, renew, room)
        catalogue.install(dataset)
        return dataset

    async def _renew(self, request: CreateRequest, old: Dataset) -> None:
        """Install a new generation in the place of ``old``, if that still has its name. It has the same owner.

        A failure is logged; the next pull that finds a change tries again.
        """
        facts = {"dataset": old.name, "generation": old.generation}
        try:
            source = await self._open(request)
            if self.catalogue.get(old.name) is old and not self.catalogue.draining:
                with acting_for(old.owner):
                    new = self._install(request, source)
                _log.info("source_renewed", new_generation=new.generation, **facts)
        except FlightShuffleError as error:
            _log.warning("source_not_renewed", reason=error.message, **facts)

    async def _open(self, request: CreateRequest) -> Source:
        assert request.source is not None
        if "flight" in request.source:
            relay = await asyncio.to_thread(_relay_source)
            return await relay.open(request.source, request.dataset, self._pulling)
        files = await asyncio.to_thread(_file_source)
        return await files.open(request.source, self._pulling)


# Imported for the first source, in a thread: the libraries of the file formats cost 9 MiB and a tenth of a second.


def _file_source() -> type[FileSource]:
    from .files import FileSource  # noqa: PLC0415  # as said above

    return FileSource


def _relay_source() -> type[RelaySource]:
    from .relay import RelaySource  # noqa: PLC0415  # as said above

    return RelaySource
