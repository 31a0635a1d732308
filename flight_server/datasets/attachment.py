"""Attachment: the behaviour that a dataset has by its kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa

from flight_server.concurrency import Changes
from flight_server.protocol import Conflict, CreateRequest, FlightShuffleError, Kind, SealRequest, WriteMode

from .transactions import Transactions

Sees = Callable[[str], bool]
Append = Callable[[Any, Any, SealRequest, WriteMode], Awaitable[Any]]


class Attachment:
    """As it stands a stream's: frames in partitions, each of which its producer ends.

    A stream and a shuffle have theirs from the start; a kind that has more than the frames of partitions attaches its
    own when it creates or recovers a dataset. The dataset holds its attachment; an attachment holds no reference to the
    dataset, which each call gives it.
    """

    by_name = False
    """Writers and seals find the dataset by its name: while it is open it cannot go on without that, and a seal that
    has failed can be repeated."""
    pulled = False
    """The partitions are filled when they are read, and can be filled again."""
    remedy = "write it again"
    """For the readers of a dataset that is dropped."""
    unextendable: str | None = None
    """Why no partitions can ever be appended."""
    append: Append | None = None
    """Called with a staged write, the dataset, the seal's request and mode: makes the write a part of the dataset.
    None: the write's partitions become the last ones of the dataset."""

    def want(self, dataset: Any, index: int) -> None:
        """A reader of the partition has come. Never waits."""

    def close(self, why: str) -> None:
        """Stop: the dataset was dropped; ``why`` follows its name. Twice is fine."""

    def declared(self, request: CreateRequest) -> CreateRequest:
        """The request that created the dataset, with the values that its kind asks for."""
        return request

    def check_append(self, schema: pa.Schema, *, deletes: bool) -> None:
        """Raise InvalidRequest if ``append`` does not take rows of this schema, or keys to delete."""

    def check_overwrite(self, dataset: Any, *, meanwhile: bool = False) -> None:
        """Raise Conflict if another dataset may not take its name. ``meanwhile``: that was written before this one
        existed.
        """

    def not_sealed(self, dataset: Any) -> FlightShuffleError:
        """Why its partitions cannot be cut into slices yet."""
        return Conflict.about(dataset.name, "is still written: its partitions are cut after the seal")

    def transactions(self, dataset: Any) -> Transactions:
        """The transactions that the dataset has committed."""
        written: Transactions = dataset.transactions
        return written

    def look(self, dataset: Any) -> tuple[int, Changes]:
        """A number that differs after each change that a reader can see, and the object that tells the next change."""
        return dataset.changes.number, dataset.changes

    def facts(self) -> dict[str, Any]:
        """The kind's own facts in FlightInfo."""
        return {}

    def statistics(self, sees: Sees) -> dict[str, Any]:
        """The kind's own facts in ``statistics``, which name only datasets that their reader ``sees``."""
        return {}

    def stored(self) -> tuple[int, int, int]:
        """Rows, bytes in RAM and bytes on disk that are in no partition."""
        return 0, 0, 0


class _OfShuffle(Attachment):
    by_name = True


_STREAM, _SHUFFLE = Attachment(), _OfShuffle()


def attachment_of(kind: Kind) -> Attachment:
    """The attachment of a new dataset, until its kind attaches its own."""
    return _SHUFFLE if kind is Kind.SHUFFLE else _STREAM
