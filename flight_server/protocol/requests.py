"""Descriptors, tickets, action bodies, commits, and the names of headers and trailers.

Parsing is strict (see ``strict_json``). What ``encode`` renders, ``parse`` parses to the same value.

    descriptor  PATH [dataset] | PATH [dataset, partition] | CMD {"dataset": …, …}
    ticket      b"countries" | b"countries/0" | {"dataset", "generation", "partition", "from", "reader"}
    commit      {"commit": {"rows": n, "frames": n, "crc32c": "…"}}
    actions     JSON bodies; see also ``acknowledgements`` and, for ``statistics`` and ``why``, ``reporting.reports``
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from . import flight_sql
from .dataset_names import check_dataset_name
from .errors import InvalidRequest
from .strict_json import Fields, dump_json, parse_json

ROWS_TRAILER = "x-flight-shuffle-rows"
FRAMES_TRAILER = "x-flight-shuffle-frames"
CRC_TRAILER = "x-flight-shuffle-crc32c"
FROM_TRAILER = "x-flight-shuffle-from"
GENERATION_HEADER = "x-flight-shuffle-generation"
PARTITION_HEADER = "x-flight-shuffle-partition"
CHECKSUMS_HEADER = "x-flight-shuffle-checksums"
"""On the bulk lane, in a request: send checksums with messages; in the answer: they are sent."""
CHECKSUMS = "crc32c"

REUSE_CONNECTION = "arrow-flight-reuse-connection://?"
"""The location "where you are asking now" (Arrow Flight specification)."""

DEFAULT_PORT = 8815
DEFAULT_HTTP_PORT = 8816
MAX_PARTITIONS = 100_000
MAX_LEASE_SECONDS = 30 * 24 * 3600.0

_CHECKSUM = re.compile(r"[0-9a-f]{8}")
_ATTEMPT = re.compile(r"[A-Za-z0-9._:-]{1,100}")


class Kind(StrEnum):
    """Who writes a dataset and when it becomes readable."""

    STREAM = "stream"
    SHUFFLE = "shuffle"
    SOURCE = "source"
    CHANGELOG = "changelog"


def check_attempt(attempt: object, what: str = "attempt") -> str:
    """The attempt, which Spark has as an integer, as text. Raises InvalidRequest if it is not 1 to 100 of ``A-Z a-z
    0-9 . _ : -``.
    """
    if isinstance(attempt, int) and not isinstance(attempt, bool):
        attempt = str(attempt)
    if not isinstance(attempt, str) or not _ATTEMPT.fullmatch(attempt):
        raise InvalidRequest(f"{what} must be 1 to 100 characters of A-Z a-z 0-9 . _ : -, not {attempt!r}")
    return attempt


def parse_partition(text: str) -> int:
    """A partition index in ASCII decimal. Raises InvalidRequest for other text."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 6:
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise InvalidRequest(f"{shown!r} is not a partition index (ASCII decimal, 0 to {MAX_PARTITIONS - 1})")
    return int(text)


def bulk_path(
    dataset: str, partition: int, generation: str | None = None, from_: int = 0, reader: str | None = None
) -> str:
    """A partition's path and query on the bulk lane. The alphabet of names needs no escaping."""
    wanted = {"generation": generation, "from": from_ or None, "reader": reader}
    query = "&".join(f"{key}={value}" for key, value in wanted.items() if value is not None)
    return f"/v1/datasets/{dataset}/partitions/{partition}" + (f"?{query}" if query else "")


def partition_metadata(partition: int) -> bytes:
    """The ``app_metadata`` of a shuffle producer's batch for ``partition``."""
    return b"%d" % partition


@dataclass(frozen=True)
class PutCommand:
    """The command in a DoPut's descriptor.

    ``partition`` and ``mode`` (``"create"`` or ``"overwrite"``) are for kind ``stream``, ``producer`` and ``attempt``
    for kinds with many producers.
    """

    dataset: str
    partition: int | None = None
    producer: int | None = None
    attempt: str | None = None
    mode: str = "create"
    generation: str | None = None

    @classmethod
    def parse(cls, data: bytes) -> PutCommand:
        flight_sql.refuse_all_but_json(data)
        fields = Fields(parse_json(data, "the command", small=True), "the command")
        command = cls(
            dataset=check_dataset_name(fields.required("dataset")),
            partition=fields.integer("partition", 0, MAX_PARTITIONS - 1),
            producer=fields.integer("producer", 0, 2**31 - 1),
            attempt=None if (value := fields.any("attempt")) is None else check_attempt(value),
            mode=fields.text("mode") or "create",
            generation=fields.text("generation"),
        )
        fields.end()
        if command.mode not in ("create", "overwrite"):
            raise InvalidRequest(f"the command: 'mode' is 'create' or 'overwrite', not {command.mode!r}")
        if (command.producer is None) != (command.attempt is None):
            raise InvalidRequest("the command: 'producer' and 'attempt' go together")
        return command

    def encode(self) -> bytes:
        body = {
            "dataset": self.dataset,
            "partition": self.partition,
            "producer": self.producer,
            "attempt": self.attempt,
            "mode": None if self.mode == "create" else self.mode,
            "generation": self.generation,
        }
        return dump_json({key: value for key, value in body.items() if value is not None})


