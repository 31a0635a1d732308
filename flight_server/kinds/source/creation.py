"""Sources: creates datasets of kind ``source``.

Guarantee: when ``create`` succeeds, the server has looked at the source and knows its partitions and schema.

    create {"dataset": "d", "kind": "source", "source": {…}}    (see ``files`` and ``relay``)

Creating the same again does not look at the source again. Only a new generation sees new files in a directory; it comes
with a ``create`` after a ``drop``, or when a pull finds that the source has changed (``pulls``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import structlog

from flight_server.access import FlightLocation, acting_for
from flight_server.datasets import Catalogue, Dataset
from flight_server.frames import SchemaMessage
from flight_server.protocol import (
    AlreadyExists,
    CreateRequest,
    FlightShuffleError,
    Forbidden,
    InvalidRequest,
    dump_json,
    parsed_bytes,
)

from .files import FileSource, FileSpec, OpenFile
from .pulls import Pulling, Pulls, Request
from .relay import FlightSpec, RelaySource
from .roots import Roots
from .s3 import SCHEME as S3_SCHEME
from .s3 import S3Files
from .source import Source
from .tree_relay import TreeRelay

_log = structlog.get_logger("flight_server.kinds.source.creation")


@dataclass(frozen=True)
class Allowed:
    """The places that sources may read, and the largest of their messages."""

    roots: Sequence[Path]
    s3: bool
    flight: Sequence[FlightLocation]
    max_message_bytes: int
    full_validation: bool
    keepalive_seconds: float

    def reaches(self, location: FlightLocation) -> bool:
        """Whether a source may pull from there."""
        return any(each.covers(location) for each in self.flight)


class Sources:
    """Creates datasets of kind ``source``."""

    def __init__(self, catalogue: Catalogue, pulling: Pulling, allowed: Allowed) -> None:
        self._catalogue = catalogue
        self._pulling = pulling
        self._allowed = allowed

    async def create(self, request: CreateRequest, wanted: SchemaMessage | None) -> tuple[Dataset, bool]:
        """The dataset, and whether it was made now.

        Raises:
            InvalidRequest: the source is not one; see ``files`` and ``relay`` for more errors.
            Forbidden: the configuration does not allow it.
            AlreadyExists: the name is taken by a dataset created otherwise.
            Draining: the server is going down.
        """
        if request.durable:
            raise InvalidRequest("create: a source is not 'durable': it is pulled again when it is needed")
        known = self._known(request)
        if known is None:
            source = await self._open(request, wanted)
            if request.partitions not in (1, source.partition_count):
                raise InvalidRequest(
                    f"create: the source has {source.partition_count} partitions, not {request.partitions}; leave "
                    "'partitions' out"
                )
            known = self._known(request)  # another create may have been faster
            if known is None:
                return self._install(replace(request, schema=None), _asked(request), wanted, source), True
        return known, False

    def _known(self, request: CreateRequest) -> Dataset | None:
        """The dataset, if the same request has created it."""
        self._catalogue.check_open()
        known = self._catalogue.get(request.dataset)
        if known is None or known.failure is not None:
            return None
        made = known.attached.request if isinstance(known.attached, Pulls) else None
        if made is None or made != _asked(request):
            raise AlreadyExists(
                f"dataset {known.name!r} exists and was created otherwise; drop it first, or choose another name",
                dataset=known.name,
            )
        return self._catalogue.create(replace(request, partitions=known.partition_count), None)[0]

    def _install(
        self, request: CreateRequest, asked: Request, wanted: SchemaMessage | None, source: Source
    ) -> Dataset:
        catalogue, name = self._catalogue, request.dataset
        room = catalogue.budget.metadata.reserve(
            source.held_bytes + _described_bytes(request), f"the source of dataset {name!r}", dataset=name
        )
        dataset = catalogue.prepare(replace(request, partitions=source.partition_count), source.schema)
        assert dataset.schema is not None
        # Each schema once: the dataset's, which is counted, and the one that was asked for if it is another.
        source.schema = dataset.schema
        if wanted is not None:
            wanted = catalogue.schemas.hold(wanted, name)
        dataset.attached = Pulls(
            self._pulling, source, asked, partial(self._renew, request, asked, wanted), room
        )
        catalogue.install(dataset)
        return dataset

    async def _renew(
        self, request: CreateRequest, asked: Request, wanted: SchemaMessage | None, old: Dataset
    ) -> None:
        """Install a new generation in the place of ``old``, if that still has its name. It has the same owner.

        A failure is logged; the next pull that finds a change tries again.
        """
        facts = {"dataset": old.name, "generation": old.generation}
        try:
            source = await self._open(request, wanted)
            if self._catalogue.get(old.name) is old and not self._catalogue.draining:
                with acting_for(old.owner):
                    new = self._install(request, asked, wanted, source)
                _log.info("source_renewed", new_generation=new.generation, **facts)
        except FlightShuffleError as error:
            _log.warning("source_not_renewed", reason=error.message, **facts)

    async def _open(self, request: CreateRequest, wanted: SchemaMessage | None) -> Source:
        assert request.source is not None
        allowed = self._allowed
        if "flight" in request.source:
            spec = FlightSpec.of(request.source)
            if not allowed.reaches(spec.location):
                raise Forbidden(
                    f"source: this server does not pull from {spec.location}: it would have to be started with "
                    f"--source-flight {spec.location}"
                )
            in_tree = {} if spec.tree is None else {"name": request.dataset, "may_reach": allowed.reaches}
            relay = await (TreeRelay if in_tree else RelaySource).open(
                spec,
                **in_tree,
                max_message_bytes=allowed.max_message_bytes,
                full_validation=allowed.full_validation,
                keepalive_seconds=allowed.keepalive_seconds,
                background=self._pulling.background,
            )
            if wanted is not None:
                relay.schema.check_same(wanted, request.dataset)
            return relay
        return await FileSource.open(
            FileSpec.of(request.source),
            _Anywhere(Roots(allowed.roots), S3Files() if allowed.s3 else None),
            None if wanted is None else wanted.schema,
            self._pulling.background,
            decoding=self._catalogue.budget.decoding,
            max_message_bytes=allowed.max_message_bytes,
            full_validation=allowed.full_validation,
        )


def _asked(request: CreateRequest) -> Request:
    """The request as a later ``create`` is compared with it: the source, and of the schema its digest."""
    schema = request.schema
    return request.source, None if schema is None else sha256(schema.encode()).digest()


def _described_bytes(request: CreateRequest) -> int:
    """The size of the source's description as objects."""
    return parsed_bytes(dump_json(request.source or {}))


class _Anywhere:
    """Local files and, if allowed, objects in S3."""

    def __init__(self, roots: Roots, s3: S3Files | None) -> None:
        self._roots = roots
        self._s3 = s3

    def files(self, path: str) -> list[str]:
        if self._s3 is not None and path.startswith(S3_SCHEME):
            return self._s3.files(path)
        return self._roots.files(path)

    def open(self, path: str) -> OpenFile:
        if self._s3 is not None and path.startswith(S3_SCHEME):
            return self._s3.open(path)
        return self._roots.open(path)
