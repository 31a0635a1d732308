"""The bodies of actions; ``reporting.reports`` has the others. ``bodies`` parses and renders them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final, Self

from .bodies import Body, Faults, Fields, Flag, InJson, Name, Request, Text, integer, number, one_of, parse_as
from .dataset_names import check_dataset_name
from .errors import InvalidRequest
from .keep_rules import KeepRule
from .stored_objects import check_prefix
from .stream_requests import (
    MAX_COUNT,
    MAX_LEASE_SECONDS,
    MAX_PARTITIONS,
    InTransaction,
    Version,
    are_partitions,
    check_attempt,
    check_generation,
    list_as_tuple,
)
from .strict_json import parse_json

REUSE_CONNECTION = "arrow-flight-reuse-connection://?"
"""The location "where you are asking now" (Arrow Flight specification)."""

DEFAULT_PORT = 8815
DEFAULT_HTTP_PORT = 8816
MAX_DELAY_SECONDS = 1e9
MAX_PRODUCERS = 1_000_000
MAX_SERVERS = 1000
MAX_LOCATIONS = 8
_MAX_LOCATION_CHARACTERS = 300
_SCHEMES = ("grpc://", "grpc+tcp://", "grpc+tls://", "http://", "https://")
MAX_OWNER_CHARACTERS = 300
WRITE_LEASE_SECONDS = 3600.0
"""How long a staged write stays at most after its last frame or ``renew``; less if its dataset's lease is shorter."""

ACKNOWLEDGE: Final = "acknowledge"
ACKNOWLEDGE_HEADER: Final = "x-flight-shuffle-acknowledge"
COPIES: Final = "copies"
HOLD: Final = "hold"
PLAN: Final = "plan"
_FILE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_PLACE = re.compile(r"grpc(\+tcp|\+tls)?://[!-~]{1,280}")


class Kind(StrEnum):
    """The kind of a dataset, which decides its writers and when it becomes readable."""

    STREAM = "stream"
    SHUFFLE = "shuffle"
    SOURCE = "source"
    CHANGELOG = "changelog"


VERSIONED = Kind.CHANGELOG
"""The kind whose datasets have versions, which are read and held, and rows that are deleted by their keys."""


@dataclass(frozen=True)
class Retention(Body, what="retention"):
    """How long frames stay: until dropped, until ``readers`` have passed them (``places``), or for ``seconds``."""

    readers: Annotated[int | None, integer(1, 1_000_000)] = None
    seconds: Annotated[float | None, number(0.001, 1e9)] = None

    @classmethod
    def parse(cls, value: object) -> Retention:
        if value is None or value == "until_dropped":
            return cls()
        if isinstance(value, dict) and len(value) == 1:
            return cls.of(value)
        raise InvalidRequest(
            f'retention is "until_dropped", {{"readers": n}} or {{"seconds": n}}, not {value!r}'
        )

    def to_json(self) -> str | dict[str, float]:
        return super().to_json() or "until_dropped"


class WriteMode(StrEnum):
    """The way in which the seal of a staged write changes the name, see ``datasets.staged_writes``."""

    OVERWRITE = "overwrite"
    NEW = "new"
    APPEND = "append"
    DELETE = "delete"


