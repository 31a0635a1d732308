"""The requests inside puts and reads: descriptors, tickets, commits, and a batch's partition.

    descriptor  PATH [dataset] | PATH [dataset, partition] | CMD {"dataset": …, …}
    ticket      b"countries" | b"countries/0" | {"dataset", "generation", "partition", "from", "until", "reader"}
                of several partitions {"dataset", "generation", "partitions": [3, 7] or "all", "from", "start"}
                and of versions {"dataset", "generation", "as_of", "after", "follow"}
    commit      {"commit": {"rows": n, "frames": n, "crc32c": "…"}}

``bodies`` parses and renders them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Final, Literal, Self

from . import flight_sql
from .bodies import Body, Faults, Fields, Flag, InJson, Name, Text, integer, number, parse_as
from .dataset_names import check_dataset_name, numbered
from .errors import InvalidRequest
from .strict_json import dump_json, parse_json

MAX_PARTITIONS = 100_000
ALL: Final = "all"
MAX_VERSION = 2**53
MAX_COUNT = 2**53
MAX_LEASE_SECONDS = 30 * 24 * 3600.0
_CHECKSUM = re.compile(r"[0-9a-f]{8}")
_GENERATION = re.compile(r"[0-9a-f]{16}")
_ATTEMPT = re.compile(r"[A-Za-z0-9._:-]{1,100}")


def check_attempt(attempt: object, what: str = "attempt") -> str:
    """The attempt, in Spark an integer, as text. Raises InvalidRequest."""
    if isinstance(attempt, int) and not isinstance(attempt, bool):
        attempt = str(attempt)
    if not isinstance(attempt, str) or not _ATTEMPT.fullmatch(attempt):
        raise InvalidRequest(f"{what} must be 1 to 100 characters of A-Z a-z 0-9 . _ : -, not {attempt!r}")
    return attempt


def check_generation(generation: object) -> str:
    """The generation. Raises InvalidRequest if it is not 16 hexadecimal digits in lower case."""
    if not isinstance(generation, str) or not _GENERATION.fullmatch(generation):
        raise InvalidRequest(f"a generation is 16 hexadecimal digits, not {str(generation)[:40]!r}")
    return generation


def parse_partition(text: str) -> int:
    """A partition index in ASCII decimal. Raises InvalidRequest for other text."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 6 or int(text) >= MAX_PARTITIONS:
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise InvalidRequest(f"{shown!r} is not a partition index (ASCII decimal, 0 to {MAX_PARTITIONS - 1})")
    return int(text)


def check_range(from_: int, until: int | None) -> None:
    """Raise InvalidRequest if the frames ``from_`` to before ``until`` are not a range."""
    if until is not None and until < from_:
        raise InvalidRequest(
            f"'until' is the number after the last wanted frame: {until} is before 'from', which is {from_}"
        )


def are_partitions(partitions: Any) -> bool:
    """Whether it is a tuple of numbers of partitions, each once."""
    return (
        isinstance(partitions, tuple)
        and len(partitions) <= MAX_PARTITIONS
        and set(map(type, partitions)) <= {int}  # a bool is an int, too
        and 0 <= min(partitions, default=0) <= max(partitions, default=0) < MAX_PARTITIONS
        and len(set(partitions)) == len(partitions)
    )


def list_as_tuple(fields: Fields, key: str) -> Any:
    """The value of a body's key, a list as a tuple."""
    value = fields.any(key)
    return tuple(value) if isinstance(value, list) else value


def bulk_path(
    dataset: str,
    partition: int | None,
    generation: str | None = None,
    from_: int = 0,
    until: int | None = None,
    *,
    reader: str | None = None,
    versions: Versions | None = None,
    partitions: Sequence[int] | None = None,
    start: str | None = None,
) -> str:
    """Path and query on the bulk lane of a partition, or if it is None of ``partitions``, of all if these are None,
    too. The alphabet of names needs no escaping.
    """
    listed = None if partitions is None else ",".join(map(str, partitions))
    parameters = {"generation": generation, "from": from_ or None, "until": until, "reader": reader}
    parameters |= {"partitions": listed, "start": start}
    if versions is not None:
        parameters |= {
            "as_of": versions.as_of,
            "after": versions.after,
            "follow": "true" if versions.follow else None,
        }
    query = "&".join(f"{key}={value}" for key, value in parameters.items() if value is not None)
    path = f"/v1/datasets/{dataset}" + ("" if partition is None else f"/partitions/{partition}")
    return path + (f"?{query}" if query else "")