@dataclass(frozen=True)
class Ticket:
    """What a DoGet reads. ``generation`` None means the current one, ``partition`` None the only one. ``from_`` is
    the sequence number of the first wanted frame, ``reader`` the name by which a reader resumes, see
    ``datasets.places``.
    """

    dataset: str
    partition: int | None = None
    generation: str | None = None
    from_: int = 0
    reader: str | None = None

    @classmethod
    def parse(cls, data: bytes) -> Ticket:
        """JSON, or a plain name. ``name/3`` stays a name here: only the catalogue can tell."""
        flight_sql.refuse(data)
        if not data.lstrip().startswith(b"{"):
            try:
                return cls(check_dataset_name(data.decode()))
            except UnicodeDecodeError:
                raise InvalidRequest("a ticket is JSON from get_flight_info, or a dataset's name") from None
        fields = Fields(parse_json(data, "the ticket", small=True), "the ticket")
        ticket = cls(
            dataset=check_dataset_name(fields.required("dataset")),
            generation=fields.text("generation"),
            partition=fields.integer("partition", 0, MAX_PARTITIONS - 1),
            from_=fields.integer("from", 0, 2**53) or 0,
            reader=None if (name := fields.any("reader")) is None else check_attempt(name, "reader"),
        )
        fields.end()
        return ticket

    def encode(self) -> bytes:
        body: dict[str, Any] = {"dataset": self.dataset}
        if self.generation is not None:
            body["generation"] = self.generation
        if self.partition is not None:
            body["partition"] = self.partition
        if self.from_:
            body["from"] = self.from_
        if self.reader is not None:
            body["reader"] = self.reader
        return dump_json(body)


@dataclass(frozen=True)
class Commit:
    """The totals with which a shuffle producer ends its stream; the server compares them with what arrived.
    ``crc32c``, if known, is ``checksums.running_crc32c`` over all messages before.
    """

    rows: int
    frames: int
    crc32c: int | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, data: bytes) -> Commit:
        fields = Fields(parse_json(data, "the commit", small=True), "the commit")
        inner = fields.any("commit")
        fields.end()
        if not isinstance(inner, dict):
            raise InvalidRequest('the commit is {"commit": {"rows": n, "frames": n}}')
        totals = Fields(inner, "the commit")
        rows, frames = totals.integer("rows", 0, 2**53), totals.integer("frames", 0, 2**53)
        checksum = totals.text("crc32c")
        totals.end()
        if checksum is not None and not _CHECKSUM.fullmatch(checksum):
            raise InvalidRequest(f"the commit's 'crc32c' is eight hexadecimal digits, not {checksum!r}")
        if rows is None or frames is None:
            raise InvalidRequest("the commit needs 'rows' and 'frames'")
        return cls(rows, frames, None if checksum is None else int(checksum, 16))

    def encode(self) -> bytes:
        totals: dict[str, Any] = {"rows": self.rows, "frames": self.frames}
        if self.crc32c is not None:
            totals["crc32c"] = f"{self.crc32c:08x}"
        return dump_json({"commit": totals})


@dataclass(frozen=True)
class Retention:
    """How long frames stay: until dropped, until ``readers`` have passed them (``places``), or for ``seconds``."""

    readers: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, value: object) -> Retention:
        if value is None or value == "until_dropped":
            return cls()
        if isinstance(value, dict) and len(value) == 1:
            fields = Fields(value, "retention")
            readers, seconds = fields.integer("readers", 1, 1_000_000), fields.number("seconds", 0.001, 1e9)
            fields.end()
            return cls(readers, seconds)
        raise InvalidRequest(
            f'retention is "until_dropped", {{"readers": n}} or {{"seconds": n}}, not {value!r}'
        )

    def to_json(self) -> str | dict[str, float]:
        if self.readers is not None:
            return {"readers": self.readers}
        if self.seconds is not None:
            return {"seconds": self.seconds}
        return "until_dropped"