@dataclass(frozen=True)
class CreateRequest(Request, what="create"):
    """Body of the action ``create``. ``schema`` is the IPC-encapsulated schema message in base64; None takes the first
    producer's. A ``shuffle`` is sealed when ``producers`` have committed. ``source`` names the data to pull, see
    ``kinds.source``. With ``mode`` the shuffle is staged, and ``write`` tells it from others of its name; nothing
    is made if the dataset of that name has the ``transaction`` already. A changelog keeps the rows that ``keep``
    selects, and the others for ``delay_seconds`` more. ``generation`` is for a shuffle that several servers have; None
    lets the server give one.
    """

    dataset: Name
    kind: Annotated[Kind, one_of(Kind, None, "", always=True)] = Kind.STREAM
    schema: Text = None
    partitions: Annotated[int, integer(1, MAX_PARTITIONS, always=True)] = 1
    producers: Annotated[int | None, integer(1, MAX_PRODUCERS)] = None
    retention: Annotated[Retention, parse_as(Retention.parse)] = field(default_factory=Retention)
    lease_seconds: Annotated[float | None, number(0.1, MAX_LEASE_SECONDS)] = None
    durable: Flag = False
    source: Annotated[dict[str, Any] | None, InJson(Fields.any)] = None
    mode: Annotated[WriteMode | None, one_of(WriteMode, None)] = None
    write: Annotated[str | None, parse_as(partial(check_attempt, what="create: 'write'"))] = None
    transaction: InTransaction = None
    keep: Annotated[KeepRule | None, parse_as(KeepRule.parse)] = None
    delay_seconds: Annotated[float | None, number(0.0, MAX_DELAY_SECONDS)] = None
    generation: Annotated[str | None, parse_as(check_generation)] = None

    def faults(self, what: str) -> Faults:
        source, producers, mode, keep = self.source, self.producers, self.mode, self.keep
        shuffle, changelog = self.kind is Kind.SHUFFLE, self.kind is Kind.CHANGELOG
        yield not isinstance(source, dict | None), f"{what}: 'source' must be a JSON object"
        wrong = (source is None) == (self.kind is Kind.SOURCE)
        yield wrong, f"{what}: 'source' goes with kind 'source', and that kind needs it"
        yield producers is not None and not shuffle, f"{what}: 'producers' is for kind 'shuffle'"
        wrong = self.generation is not None and (not shuffle or mode is not None)
        yield wrong, f"{what}: 'generation' is for kind 'shuffle' without 'mode'"
        yield (mode is None) != (self.write is None), f"{what}: 'mode' and 'write' go together"
        yield self.transaction is not None and mode is None, f"{what}: 'transaction' goes with 'mode'"
        wrong = mode is not None and (not shuffle or producers is not None)
        yield wrong, f"{what}: 'mode' is for kind 'shuffle' without 'producers'"
        yield changelog and self.schema is None, f"{what}: a changelog needs its 'schema'"
        wrong = changelog and (self.partitions != 1 or self.retention != Retention())
        yield wrong, f"{what}: a changelog has one partition, and 'keep' instead of a retention"
        wrong = not changelog and (keep is not None or self.delay_seconds is not None)
        yield wrong, f"{what}: 'keep' and 'delay_seconds' are for kind 'changelog'"


@dataclass(frozen=True)
class ServerPortion(Body, what="seal: a server"):
    """What one server holds of a dataset: its start, where it is read, and its rows and stored bytes."""

    start: Annotated[str, parse_as(partial(check_attempt, what="seal: a server's 'start'"), needed=True)]
    locations: Annotated[tuple[str, ...], InJson(list_as_tuple)]
    rows: Annotated[int, integer(0, MAX_COUNT)]
    bytes: Annotated[int, integer(0, MAX_COUNT)]

    @property
    def kept_bytes(self) -> int:
        """About what it takes to keep it."""
        return 400 + sum(100 + len(each) for each in self.locations)

    def faults(self, what: str) -> Faults:
        yield self.lacks("locations", "rows", "bytes"), f"{what} needs 'locations', 'rows' and 'bytes'"
        locations: Any = self.locations
        wrong = not isinstance(locations, tuple) or not 0 < len(locations) <= MAX_LOCATIONS
        wrong = wrong or not all(isinstance(each, str) and each.startswith(_SCHEMES) for each in locations)
        # A character is one byte, on the wire and in memory, as ``kept_bytes`` and the room of a FlightInfo count it.
        plain = wrong or all(each.isascii() and each.isprintable() for each in locations)
        wrong = wrong or max(map(len, locations)) > _MAX_LOCATION_CHARACTERS or not plain
        yield (
            wrong,
            f"{what}: 'locations' are 1 to {MAX_LOCATIONS} of {', '.join(_SCHEMES)}, not {str(locations)[:80]}",
        )


