"""Staged writes: datasets that no name leads to until they are sealed, so that a write is seen whole or not at all.

Guarantee: readers of the name see nothing of a staged write before its seal. It is found by its generation only. A
staged write is a shuffle, or the stream of a put that overwrites. Each ``create`` of a name with the same ``write``
gives the same shuffle, so the tasks of a job need no word of each other; a ``write`` of another name is another one. A
put has no ``write``, and its staged stream ends with it.

Who holds what
    The registry holds a staged dataset until its seal, its drop, or the end of its lease, because a driver that has
    died drops nothing. This lease is the dataset's own, at most ``WRITE_LEASE_SECONDS``, from the last frame or
    ``renew`` on; that of a put is always ``WRITE_LEASE_SECONDS``, because its producer does not know the generation
    that it would renew, and ``--put-idle-seconds`` ends it earlier. The registry remembers the last ``MAX_ENDED``
    writes that were sealed or dropped, and refuses to begin them again: a task may still run when its job has ended. It
    remembers as many appends, so that a seal whose answer was lost can be repeated.

At the seal
    ==========  ====================================================================================
    mode        at the seal
    ==========  ====================================================================================
    overwrite   the dataset takes the name; readers of the old one finish. One that is not durable is refused
                if the name leads to a durable one by then: a crash would bring that back
    new         the dataset takes the name, or is refused if there is one of that name by then
    append      its partitions that have frames become the last ones of the dataset of that name,
                whose generation and other partitions stay as they are; without one it takes the name;
                of a dataset with versions its rows become one
    delete      its rows are keys, and their rows are deleted from the dataset of that name, in one version
    ==========  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from heapq import nlargest
from operator import itemgetter
from typing import Any

from flight_server.frames import SchemaMessage
from flight_server.protocol import (
    MAX_PARTITIONS,
    VERSIONED,
    WRITE_LEASE_SECONDS,
    AlreadyExists,
    Conflict,
    CreateRequest,
    InvalidRequest,
    Retention,
    WriteMode,
)

from .dataset import Dataset
from .partition import Partition

MAX_ENDED = 10_000


@dataclass(frozen=True, slots=True)
class Sealed:
    """The partitions that a seal has made readable, and their generation.

    ``partition_bytes``: of those with frames. ``version``: that the write became, of a dataset that has versions.
    """

    generation: str
    rows: int
    frames: int
    bytes: int
    partition_bytes: dict[int, int]
    version: int | None = None

    @classmethod
    def of(cls, dataset: Dataset, partitions: Iterable[Partition]) -> Generator[None, None, Sealed]:
        """Of these partitions, which are sealed; in steps."""
        rows = frames = size_bytes = 0
        partition_bytes: dict[int, int] = {}
        for each in partitions:
            totals = each.totals
            rows += totals.rows
            frames += totals.frames
            size_bytes += totals.bytes
            if totals.frames:
                partition_bytes[each.index] = totals.bytes
            yield
        return cls(dataset.generation, rows, frames, size_bytes, partition_bytes)

    def to_json(self, largest: int | None = None) -> dict[str, Any]:
        """``largest``: only so many partitions, the largest, are named, and the bytes of the others summed."""
        named, rest = self.partition_bytes, dict[str, int]()
        if largest is not None:
            named = dict(nlargest(largest, named.items(), key=itemgetter(1)))
            rest = {"rest_bytes": self.bytes - sum(named.values())}
        return {
            "generation": self.generation,
            "rows": self.rows,
            "frames": self.frames,
            "bytes": self.bytes,
            "partition_bytes": {str(index): size for index, size in named.items()},
            **rest,
            **({} if self.version is None else {"version": self.version}),
        }


@dataclass(frozen=True)
class _Staged:
    write: str | None
    dataset: Dataset
    mode: WriteMode
    lease_seconds: float | None
    """The dataset's own lease, which counts from the seal on."""


