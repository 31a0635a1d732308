"""Staged writes: shuffles that no name leads to until they are sealed, so that a write is seen whole or not at all.

Guarantee: readers of the name see nothing of a staged write before its seal. It is found by its generation only. Each
``create`` with the same ``write`` gives the same one, so the tasks of a job need no word of each other.

Who holds what
    The registry holds a staged dataset until its seal, its drop, or the end of its lease: ``WRITE_LEASE_SECONDS``
    after its last frame, because a driver that has died drops nothing. It remembers the last ``MAX_ENDED`` writes that
    were sealed or dropped, and refuses to begin them again: a task may still run when its job has ended.

What the seal does
    ==========  ====================================================================================
    mode        at the seal
    ==========  ====================================================================================
    overwrite   the dataset takes the name; readers of the old one finish
    new         the dataset takes the name, or is refused if there is one of that name by then
    append      its partitions that have frames become the last ones of the dataset of that name,
                whose generation and other partitions stay as they are; without one it takes the name
    ==========  ====================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from flight_server.frames import SchemaMessage
from flight_server.protocol import AlreadyExists, Conflict, InvalidRequest, Kind, WriteMode

from .dataset import Dataset

WRITE_LEASE_SECONDS = 3600.0
MAX_ENDED = 10_000


@dataclass(frozen=True)
class _Staged:
    dataset: Dataset
    mode: WriteMode
    lease_seconds: float | None
    """What the dataset gets with the name."""


class StagedWrites:
    """See the module's text."""

    def __init__(self) -> None:
        self._writes: dict[str, _Staged] = {}
        self._ended: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, write: str, dataset: Dataset, mode: WriteMode) -> None:
        self._writes[write] = _Staged(dataset, mode, dataset.lease_seconds)
        dataset.lease_seconds = WRITE_LEASE_SECONDS
        dataset.touch()

    def known(self, write: str, name: str) -> Dataset | None:
        """The dataset of this write; None if it has not begun.

        Raises:
            Conflict: the write has ended.
            InvalidRequest: it is of another name.
        """
        if write in self._ended:
            raise Conflict(
                f"the write {write!r} of dataset {name!r} has ended, sealed or dropped; stop this task",
                dataset=name,
            )
        found = self._writes.get(write)
        if found is not None and found.dataset.name != name:
            raise InvalidRequest(
                f"create: write {write!r} is for dataset {found.dataset.name!r}, not {name!r}", dataset=name
            )
        return None if found is None else found.dataset

    def find(self, name: str, generation: str | None) -> Dataset | None:
        for staged in self._writes.values() if generation is not None else ():
            if staged.dataset.generation == generation and staged.dataset.name == name:
                return staged.dataset
        return None

    def mode_of(self, dataset: Dataset) -> WriteMode | None:
        """None for a dataset that is not staged."""
        return next((each.mode for each in self._writes.values() if each.dataset is dataset), None)

    def end(self, dataset: Dataset) -> None:
        """Forget a staged dataset, which gets back its own lease. Twice is fine."""
        for write, staged in list(self._writes.items()):
            if staged.dataset is dataset:
                del self._writes[write]
                if not dataset.expired:  # else a task may begin it again
                    self._ended[write] = None
                dataset.lease_seconds = staged.lease_seconds
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def all(self) -> list[Dataset]:
        return [staged.dataset for staged in self._writes.values()]


def check_mode(mode: WriteMode, old: Dataset, schema: SchemaMessage | None) -> None:
    """Check that a write of this mode can be sealed while the name leads to ``old``.

    Raises:
        AlreadyExists: mode ``new``.
        Conflict: mode ``append``, and ``old`` cannot be extended.
        InvalidRequest: mode ``append``, and ``old`` has another schema.
    """
    if mode is WriteMode.NEW:
        raise AlreadyExists(
            f"dataset {old.name!r} exists; overwrite it, or choose another name", dataset=old.name
        )
    if mode is WriteMode.OVERWRITE:
        return
    if old.kind is Kind.SOURCE:
        why = "is pulled from a source"
    elif old.durable:
        why = "is durable, and its files are written once"
    elif old.failure is not None or not old.sealed:
        why = "is not sealed: its producer has failed or is still writing"
    else:
        old.check_schema(schema)
        return
    raise Conflict(f"dataset {old.name!r} {why}: nothing can be appended; overwrite it", dataset=old.name)