def _server_portions(fields: Fields, key: str) -> tuple[ServerPortion, ...] | None:
    """The servers of a body; None if it has none. Raises InvalidRequest."""
    bodies = fields.any(key)
    if bodies is None:
        return None
    if not isinstance(bodies, list) or not 0 < len(bodies) <= MAX_SERVERS:
        raise InvalidRequest(f"{fields.what}: {key!r} is a list of 1 to {MAX_SERVERS} servers")
    if not all(isinstance(each, dict) for each in bodies):
        raise InvalidRequest(f"{fields.what}: each of {key!r} is an object {{start, locations, rows, bytes}}")
    portions = tuple(map(ServerPortion.of, bodies))
    if len({each.start for each in portions}) < len(portions):
        raise InvalidRequest(f"{fields.what}: a start comes twice in {key!r}")
    return portions


_SERVERS = InJson(_server_portions, render=lambda portions: [each.to_json() for each in portions])


@dataclass(frozen=True)
class SealRequest(Request, what="seal"):
    """Body of the action ``seal``: each producer's winning attempt. None accepts each producer's first commit; an
    empty mapping seals the dataset without a row. The rest is for staged writes: ``partitions`` says how many of them
    there are to be; with ``partition_bytes`` neighbours with rows become one while they have at most so many;
    ``transaction`` makes the write happen once, also where the one that is repeated is another staged write.

    Of a dataset that is spread over several servers, the attempts are those of this one, ``start`` is its, and
    ``servers`` are all that hold a portion; each then answers FlightInfo for the whole (``datasets.spread``).
    ``offload`` is the prefix below which the server keeps what it holds as an object, too (``stored_objects``).
    ``largest``: the answer names the bytes of so many partitions only, the largest, and sums up the others.
    """

    dataset: Name
    generation: Text = None
    attempts: Annotated[dict[int, str] | None, InJson(Fields.any)] = None
    partitions: Annotated[int | None, integer(1, MAX_PARTITIONS)] = None
    transaction: InTransaction = None
    partition_bytes: Annotated[int | None, integer(1, MAX_COUNT)] = None
    start: Annotated[str | None, parse_as(partial(check_attempt, what="seal: 'start'"))] = None
    servers: Annotated[
        tuple[ServerPortion, ...] | None,
        _SERVERS,
    ] = None
    offload: Annotated[str | None, parse_as(partial(check_prefix, what="seal: 'offload'"))] = None
    largest: Annotated[int | None, integer(1, MAX_PARTITIONS)] = None

    @classmethod
    def parse(cls, data: bytes, *, in_thread: bool = False) -> Self:
        request = super().parse(data, in_thread=in_thread)
        texts: Any = request.attempts
        if texts is None:
            return request
        attempts = {}
        for producer, attempt in texts.items():
            if not producer.isdecimal() or not producer.isascii() or len(producer) > 10:
                raise InvalidRequest(f"seal: producer {producer!r} is not an index in ASCII decimal")
            attempts[int(producer)] = check_attempt(attempt)
        return replace(request, attempts=attempts)

    def faults(self, what: str) -> Faults:
        both = self.partitions is not None and self.partition_bytes is not None
        yield both, f"{what}: give 'partitions' or 'partition_bytes', not both"
        staged = self.partitions or self.partition_bytes or self.transaction
        wrong = (self.servers or self.offload) is not None and staged is not None
        yield wrong, f"{what}: 'servers' and 'offload' are not for staged writes"
        wrong = not isinstance(self.attempts, dict | None)
        yield wrong, f"{what}: 'attempts' must be an object {{producer: attempt}}"


@dataclass(frozen=True)
class DatasetRequest(Body):
    """Body of ``drop``, ``renew`` and clients' ``statistics`` and ``why``. ``staged``: drop a staged write only."""

    dataset: Annotated[str | None, parse_as(check_dataset_name)] = None
    generation: Text = None
    staged: Annotated[bool, InJson(lambda fields, key: fields.what == "drop" and fields.flag(key))] = False

    @classmethod
    def parse(cls, data: bytes, what: str, *, needed: bool) -> DatasetRequest:
        """Raises InvalidRequest."""
        request = cls.of(parse_json(data, what), what)
        if needed and request.dataset is None:
            raise InvalidRequest(f"{what}: 'dataset' is missing")
        return request


