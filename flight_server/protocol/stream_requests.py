"""What a put or a read says of itself: descriptors, tickets, commits, and a batch's partition.

    descriptor  PATH [dataset] | PATH [dataset, partition] | CMD {"dataset": …, …}
    ticket      b"countries" | b"countries/0" | {"dataset", "generation", "partition", "from", "until", "reader"}
                and of versions {"dataset", "generation", "as_of", "after", "follow"}
    commit      {"commit": {"rows": n, "frames": n, "crc32c": "…"}}

Parsing is strict (see ``strict_json``). What ``encode`` renders, ``parse`` parses to the same value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from . import flight_sql
from .dataset_names import check_dataset_name
from .errors import InvalidRequest
from .strict_json import Fields, dump_json, parse_json

MAX_PARTITIONS = 100_000
MAX_VERSION = 2**53
_CHECKSUM = re.compile(r"[0-9a-f]{8}")
_ATTEMPT = re.compile(r"[A-Za-z0-9._:-]{1,100}")


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


def bulk_path(
    dataset: str,
    partition: int,
    generation: str | None = None,
    from_: int = 0,
    until: int | None = None,
    *,
    reader: str | None = None,
    versions: Versions | None = None,
) -> str:
    """A partition's path and query on the bulk lane. The alphabet of names needs no escaping."""
    wanted = {"generation": generation, "from": from_ or None, "until": until, "reader": reader}
    if versions is not None:
        wanted |= {
            "as_of": versions.as_of,
            "after": versions.after,
            "follow": "true" if versions.follow else None,
        }
    query = "&".join(f"{key}={value}" for key, value in wanted.items() if value is not None)
    return f"/v1/datasets/{dataset}/partitions/{partition}" + (f"?{query}" if query else "")


def partition_metadata(partition: int) -> bytes:
    """The ``app_metadata`` of a shuffle producer's batch for ``partition``."""
    return b"%d" % partition


@dataclass(frozen=True)
class Transaction:
    """Makes a write happen once: of one ``id``, a ``version`` is written only if it is above the last one; one that was
    written is answered as it was then, another one is refused. With ``after`` it is refused unless that is the last
    one, so that a lost one and another writer are noticed.
    """

    id: str
    version: int
    after: int | None = None

    @classmethod
    def parse(cls, value: object, what: str = "seal") -> Transaction | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise InvalidRequest(f"{what}: 'transaction' must be an object with id, version and after")
        fields = Fields(dict(value), f"{what}: 'transaction'")
        name, version = (
            check_attempt(fields.required("id"), f"{what}: 'id'"),
            fields.integer("version", 0, 2**53),
        )
        after = fields.integer("after", 0, 2**53)
        fields.end()
        if version is None:
            raise InvalidRequest(f"{what}: 'transaction' needs a 'version'")
        return cls(name, version, after)

    def to_json(self) -> dict[str, Any]:
        body = {"id": self.id, "version": self.version}
        return body if self.after is None else {**body, "after": self.after}


@dataclass(frozen=True)
class Versions:
    """What a reader of versions gets: the snapshot ``as_of`` a version (None: the newest), or the deltas ``after``
    one, up to ``as_of`` or the newest; with ``follow`` also each new version as it comes.
    """

    as_of: int | None = None
    after: int | None = None
    follow: bool = False

    @classmethod
    def taken(cls, fields: Fields) -> Versions | None:
        """The reader's wish out of a ticket's fields; None if it has none.

        Raises:
            InvalidRequest: ``follow`` without ``after``, or with ``as_of``; or they are out of order.
        """
        as_of, after = fields.integer("as_of", 0, MAX_VERSION), fields.integer("after", 0, MAX_VERSION)
        follow = fields.flag("follow")
        if follow and (after is None or as_of is not None):
            raise InvalidRequest("'follow' goes with 'after', and not with 'as_of'")
        if as_of is not None and after is not None and as_of < after:
            raise InvalidRequest(
                f"there are no deltas after version {after} up to {as_of}, which is before it"
            )
        return None if as_of is None and after is None else cls(as_of, after, follow)

    def to_json(self) -> dict[str, Any]:
        body = {"as_of": self.as_of, "after": self.after, "follow": self.follow or None}
        return {key: value for key, value in body.items() if value is not None}


