"""Pins: the version that a task looks up in.

Guarantee: all tasks of a micro-batch, on all hosts and in all its runs, look up in one version, the newest when the
first of them asked: a *pin*, a hold at the server whose name is made of the query's id and the batch's. So a batch
that is run again, also after a restart of the query or the server, sees the same rows; the next batch, those of its
own time. All lookups of one changelog in a batch share the pin.

Asking
    One process of a host asks the server, once for a batch, and notes the answer in a file that the others read.

Ending
    Spark can run again only a query's last batch. So the pin of a batch ends when a host of that pin asks for the one
    after the next. The last two pins of a stopped query end with their leases (``lookup_content.PIN_SECONDS``).
    The server remembers the last ``holds.MAX_LAPSED`` pins that ended so. If a batch is run again after its pin has
    ended, it looks up in the same version, or fails with ``Compacted`` and advice; if the pin was released, or is
    forgotten, in the newest version. If the server has compacted a pinned version nevertheless, the lookup fails
    (``host_images``).

Elsewhere
    Outside of a micro-batch a task uses the version that the driver has named.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass

from pyspark import TaskContext

from flight_server.protocol import Compacted, NotFound
from spark_client.hosts import HostFile, HostFiles, PartFile

from .lookup_content import LookupContent

BATCH = "streaming.sql.batchId"
QUERY = "sql.streaming.queryId"
"""Spark's names: ``MicroBatchExecution.BATCH_ID_KEY``, ``StreamExecution.QUERY_ID_KEY``."""

ASK_SECONDS = 120.0
_KEPT = 64
_NOTE_BYTES = 256


@dataclass(frozen=True)
class MicroBatch:
    """A batch of a streaming query."""

    query: str
    number: int

    @classmethod
    def of_task(cls) -> MicroBatch | None:
        """That of the task which this process runs; None outside of a streaming query."""
        context = TaskContext.get()
        if context is None:
            return None
        query, number = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        return None if query is None or number is None else cls(query, int(number))

    @property
    def pin(self) -> str:
        """The pin's name; ends in a dot, so that it is no prefix of another one's."""
        return f"lookup.{self.query}.{self.number}."


def version_of(content: LookupContent, batch: MicroBatch) -> int:
    """The version that the batch has pinned.

    Raises:
        NotFound: the changelog was dropped, or created again.
        Unavailable: the server, or the process that asks it, took too long.
    """
    key = f"{_prefix(content, batch)}{batch.number:014x}"
    with _lock:
        if (known := _known.get(key)) is not None:
            return known
    files = HostFiles(content.copies)

    def ask(part: PartFile) -> None:
        part.write(json.dumps({"version": _ask(content, files, batch)}).encode())

    file = files.open_or_make(key, _NOTE_BYTES, ask, ASK_SECONDS)
    version = _read(file)
    with _lock:
        _known[key] = version
        while len(_known) > _KEPT:
            del _known[next(iter(_known))]
    return version


def _read(file: HostFile) -> int:
    try:
        return int(json.loads(file.map().to_pybytes())["version"])
    finally:
        file.close()


def _ask(content: LookupContent, files: HostFiles, batch: MicroBatch) -> int:
    try:
        return _ask_for_batch(content, files, batch)
    except Compacted as error:
        raise Compacted(
            f"changelog {content.source.name!r}: the version that this micro-batch looked up in before is compacted "
            f"({error.message}): its pin, the hold {batch.pin!r}, ended while the query was down. Start the query with "
            "a new checkpoint location. Or, to repeat the batch with the newest version, though its sink may have rows "
            f"of the earlier one already, end the pin by changelog({content.source.name!r}).release({batch.pin!r}) and "
            "start the query again",
            **error.detail,
        ) from error
    except NotFound as error:
        raise NotFound(
            f"changelog {content.source.name!r} is gone, or was created anew, since the lookup was made; make the "
            f"lookup, and start the query, again ({error.message})",
            **error.detail,
        ) from error


def _ask_for_batch(content: LookupContent, files: HostFiles, batch: MicroBatch) -> int:
    ended, prefix = batch.number - 2, _prefix(content, batch)
    release = MicroBatch(batch.query, ended).pin if ended >= 0 else None
    version = content.source.pin(batch.pin, releases=release)
    # A batch without rows asks for no pin. So the one before the last may be further back.
    for key in files.opened(prefix):
        if (number := int(key.removeprefix(prefix), 16)) <= ended:
            if number < ended:
                content.source.pin(batch.pin, releases=MicroBatch(batch.query, number).pin)
            files.remove(key)
    return version


def _prefix(content: LookupContent, batch: MicroBatch) -> str:
    digest = hashlib.sha256(f"{content.source.identity} {batch.query}".encode()).hexdigest()[:20]
    return f"{content.application}-{digest}n"


_known: dict[str, int] = {}
_lock = threading.Lock()