def partition_metadata(partition: int) -> bytes:
    """The ``app_metadata`` of a shuffle producer's batch for ``partition``."""
    return b"%d" % partition


Partition = Annotated[int | None, integer(0, MAX_PARTITIONS - 1)]
Version = Annotated[int | None, integer(0, MAX_VERSION)]


def _transaction_id(fields: Fields, key: str) -> str:
    return check_attempt(fields.required(key), fields.what.replace("transaction", key))


@dataclass(frozen=True)
class Transaction(Body):
    """Makes a write happen once: of one ``id``, a ``version`` is written only if it is above the last one; a repeated
    version gets its first answer, any other is refused. With ``after`` the write is refused unless ``after`` is the
    last version, which shows a lost write and a second writer.
    """

    id: Annotated[str, InJson(_transaction_id)]
    version: Annotated[int, integer(0, MAX_VERSION)]
    after: Version = None

    def faults(self, what: str) -> Faults:
        yield self.lacks("version"), f"{what} needs a 'version'"


InTransaction = Annotated[Transaction | None, InJson(Transaction.member)]


@dataclass(frozen=True)
class Versions(Body):
    """The versions that a reader gets: the snapshot ``as_of`` a version (None: the newest), or the deltas ``after``
    one, up to ``as_of`` or the newest; with ``follow`` also each new version as it comes.
    """

    as_of: Version = None
    after: Version = None
    follow: Flag = False

    @classmethod
    def find(cls, fields: Fields) -> Versions | None:
        """The reader's wish out of a ticket's fields; None if it has none. Raises InvalidRequest: ``follow`` without
        ``after``, or with ``as_of``; or they are out of order.
        """
        wish = cls.take(fields)
        wish.check(fields.what)
        return None if wish.as_of is None and wish.after is None else wish

    def faults(self, what: str) -> Faults:
        del what
        as_of, after = self.as_of, self.after
        wrong = self.follow and (after is None or as_of is not None)
        yield wrong, "'follow' goes with 'after', and not with 'as_of'"
        wrong = as_of is not None and after is not None and as_of < after
        yield wrong, f"there are no deltas after version {after} up to {as_of}, which is before it"


_AmongOthers = Annotated[Versions | None, InJson(lambda fields, _: Versions.find(fields), inline=True)]


@dataclass(frozen=True)
class PutCreate(Body):
    """The shuffle that a put makes where it is absent: of the put's generation and schema, with so many partitions. If
    it is never sealed, the lease ends it.
    """

    partitions: Annotated[int, integer(1, MAX_PARTITIONS)]
    lease_seconds: Annotated[float | None, number(0.1, MAX_LEASE_SECONDS)] = None

    def faults(self, what: str) -> Faults:
        yield self.lacks("partitions"), f"{what} needs 'partitions'"


@dataclass(frozen=True)
class PutCommand(Body, what="the command"):
    """The command in a DoPut's descriptor, or in that of a request for a FlightInfo.

    ``partition`` and ``mode`` (``"create"`` or ``"overwrite"``) are for kind ``stream``, ``producer`` and ``attempt``
    for kinds with many producers, ``transaction`` and ``delete`` for versions: with that the rows are keys, whose
    rows are deleted. ``seen`` is for PollFlightInfo, see ``Attachment.look``. With ``create`` the put makes the
    shuffle that it is for, and its commit's answer also names the server: ``start`` and ``locations``.
    """

    dataset: Name
    partition: Partition = None
    producer: Annotated[int | None, integer(0, 2**31 - 1)] = None
    attempt: Annotated[str | None, parse_as(check_attempt)] = None
    mode: Annotated[str, InJson(lambda fields, key: fields.text(key) or None)] = "create"
    generation: Text = None
    transaction: InTransaction = None
    seen: Version = None
    delete: Flag = False
    create: Annotated[PutCreate | None, InJson(PutCreate.member)] = None

    @classmethod
    def parse(cls, data: bytes) -> Self:
        flight_sql.refuse(data)
        if not data.lstrip().startswith((b"{", b"[")) and data.strip():
            raise InvalidRequest(f"the descriptor's command is not JSON: {flight_sql.INSTEAD}")
        return cls.of(parse_json(data, cls.what, small=True))

    def faults(self, what: str) -> Faults:
        wrong = self.delete and self.mode == "overwrite"
        yield wrong, f"{what}: 'delete' does not go with 'mode' 'overwrite'"
        wrong = self.mode not in ("create", "overwrite")
        yield wrong, f"{what}: 'mode' is 'create' or 'overwrite', not {self.mode!r}"
        wrong = (self.producer is None) != (self.attempt is None)
        yield wrong, f"{what}: 'producer' and 'attempt' go together"
        wrong = self.create is not None and (self.lacks("producer", "generation") or self.mode != "create")
        yield wrong, f"{what}: 'create' needs 'producer', 'attempt' and 'generation', and no other 'mode'"


