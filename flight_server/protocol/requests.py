"""The bodies of actions, in JSON; ``acknowledgements`` and ``reporting.reports`` have the others.

Parsing is strict (see ``strict_json``). What ``encode`` renders, ``parse`` parses to the same value.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .dataset_names import check_dataset_name
from .errors import InvalidRequest
from .keep_rules import KeepRule
from .stream_requests import MAX_PARTITIONS, Transaction, check_attempt
from .strict_json import Fields, dump_json, parse_json, parsing

REUSE_CONNECTION = "arrow-flight-reuse-connection://?"
"""The location "where you are asking now" (Arrow Flight specification)."""

DEFAULT_PORT = 8815
DEFAULT_HTTP_PORT = 8816
MAX_LEASE_SECONDS = 30 * 24 * 3600.0
MAX_DELAY_SECONDS = 1e9
WRITE_LEASE_SECONDS = 3600.0
"""How long a staged write stays at most after its last frame or ``renew``; less if its dataset's lease is shorter."""


class Kind(StrEnum):
    """Who writes a dataset and when it becomes readable."""

    STREAM = "stream"
    SHUFFLE = "shuffle"
    SOURCE = "source"
    CHANGELOG = "changelog"


VERSIONED = Kind.CHANGELOG
"""The kind whose datasets have versions, which are read and held, and rows that are deleted by their keys."""


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


class WriteMode(StrEnum):
    """What the seal of a staged write does, see ``datasets.staged_writes``."""

    OVERWRITE = "overwrite"
    NEW = "new"
    APPEND = "append"
    DELETE = "delete"


