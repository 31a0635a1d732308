"""Kind: the contract of a kind of dataset. Lanes, puts, reads and reports ask it, so a kind is added without them.

    create    makes a dataset, or finds the one that an equal request has made
    sink      takes a put
    seal      does the action ``seal``
    read      what a reader gets, unless it is the frames of partitions
    actions   that only this kind has
    metrics   of all its datasets; :class:`~flight_server.datasets.Attachment` has the facts of one
    recover   brings its datasets back when the server starts; ``start``, ``drain`` and the rest follow the server

Who holds what
    A dataset holds the data beside its partitions, as its attachment. A kind holds the parts that its datasets share:
    threads, pools, a place on disk. The node holds the kinds.

Awaits
    While ``create`` awaits a disk, another call may take the name: AlreadyExists. While a sink's ``commit`` or ``end``
    awaits one, the dataset may be dropped or replaced: DatasetDropped, Conflict. Either disk may refuse: Unavailable.
    While ``bursts`` awaits its reader, the version may be compacted: Compacted. Each can be cancelled there. The name
    then leads to a whole dataset or where it led before, a commit is there whole or not at all, and a read releases its
    room.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from flight_server.concurrency import Background
from flight_server.datasets import Caller, Catalogue, Dataset, Sealed
from flight_server.frames import SchemaMessage
from flight_server.memory import Reservation
from flight_server.protocol import (
    VERSIONED,
    Conflict,
    CreateRequest,
    InvalidRequest,
    Kind,
    PutCommand,
    SealRequest,
    Versions,
    wire,
)
from flight_server.tiering import Reader

from .sinks import Sink

Action = Callable[[bytes, Caller], Awaitable[dict[str, object]]]


@dataclass(frozen=True)
class VersionedMessage:
    """A record batch message that is made for one reader. ``metadata``: for app_metadata."""

    parts: wire.FlightData
    crc32c: int
    rows: int
    metadata: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.parts.header) + len(self.parts.body)

    def flight_data(self) -> bytes:
        return wire.flight_data(self.parts.header, metadata=self.metadata, body=self.parts.body)


class VersionBurst(list[VersionedMessage]):
    """Messages that are made together, and the room that they have."""

    def __init__(self, messages: list[VersionedMessage], room: Reservation) -> None:
        super().__init__(messages)
        self.room = room


class VersionRead(Protocol):
    """One read of a dataset with versions."""

    def check(self) -> None:
        """Raise the errors that ``bursts`` would raise at once."""

    def schema_header(self) -> bytes:
        """The header of the schema message."""

    def bursts(self, reader: Reader) -> AsyncGenerator[VersionBurst, None]:
        """The messages for the reader. Close the generator to leave; cancelling it is safe. The reader keeps nothing of
        a burst when it asks for the next one.
        """


class DatasetKind:
    """As it stands its readers get frames, and it has nothing of its own on disk."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue

    @property
    def actions(self) -> Mapping[str, Action]:
        """The answer to an action's body and caller, by the action's name."""
        return {}

    async def create(self, request: CreateRequest, schema: SchemaMessage | None) -> tuple[Dataset, bool]:
        """The dataset, and whether it was made now. Raises as :meth:`Catalogue.create`."""
        return self.catalogue.create(request, schema)

    def sink(self, command: PutCommand, dataset: Dataset | None, schema: SchemaMessage) -> Sink:
        """Begin a put. ``dataset``: that the name, or the generation of a staged write, leads to; None if there is
        none, or it is overwritten. Raises InvalidRequest, Conflict, NotFound, StaleTicket: the kind takes no such put.
        """
        raise NotImplementedError

    async def seal(self, dataset: Dataset, request: SealRequest) -> Sealed:
        """Do the action ``seal``. Raises Conflict: the action seals no dataset of this kind; or as
        :func:`~flight_server.kinds.seals.seal`.
        """
        raise Conflict.about(
            dataset.name,
            f"is of kind {dataset.kind.value!r}: only a shuffle is sealed by the action; a stream is sealed when its "
            "producer ends",
        )

    def read(self, dataset: Dataset, versions: Versions | None, until: int | None) -> VersionRead | None:
        """The read of a reader; None for the frames of partitions. ``versions``, ``until``: that the reader asks for.
        Raises InvalidRequest: the kind has no such reads.
        """
        if versions is not None:
            raise InvalidRequest.about(
                dataset.name,
                f"is of kind {dataset.kind.value!r}: only a {VERSIONED} has versions to read 'as_of' or 'after'",
            )
        return None

    async def metrics(self) -> list[tuple[str, str, float]]:
        """Of all its datasets: names, texts and numbers. Cancelling is safe."""
        return []

    def recover(self) -> None:
        """Bring back its files on disk, but those of sealed partitions. Blocks. Raises OSError: the start must end."""

    async def start(self, background: Background, every_seconds: float) -> None:
        """Begin its lasting work when the server listens; its duties come every so many seconds."""

    def drain(self) -> None:
        """End its streams that have no end, once they have all versions. Twice is fine."""

    def close(self) -> None:
        """End its threads. Blocks. Twice is fine."""


class Kinds(dict[Kind, DatasetKind]):
    """The kinds of one server."""

    @property
    def actions(self) -> dict[str, Action]:
        return {name: action for kind in self.values() for name, action in kind.actions.items()}