@dataclass(frozen=True)
class AcknowledgeRequest(Request, what=ACKNOWLEDGE):
    """Body of the action ``acknowledge``: ``reader`` has the frames that it last asked for, up to before number
    ``frames``; of a dataset over several servers those of the portion that its ``start`` names, as in the ticket.

    A reader sends it for a dataset whose retention counts readers (``datasets.places``). The server answers its read
    with the header ``x-flight-shuffle-acknowledge: frames``, and if its ticket names it, it sends the action now and
    then and at the end.
    """

    dataset: Name
    generation: Annotated[str, InJson(Fields.text)]
    partition: Annotated[int, integer(0, MAX_PARTITIONS - 1)]
    reader: Annotated[str, parse_as(partial(check_attempt, what="reader"), needed=True)]
    frames: Annotated[int, integer(0, MAX_COUNT)]
    start: Text = None

    def faults(self, what: str) -> Faults:
        lacking = self.lacks("generation", "partition", "frames")
        yield lacking, f"{what} needs 'generation', 'partition' and 'frames'"


@dataclass(frozen=True)
class HoldRequest(Request, what=HOLD):
    """Body of the action ``hold``, which keeps the versions of a changelog from one on readable while its lease lasts.

    Args:
        hold: its name, the holder's choice. A repeated call renews the lease.
        version: the oldest version that it holds. None: as before, or the newest version for a new hold. A hold moves
            forward only.
        release: end it.
        releases: the name of another hold, which is released in the same step.
        owner: the holder, in words for people: at most 300 printable characters. Without one it stays as it is.
    """

    dataset: Name
    hold: Annotated[str, parse_as(partial(check_attempt, what=HOLD), needed=True)]
    generation: Text = None
    version: Version = None
    lease_seconds: Annotated[float, number(0.1, MAX_LEASE_SECONDS, always=True)] = 60.0
    release: Flag = False
    releases: Annotated[str | None, parse_as(partial(check_attempt, what="hold: 'releases'"))] = None
    owner: Text = None

    def faults(self, what: str) -> Faults:
        yield self.release and self.version is not None, f"{what}: a 'release' names no 'version'"
        owner = "?" if self.owner is None else self.owner
        wrong, shown = not 0 < len(owner) <= MAX_OWNER_CHARACTERS, owner[:MAX_OWNER_CHARACTERS]
        wrong |= not owner.isprintable()
        yield (
            wrong,
            f"{what}: 'owner' must be 1 to {MAX_OWNER_CHARACTERS} printable characters, not {shown!r}",
        )


@dataclass(frozen=True)
class PlanRequest(Request, what=PLAN):
    """Body of the action ``plan``: which frames to read together, so that many readers share one dataset's partitions.

    Args:
        target_bytes: about how many stored bytes a slice is to have.
        partitions: those to cut; None for all.
        start: that of the server whose portion is to be cut; None if no other server holds a part of the dataset.
    """

    dataset: Name
    target_bytes: Annotated[int, integer(1, MAX_COUNT)]
    generation: Text = None
    partitions: Annotated[tuple[int, ...] | None, InJson(list_as_tuple)] = None
    start: Text = None

    def faults(self, what: str) -> Faults:
        yield self.lacks("target_bytes"), f"{what}: 'target_bytes' is missing"
        partitions: Any = () if self.partitions is None else self.partitions
        words = f"'partitions' is a list of numbers from 0 to {MAX_PARTITIONS - 1}, each once, not"
        yield (
            not are_partitions(partitions),
            f"{what}: {words} {str(list(partitions[:20]) if isinstance(partitions, tuple) else partitions)[:40]}",
        )