@dataclass(frozen=True)
class CreateRequest:
    """Body of the action ``create``. ``schema`` is the IPC-encapsulated schema message in base64; None takes the
    first producer's. A ``shuffle`` is sealed when ``producers`` have committed. ``source`` says what to pull, see
    ``sources.creation``. With ``mode`` the shuffle is staged, and ``write`` tells it from others of its name; nothing
    is made if the dataset of that name has the ``transaction`` already. A changelog keeps what ``keep`` says, and rows
    that it no longer keeps for ``delay_seconds`` more.
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
    mode: WriteMode | None = None
    write: str | None = None
    transaction: Transaction | None = None
    keep: KeepRule | None = None
    delay_seconds: float | None = None

    @classmethod
    def parse(cls, data: bytes) -> CreateRequest:
        return cls.of(parse_json(data, "create"))

    @classmethod
    def of(cls, body: dict[str, Any]) -> CreateRequest:
        fields = Fields(body, "create")
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
            mode=_write_mode(fields.text("mode")),
            write=None if (write := fields.any("write")) is None else check_attempt(write, "create: 'write'"),
            transaction=Transaction.parse(fields.any("transaction"), "create"),
            keep=None if (keep := fields.any("keep")) is None else KeepRule.parse(keep),
            delay_seconds=fields.number("delay_seconds", 0.0, MAX_DELAY_SECONDS),
        )
        fields.end()
        if request.source is not None and not isinstance(request.source, dict):
            raise InvalidRequest("create: 'source' must be a JSON object")
        if (request.source is not None) != (request.kind is Kind.SOURCE):
            raise InvalidRequest("create: 'source' goes with kind 'source', and that kind needs it")
        if request.producers is not None and request.kind is not Kind.SHUFFLE:
            raise InvalidRequest("create: 'producers' is for kind 'shuffle'")
        if (request.mode is None) != (request.write is None):
            raise InvalidRequest("create: 'mode' and 'write' go together")
        if request.transaction is not None and request.mode is None:
            raise InvalidRequest("create: 'transaction' goes with 'mode'")
        if request.mode is not None and (request.kind is not Kind.SHUFFLE or request.producers is not None):
            raise InvalidRequest("create: 'mode' is for kind 'shuffle' without 'producers'")
        if request.kind is Kind.CHANGELOG:
            if request.schema is None:
                raise InvalidRequest("create: a changelog needs its 'schema'")
            if request.partitions != 1 or request.retention != Retention():
                raise InvalidRequest(
                    "create: a changelog has one partition, and 'keep' instead of a retention"
                )
        elif request.keep is not None or request.delay_seconds is not None:
            raise InvalidRequest("create: 'keep' and 'delay_seconds' are for kind 'changelog'")
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
        if self.mode is not None:
            body |= {"mode": self.mode.value, "write": self.write}
        if self.transaction is not None:
            body["transaction"] = self.transaction.to_json()
        if self.keep is not None:
            body["keep"] = self.keep.to_json()
        if self.delay_seconds is not None:
            body["delay_seconds"] = self.delay_seconds
        return dump_json(body)


def _write_mode(text: str | None) -> WriteMode | None:
    if text is not None and text not in {known.value for known in WriteMode}:
        raise InvalidRequest(f"create: 'mode' is one of {', '.join(WriteMode)}, not {text!r}")
    return None if text is None else WriteMode(text)


@dataclass(frozen=True)
class SealRequest:
    """Body of the action ``seal``: each producer's winning attempt. None accepts each producer's first commit; an
    empty mapping seals the dataset without a row. The rest is for staged writes: ``partitions`` says how many of them
    there are to be; with ``partition_bytes`` neighbours with rows become one while they have at most so many;
    ``transaction`` makes the write happen once, also where the one that is repeated is another staged write.
    """

    dataset: str
    generation: str | None = None
    attempts: dict[int, str] | None = None
    partitions: int | None = None
    transaction: Transaction | None = None
    partition_bytes: int | None = None

    @classmethod
    def parsing(cls, data: bytes) -> Generator[None, None, SealRequest]:
        """The request, in steps: it may name 100,000 attempts."""
        fields = Fields((yield from parsing(data, "seal")), "seal")
        dataset = check_dataset_name(fields.required("dataset"))
        generation, given = fields.text("generation"), fields.any("attempts")
        partitions = fields.integer("partitions", 1, MAX_PARTITIONS)
        transaction = Transaction.parse(fields.any("transaction"))
        partition_bytes = fields.integer("partition_bytes", 1, 2**53)
        fields.end()
        if partitions is not None and partition_bytes is not None:
            raise InvalidRequest("seal: give 'partitions' or 'partition_bytes', not both")
        if given is None:
            return cls(dataset, generation, None, partitions, transaction, partition_bytes)
        if not isinstance(given, dict):
            raise InvalidRequest("seal: 'attempts' must be an object {producer: attempt}")
        attempts = {}
        for producer, attempt in given.items():
            if not producer.isdecimal() or not producer.isascii() or len(producer) > 10:
                raise InvalidRequest(f"seal: producer {producer!r} is not an index in ASCII decimal")
            attempts[int(producer)] = check_attempt(attempt)
            yield
        return cls(dataset, generation, attempts, partitions, transaction, partition_bytes)

    def encode(self) -> bytes:
        body: dict[str, Any] = {"dataset": self.dataset}
        if self.generation is not None:
            body["generation"] = self.generation
        if self.attempts is not None:
            body["attempts"] = {str(producer): attempt for producer, attempt in self.attempts.items()}
        if self.partitions is not None:
            body["partitions"] = self.partitions
        if self.transaction is not None:
            body["transaction"] = self.transaction.to_json()
        if self.partition_bytes is not None:
            body["partition_bytes"] = self.partition_bytes
        return dump_json(body)


@dataclass(frozen=True)
class DatasetRequest:
    """Body of ``drop`` and ``renew``, which need a dataset, and of clients' ``statistics`` and ``why``. ``drop`` with
    ``staged`` drops what no name leads to yet, and nothing else.
    """

    dataset: str | None = None
    generation: str | None = None
    staged: bool = False

    @classmethod
    def parse(cls, data: bytes, what: str, *, needed: bool) -> DatasetRequest:
        fields = Fields(parse_json(data, what), what)
        name = fields.any("dataset")
        request = cls(
            None if name is None else check_dataset_name(name),
            fields.text("generation"),
            fields.flag("staged") if what == "drop" else False,
        )
        fields.end()
        if needed and request.dataset is None:
            raise InvalidRequest(f"{what}: 'dataset' is missing")
        return request

    def encode(self) -> bytes:
        body = {"dataset": self.dataset, "generation": self.generation, "staged": self.staged or None}
        return dump_json({key: value for key, value in body.items() if value is not None})


ACTIONS: dict[str, str] = {
    "create": "Create a dataset: {dataset, kind, schema, partitions, producers, retention, keep, …}",
    "seal": "Seal a shuffle dataset: {dataset, generation, attempts: {producer: attempt}}",
    "drop": "Drop a dataset and what it holds: {dataset, generation, staged}",
    "renew": "Renew a dataset's lease: {dataset, generation}",
    "acknowledge": "A reader has these frames: {dataset, generation, partition, reader, frames}",
    "hold": "Keep a changelog's versions from one on readable: {dataset, generation, hold, version, lease_seconds, …}",
    "plan": "Cut sealed partitions into pieces to read: {dataset, generation, target_bytes, partitions}",
    "copies": "Which hosts have a file of a dataset: {verb, dataset, generation, host, file}",
    "statistics": "Memory, disk and datasets, or one dataset's partitions, in pages: {dataset, first, limit}",
    "why": "Every stream that waits: for what, for how long, for which peer: {dataset, first, limit}",
    "locations": "Where this server is reached, and where it takes puts on the bulk lane: {}",
    "drain": "Take nothing new, let running streams end, then stop the server: {}",
    "CancelFlightInfo": "Arrow's own: drop the dataset that the FlightInfo describes",
    "RenewFlightEndpoint": "Arrow's own: renew the lease of the dataset that the endpoint belongs to",
}
"""What ListActions answers."""