@dataclass(frozen=True)
class CreateRequest:
    """Body of the action ``create``. ``schema`` is the IPC-encapsulated schema message in base64; None takes the
    first producer's. A ``shuffle`` is sealed when ``producers`` have committed. ``source`` says what to pull, see
    ``sources.creation``.
    """

    dataset: str
    kind: Kind = Kind.STREAM
    schema: str | None = None
    partitions: int = 1
    producers: int | None = None
    retention: Retention = field(default_factory=Retention)
    lease_seconds: float | None = None
    durable: bool = False
    source: dict[str, Any] | None = None

    @classmethod
    def parse(cls, data: bytes) -> CreateRequest:
        fields = Fields(parse_json(data, "create"), "create")
        dataset = check_dataset_name(fields.required("dataset"))
        kind = fields.text("kind") or Kind.STREAM.value
        if kind not in {known.value for known in Kind}:
            raise InvalidRequest(f"create: 'kind' is one of {', '.join(Kind)}, not {kind!r}")
        request = cls(
            dataset=dataset,
            kind=Kind(kind),
            schema=fields.text("schema"),
            partitions=fields.integer("partitions", 1, MAX_PARTITIONS) or 1,
            producers=fields.integer("producers", 1, 1_000_000),
            retention=Retention.parse(fields.any("retention")),
            lease_seconds=fields.number("lease_seconds", 0.1, MAX_LEASE_SECONDS),
            durable=fields.flag("durable"),
            source=fields.any("source"),
        )
        fields.end()
        if request.source is not None and not isinstance(request.source, dict):
            raise InvalidRequest("create: 'source' must be a JSON object")
        if (request.source is not None) != (request.kind is Kind.SOURCE):
            raise InvalidRequest("create: 'source' goes with kind 'source', and that kind needs it")
        if request.producers is not None and request.kind is not Kind.SHUFFLE:
            raise InvalidRequest("create: 'producers' is for kind 'shuffle'")
        return request

    def encode(self) -> bytes:
        body: dict[str, Any] = {
            "dataset": self.dataset,
            "kind": self.kind.value,
            "partitions": self.partitions,
        }
        if self.schema is not None:
            body["schema"] = self.schema
        if self.producers is not None:
            body["producers"] = self.producers
        if self.retention != Retention():
            body["retention"] = self.retention.to_json()
        if self.lease_seconds is not None:
            body["lease_seconds"] = self.lease_seconds
        if self.durable:
            body["durable"] = True
        if self.source is not None:
            body["source"] = self.source
        return dump_json(body)


@dataclass(frozen=True)
class SealRequest:
    """Body of the action ``seal``: each producer's winning attempt. None accepts each producer's first commit; an
    empty mapping seals the dataset without a row.
    """

    dataset: str
    generation: str | None = None
    attempts: dict[int, str] | None = None

    @classmethod
    def parse(cls, data: bytes) -> SealRequest:
        fields = Fields(parse_json(data, "seal"), "seal")
        dataset = check_dataset_name(fields.required("dataset"))
        generation, given = fields.text("generation"), fields.any("attempts")
        fields.end()
        if given is None:
            return cls(dataset, generation)
        if not isinstance(given, dict):
            raise InvalidRequest("seal: 'attempts' must be an object {producer: attempt}")
        attempts = {}
        for producer, attempt in given.items():
            if not producer.isdecimal() or not producer.isascii() or len(producer) > 10:
                raise InvalidRequest(f"seal: producer {producer!r} is not an index in ASCII decimal")
            attempts[int(producer)] = check_attempt(attempt)
        return cls(dataset, generation, attempts)

    def encode(self) -> bytes:
        body: dict[str, Any] = {"dataset": self.dataset}
        if self.generation is not None:
            body["generation"] = self.generation
        if self.attempts is not None:
            body["attempts"] = {str(producer): attempt for producer, attempt in self.attempts.items()}
        return dump_json(body)


@dataclass(frozen=True)
class DatasetRequest:
    """Body of ``drop`` and ``renew``, which need a dataset, and of clients' ``statistics`` and ``why``."""

    dataset: str | None = None
    generation: str | None = None

    @classmethod
    def parse(cls, data: bytes, what: str, *, needed: bool) -> DatasetRequest:
        fields = Fields(parse_json(data, what), what)
        name = fields.any("dataset")
        request = cls(None if name is None else check_dataset_name(name), fields.text("generation"))
        fields.end()
        if needed and request.dataset is None:
            raise InvalidRequest(f"{what}: 'dataset' is missing")
        return request

    def encode(self) -> bytes:
        body = {"dataset": self.dataset, "generation": self.generation}
        return dump_json({key: value for key, value in body.items() if value is not None})


ACTIONS: dict[str, str] = {
    "create": "Create a dataset: {dataset, kind, schema, partitions, producers, retention, …}",
    "seal": "Seal a shuffle dataset: {dataset, generation, attempts: {producer: attempt}}",
    "drop": "Drop a dataset and what it holds: {dataset, generation}",
    "renew": "Renew a dataset's lease: {dataset, generation}",
    "acknowledge": "A reader has these frames: {dataset, generation, partition, reader, frames}",
    "statistics": "Memory, disk and datasets, or one dataset's partitions, in pages: {dataset, first, limit}",
    "why": "Every stream that waits: for what, for how long, for which peer: {dataset, first, limit}",
    "locations": "Where this server is reached, and where it takes puts on the bulk lane: {}",
    "drain": "Take nothing new, let running streams end, then stop the server: {}",
    "CancelFlightInfo": "Arrow's own: drop the dataset that the FlightInfo describes",
    "RenewFlightEndpoint": "Arrow's own: renew the lease of the dataset that the endpoint belongs to",
}
"""What ListActions answers."""