class StagedWrites:
    """The registry of one catalogue."""

    def __init__(self) -> None:
        # By the dataset's name and the write, of a put its generation: other principals' writes, of other names, may be
        # called alike.
        self._writes: dict[tuple[str, str], _Staged] = {}
        self._by_generation: dict[str, _Staged] = {}
        self._ended: dict[tuple[str, str], str] = {}  # how
        self._appended: dict[tuple[str, str], Sealed] = {}

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, write: str | None, dataset: Dataset, mode: WriteMode) -> None:
        staged = _Staged(write, dataset, mode, dataset.lease_seconds)
        self._writes[_key(staged)] = self._by_generation[dataset.generation] = staged
        own_seconds = None if write is None else dataset.lease_seconds
        dataset.lease_seconds = min(own_seconds or WRITE_LEASE_SECONDS, WRITE_LEASE_SECONDS)
        dataset.renew()

    def has_ended(self, write: str, name: str) -> bool:
        return (name, write) in self._ended

    def known(self, write: str, name: str) -> Dataset | None:
        """The dataset of this write; None if it has not begun. Raises Conflict: the write has ended."""
        if self.has_ended(write, name):
            raise Conflict(
                f"the write {write!r} of dataset {name!r} has ended: it {self._ended[name, write]}; stop this task",
                dataset=name,
            )
        staged = self._writes.get((name, write))
        return None if staged is None else staged.dataset

    def find(self, name: str, generation: str | None) -> Dataset | None:
        staged = None if generation is None else self._by_generation.get(generation)
        return staged.dataset if staged is not None and staged.dataset.name == name else None

    def mode_of(self, dataset: Dataset) -> WriteMode | None:
        """None for a dataset that is not staged."""
        staged = self._of(dataset)
        return None if staged is None else staged.mode

    def lease_seconds_of(self, dataset: Dataset) -> float | None:
        """The dataset's own lease, which a staged one gets with the name."""
        staged = self._of(dataset)
        return dataset.lease_seconds if staged is None else staged.lease_seconds

    def _of(self, dataset: Dataset) -> _Staged | None:
        # A shuffle over several servers has the generation that its writer chose: it may be that of a staged write.
        staged = self._by_generation.get(dataset.generation)
        return staged if staged is not None and staged.dataset is dataset else None

    def appended(self, name: str, generation: str | None) -> Sealed | None:
        """The sealed append of this staged generation; None if there is none, or it was too long ago."""
        return None if generation is None else self._appended.get((name, generation))

    def end(self, dataset: Dataset, why: str, appended: Sealed | None = None) -> None:
        """Forget a staged dataset, which gets back its own lease. Twice is fine. ``why``: it is not staged any more,
        after its name. ``appended``: the part of another dataset that it became, if it did.
        """
        staged = self._of(dataset)
        if staged is None:
            return
        del self._by_generation[dataset.generation]
        del self._writes[_key(staged)]
        if staged.write is not None and not dataset.expired:  # else a task may begin it again
            self._ended[dataset.name, staged.write] = why
        dataset.lease_seconds = staged.lease_seconds
        if appended is not None:
            self._appended[dataset.name, dataset.generation] = replace(appended, partition_bytes={})
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        if len(self._appended) > MAX_ENDED:
            del self._appended[next(iter(self._appended))]

    def all(self) -> list[Dataset]:
        return [staged.dataset for staged in self._writes.values()]

    def has_left(self, dataset: Dataset) -> bool:
        """Whether its lease has ended."""
        sealing = dataset.on_disk is not None and dataset.on_disk.turn.locked()
        return self.mode_of(dataset) is not None and dataset.expired and not sealing


def _key(staged: _Staged) -> tuple[str, str]:
    name, generation = staged.dataset.name, staged.dataset.generation
    return name, f"put {generation}" if staged.write is None else staged.write


def is_repeated(request: CreateRequest, old: Dataset) -> bool:
    """Whether the dataset of the name has the write already. Raises as :meth:`Transactions.find`."""
    written = old.attached.transactions(old)
    return request.transaction is not None and written.find(request.transaction) is not None


def as_it_was(request: CreateRequest, old: Dataset) -> CreateRequest:
    """The request of a staged write, completed by the values of the dataset that has the name."""
    mine = old.request()
    return replace(
        request,
        lease_seconds=request.lease_seconds or mine.lease_seconds,
        durable=request.durable or mine.durable,
        retention=mine.retention if request.retention == Retention() else request.retention,
    )


def check_mode(mode: WriteMode, old: Dataset, schema: SchemaMessage | None, *, durable: bool) -> None:
    """Check that a write of this mode can be sealed while the name leads to ``old``.

    Args:
        durable: whether the write is to be.

    Raises:
        AlreadyExists: mode ``new``.
        InvalidRequest: mode ``delete``, and ``old`` has no such key.
        Conflict: mode ``append``, and ``old`` cannot be extended; mode ``overwrite``, and its kind is not overwritten,
            or it is durable and the write is not.
        InvalidRequest: mode ``append``, and ``old`` has another schema.
    """
    if mode is WriteMode.NEW:
        raise AlreadyExists.about(old.name, "exists; overwrite it, or choose another name")
    if mode is WriteMode.OVERWRITE:
        old.attached.check_overwrite(old)
        check_as_durable(old, durable=durable)
        return
    if old.attached.append is not None:
        if schema is not None:
            old.attached.check_append(schema.schema, deletes=mode is WriteMode.DELETE)
        return
    if mode is WriteMode.DELETE:
        raise InvalidRequest.about(old.name, f"is not a {VERSIONED}: nothing can be deleted from it by key")
    if old.attached.unextendable is not None:
        why = old.attached.unextendable
    elif old.servers:
        why = "is an exchange, whose parts its seal lists"
    elif old.durable:
        why = "is durable, and its files are written once"
    elif durable:
        why = "is not durable, so what is appended would not be"
    elif not old.sealed or old.failure is not None:
        why = "is not sealed: its producer has failed or is still writing"
    elif old.partition_count >= MAX_PARTITIONS:
        why = f"has {MAX_PARTITIONS} partitions, as many as it can have"
    else:
        old.check_schema(schema)
        return
    raise Conflict.about(old.name, f"{why}: nothing can be appended; overwrite it, or choose another name")


def check_as_durable(old: Dataset, *, durable: bool) -> None:
    """Raise Conflict if ``old`` is durable and what is to replace it is not: its files would be forgotten only after it
    was replaced, and a crash in between would bring it back.
    """
    if old.durable and not durable and old.failure is None:
        raise Conflict.about(
            old.name, "became durable while it was overwritten, and what was written is not; write again"
        )