class CopyVerb(StrEnum):
    """The verbs, between hosts, driver and server.

    ======== ================================================= ====================================
    verb     meaning                                           answer
    ======== ================================================= ====================================
    keep     ``host`` has or will have ``file``                ``withdrawn``: files to remove there
    fetch    ``host`` begins to fetch, or has ``lost`` what it  ``from``: the location to fetch from;
             fetched from; it can be read at ``location``      null for this server
    fetched  ``host`` has all of it
    removed  ``host`` has no such file                         ``left``: hosts of the dataset that
                                                               still have a withdrawn file
    withdraw all hosts are to remove their files               ``hosts``: those that have one
    which    what hosts have                                   ``kept``, ``withdrawn``: hosts;
                                                               ``gone``: the dataset is not there
    ======== ================================================= ====================================
    """

    KEEP = "keep"
    FETCH = "fetch"
    FETCHED = "fetched"
    REMOVED = "removed"
    WITHDRAW = "withdraw"
    WHICH = "which"


def _place(fields: Fields, key: str) -> str | None:
    text = fields.text(key)
    if text is not None and not _PLACE.fullmatch(text):
        raise InvalidRequest(
            f"{fields.what}: {key!r} is grpc://host:port in at most 300 characters, not {text[:80]!r}"
        )
    return text


def _file_name(fields: Fields, key: str) -> str | None:
    text = fields.text(key)
    if text is not None and not _FILE_NAME.fullmatch(text):
        raise InvalidRequest(f"{fields.what}: {key!r} is 1 to 128 of A-Z a-z 0-9 . _ -, not {text[:80]!r}")
    return text


@dataclass(frozen=True)
class CopiesRequest(Request, what=COPIES):
    """Body of the action ``copies``, by which hosts tell the server that they have a file of a dataset, and a driver
    asks which do. The server only notes it (``datasets.host_copies``): the hosts' files are the clients' own. ``host``
    and ``file`` are needed by the verbs of a host. ``location`` and ``lost``, for ``fetch``, are those of the Flight
    servers on the hosts.
    """

    verb: Annotated[CopyVerb, one_of(CopyVerb)]
    dataset: Name
    generation: Annotated[str, InJson(Fields.text)]
    host: Annotated[str | None, InJson(_file_name)] = None
    file: Annotated[str | None, InJson(_file_name)] = None
    location: Annotated[str | None, InJson(_place)] = None
    lost: Annotated[str | None, InJson(_place)] = None

    def faults(self, what: str) -> Faults:
        of_a_host = self.verb not in (CopyVerb.WITHDRAW, CopyVerb.WHICH)
        lacking = self.lacks("generation") or (of_a_host and self.lacks("host", "file"))
        yield lacking, f"{what} needs 'generation', and to {self.verb} also 'host' and 'file'"
        placed = self.location is not None or self.lost is not None
        yield (
            placed and self.verb is not CopyVerb.FETCH,
            f"{what}: 'location' and 'lost' are for {CopyVerb.FETCH}",
        )


ACTIONS: dict[str, str] = {
    "create": "Create a dataset: {dataset, kind, schema, partitions, producers, retention, keep, …}",
    "seal": "Seal a shuffle dataset: {dataset, generation, attempts: {producer: attempt}, servers, offload, …}",
    "drop": "Drop a dataset and what it holds: {dataset, generation, staged}",
    "renew": "Renew a dataset's lease: {dataset, generation}",
    "acknowledge": "A reader has these frames: {dataset, generation, partition, reader, frames, start}",
    "hold": "Keep a changelog's versions from one on readable: {dataset, generation, hold, version, lease_seconds, …}",
    "plan": "Cut sealed partitions into pieces to read: {dataset, generation, target_bytes, partitions, start}",
    "copies": "Which hosts have a file of a dataset, or get it from where: {verb, dataset, generation, host, file, …}",
    "statistics": "Memory, disk and datasets, or one dataset's partitions, in pages: {dataset, first, limit}",
    "why": "Each stream that waits, for what, how long, for which peer; and the quarantine: {dataset, first, limit}",
    "locations": "Where this server is reached, and where it takes puts on the bulk lane: {}",
    "drain": "Take nothing new, let running streams end, then stop the server: {}",
    "CancelFlightInfo": "Arrow's own: drop the dataset that the FlightInfo describes",
    "RenewFlightEndpoint": "Arrow's own: renew the lease of the dataset that the endpoint belongs to",
}
"""The answer to ListActions."""