@dataclass(frozen=True)
class Ticket(Body, what="the ticket"):
    """The frames that a DoGet reads. ``generation`` None means the current one, ``partition`` None the only one.
    ``from_`` is the sequence number of the first wanted frame, ``until`` the one after the last, None for all that
    there are. ``reader`` is the name by which a reader resumes, see ``datasets.places``. ``versions`` is for a dataset
    that has some. ``partitions`` are read one after the other (``transfer.listed_reads``), the first from ``from_``
    on; ``"all"`` are those that the server has. ``start`` is that of the only server whose frames are wanted.
    ``counts`` says that it came with ``from``, also 0: its reader counts frames.
    """

    dataset: Name
    partition: Partition = None
    generation: Text = None
    from_: Annotated[int, integer(0, MAX_COUNT, "from")] = 0
    reader: Annotated[str | None, parse_as(partial(check_attempt, what="reader"))] = None
    versions: _AmongOthers = None
    until: Annotated[int | None, integer(0, MAX_COUNT)] = None
    partitions: Annotated[tuple[int, ...] | Literal["all"] | None, InJson(list_as_tuple)] = None
    start: Annotated[str | None, parse_as(partial(check_attempt, what="start"))] = None
    counts: bool = field(default=False, compare=False)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """JSON, or a plain name, or ``name/3`` for a partition of it. Raises InvalidRequest."""
        flight_sql.refuse(data)
        if data.lstrip().startswith(b"{"):
            body = parse_json(data, cls.what, small=True)
            return replace(cls.of(body), counts="from" in body)
        try:
            name, number = numbered(data.decode())
        except UnicodeDecodeError:
            raise InvalidRequest("a ticket is JSON from get_flight_info, or a dataset's name") from None
        return cls(check_dataset_name(name), None if number is None else parse_partition(number))

    def faults(self, what: str) -> Faults:
        partitions = self.partitions
        listed = isinstance(partitions, tuple) and partitions != ()
        numbers = f"numbers from 0 to {MAX_PARTITIONS - 1}, each once, not {str(partitions)[:40]}"
        wrong = listed and not are_partitions(partitions)
        yield wrong, f"{what}: 'partitions' lists {numbers}"
        wrong = not listed and partitions not in (None, ALL)
        yield wrong, f"{what}: 'partitions' is \"all\" or a list of {numbers}"
        alone = (self.partition, self.until, self.reader, self.versions)
        wrong = partitions is not None and alone != (None,) * len(alone)
        yield wrong, f"{what}: 'partitions' goes with none of 'partition', 'until', 'reader' and versions"
        yield partitions == ALL and self.from_ > 0, f"{what}: 'from' needs a list of 'partitions'"

    def check(self, what: str) -> None:
        super().check(what)
        check_range(self.from_, self.until)


def _checksum(fields: Fields, key: str) -> int | str | None:
    text = fields.text(key)
    return text if text is None or not _CHECKSUM.fullmatch(text) else int(text, 16)


@dataclass(frozen=True)
class Commit(Body, what="the commit"):
    """The totals with which a shuffle producer ends its stream; the server compares them with what arrived.
    ``crc32c``, if known, is ``checksums.running_crc32c`` over all messages before.
    """

    rows: Annotated[int, integer(0, MAX_COUNT)]
    frames: Annotated[int, integer(0, MAX_COUNT)]
    crc32c: Annotated[int | None, InJson(_checksum, render="{:08x}".format)] = field(
        default=None, compare=False
    )

    @classmethod
    def parse(cls, data: bytes) -> Commit:
        fields = Fields(parse_json(data, cls.what, small=True), cls.what)
        totals = fields.any("commit")
        fields.end()
        if not isinstance(totals, dict):
            raise InvalidRequest('the commit is {"commit": {"rows": n, "frames": n}}')
        return cls.of(totals)

    def faults(self, what: str) -> Faults:
        wrong = not isinstance(self.crc32c, int | None)
        yield wrong, f"{what}'s 'crc32c' is eight hexadecimal digits, not {self.crc32c!r}"
        yield self.lacks("rows", "frames"), f"{what} needs 'rows' and 'frames'"

    def encode(self) -> bytes:
        return dump_json({"commit": self.to_json()})