@dataclass(frozen=True)
class PutCommand:
    """The command in a DoPut's descriptor, or in that of a request for a FlightInfo.

    ``partition`` and ``mode`` (``"create"`` or ``"overwrite"``) are for kind ``stream``, ``producer`` and ``attempt``
    for kinds with many producers, ``transaction`` and ``delete`` for versions: with that the rows are keys, whose
    rows are deleted. ``seen`` is for PollFlightInfo, see ``Attachment.look``.
    """

    dataset: str
    partition: int | None = None
    producer: int | None = None
    attempt: str | None = None
    mode: str = "create"
    generation: str | None = None
    transaction: Transaction | None = None
    seen: int | None = None
    delete: bool = False

    @classmethod
    def parse(cls, data: bytes) -> PutCommand:
        flight_sql.refuse(data)
        if not data.lstrip().startswith((b"{", b"[")) and data.strip():
            raise InvalidRequest(f"the descriptor's command is not JSON: {flight_sql.INSTEAD}")
        fields = Fields(parse_json(data, "the command", small=True), "the command")
        command = cls(
            dataset=check_dataset_name(fields.required("dataset")),
            partition=fields.integer("partition", 0, MAX_PARTITIONS - 1),
            producer=fields.integer("producer", 0, 2**31 - 1),
            attempt=None if (value := fields.any("attempt")) is None else check_attempt(value),
            mode=fields.text("mode") or "create",
            generation=fields.text("generation"),
            transaction=Transaction.parse(fields.any("transaction"), "the command"),
            seen=fields.integer("seen", 0, MAX_VERSION),
            delete=fields.flag("delete"),
        )
        fields.end()
        if command.delete and command.mode == "overwrite":
            raise InvalidRequest("the command: 'delete' does not go with 'mode' 'overwrite'")
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
            "transaction": None if self.transaction is None else self.transaction.to_json(),
            "seen": self.seen,
            "delete": self.delete or None,
        }
        return dump_json({key: value for key, value in body.items() if value is not None})


@dataclass(frozen=True)
class Ticket:
    """What a DoGet reads. ``generation`` None means the current one, ``partition`` None the only one. ``from_`` is
    the sequence number of the first wanted frame, ``until`` the one after the last, None for all that there are.
    ``reader`` is the name by which a reader resumes, see ``datasets.places``. ``versions`` is for a dataset that
    has some. A ``bare`` ticket is a plain text, so ``dataset`` may be a dataset's name, or end in a partition's number.
    """

    dataset: str
    partition: int | None = None
    generation: str | None = None
    from_: int = 0
    reader: str | None = None
    versions: Versions | None = None
    until: int | None = None
    bare: bool = field(default=False, compare=False)

    @classmethod
    def parse(cls, data: bytes) -> Ticket:
        """JSON, or a plain name. ``name/3`` stays a name here: only the catalogue can tell. Raises InvalidRequest."""
        flight_sql.refuse(data)
        if not data.lstrip().startswith(b"{"):
            try:
                return cls(check_dataset_name(data.decode()), bare=True)
            except UnicodeDecodeError:
                raise InvalidRequest("a ticket is JSON from get_flight_info, or a dataset's name") from None
        fields = Fields(parse_json(data, "the ticket", small=True), "the ticket")
        ticket = cls(
            dataset=check_dataset_name(fields.required("dataset")),
            generation=fields.text("generation"),
            partition=fields.integer("partition", 0, MAX_PARTITIONS - 1),
            from_=fields.integer("from", 0, 2**53) or 0,
            reader=None if (name := fields.any("reader")) is None else check_attempt(name, "reader"),
            versions=Versions.taken(fields),
            until=fields.integer("until", 0, 2**53),
        )
        fields.end()
        check_range(ticket.from_, ticket.until)
        return ticket

    def encode(self) -> bytes:
        body: dict[str, Any] = {"dataset": self.dataset}
        if self.generation is not None:
            body["generation"] = self.generation
        if self.partition is not None:
            body["partition"] = self.partition
        if self.from_:
            body["from"] = self.from_
        if self.until is not None:
            body["until"] = self.until
        if self.reader is not None:
            body["reader"] = self.reader
        if self.versions is not None:
            body |= self.versions.to_json()
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
