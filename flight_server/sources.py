"""Sources: datasets of kind ``source``, which this server pulls itself when they are first read.

Guarantee: a ``create`` that succeeds has looked at the source: partitions and schema are known, and
what is wrong with it was said. From then on reading a partition pulls it, once for all readers.

    create {"dataset": "d", "kind": "source", "source": {…}}

    {"format": "parquet" | "ipc" | "csv", "path": …}    files; see ``source_files``
    {"flight": "grpc://host:port", "dataset": …}          another Flight server; see ``relay``

Creating the same again is fine and looks at nothing again: new files in a directory are seen by a new
generation, that is after a ``drop`` or when a pull finds that the source has changed (``pulls``).
A source is never durable, because it can be pulled again.

Who may read what
    Local paths under ``source_roots`` only, ``s3://`` only with ``source_s3``, of other Flight servers only
    those that ``source_flight`` lists.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import structlog

from .core import Core
from .dataset import Dataset
from .decoder import SchemaMessage
from .errors import AlreadyExists, FlightShuffleError, Forbidden, InvalidRequest
from .protocol import CreateRequest
from .pulls import Pulls
from .relay import FlightSpec, RelaySource
from .source_contract import Source
from .source_files import FileSource, FileSpec, OpenFile
from .source_roots import Roots
from .source_s3 import SCHEME as S3_SCHEME
from .source_s3 import S3Files

_log = structlog.get_logger("flight_server.sources")


async def create(core: Core, request: CreateRequest, wanted: SchemaMessage | None) -> tuple[Dataset, bool]:
    """The dataset, and whether it was made now. Creating the same twice is fine.

    Raises:
        InvalidRequest: the source is not one; see ``source_files`` and ``relay`` for more.
        AlreadyExists: the name is taken by a dataset created otherwise.
        Draining: the server is going down.
    """
    if request.durable:
        raise InvalidRequest("create: a source is not 'durable': it is pulled again when it is needed")
    known = _known(core, request)
    if known is None:
        source = await _open(core, request, wanted)
        if request.partitions not in (1, source.partition_count):
            raise InvalidRequest(
                f"create: the source has {source.partition_count} partitions, not {request.partitions}; leave "
                "'partitions' out"
            )
        known = _known(core, request)  # somebody may have been faster
        if known is None:
            return _install(core, request, wanted, source), True
    return known, False


def _known(core: Core, request: CreateRequest) -> Dataset | None:
    """The dataset if there is one, and is what the request asks for."""
    core.catalogue.check_open()
    known = core.catalogue.get(request.dataset)
    if known is None or known.failure is not None:
        return None
    made = known.puller.request if isinstance(known.puller, Pulls) else None
    if made is None or (made.source, made.schema) != (request.source, request.schema):
        raise AlreadyExists(
            f"dataset {known.name!r} exists and was created otherwise; drop it first, or choose another name",
            dataset=known.name,
        )
    return core.catalogue.create(replace(request, partitions=known.partition_count), None)[0]


def _install(core: Core, request: CreateRequest, wanted: SchemaMessage | None, source: Source) -> Dataset:
    dataset = core.catalogue.prepare(replace(request, partitions=source.partition_count), source.schema)
    dataset.puller = Pulls(core, source, request, partial(_renew, core, request, wanted))
    core.catalogue.install(dataset)
    return dataset


async def _renew(core: Core, request: CreateRequest, wanted: SchemaMessage | None, old: Dataset) -> None:
    """Put a new generation in the place of one whose source has changed, if it still has the place.

    What does not work now is tried again when the next pull finds the same.
    """
    facts = {"dataset": old.name, "generation": old.generation}
    try:
        source = await _open(core, request, wanted)
    except FlightShuffleError as error:
        _log.warning("source_not_renewed", reason=error.message, **facts)
        return
    if core.catalogue.get(old.name) is old and not core.catalogue.draining:
        new = _install(core, request, wanted, source)
        _log.info("source_renewed", new_generation=new.generation, **facts)


async def _open(core: Core, request: CreateRequest, wanted: SchemaMessage | None) -> Source:
    assert request.source is not None
    settings = core.settings
    if "flight" in request.source:
        spec = FlightSpec.parse(request.source)
        if not any(allowed.covers(spec.location) for allowed in settings.source_flight):
            raise Forbidden(
                f"source: this server does not pull from {spec.location}: it would have to be started with "
                f"--source-flight {spec.location}"
            )
        relay = await RelaySource.open(
            spec,
            max_message_bytes=core.max_message_bytes,
            full_validation=settings.full_validation,
            keepalive_seconds=settings.keepalive_seconds,
            background=core.background,
        )
        if wanted is not None:
            relay.schema.check_same(wanted, request.dataset)
        return relay
    return await FileSource.open(
        FileSpec.parse(request.source),
        _Anywhere(Roots(settings.source_roots), S3Files() if settings.source_s3 else None),
        None if wanted is None else wanted.schema,
        core.background,
        max_message_bytes=core.max_message_bytes,
        full_validation=settings.full_validation,
    )


class _Anywhere:
    """Local files and, where that is allowed, objects in S3."""

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
