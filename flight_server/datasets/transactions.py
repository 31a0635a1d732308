"""Transactions: which writes of each id a dataset has, so that one which is repeated changes nothing.

Guarantee: a write whose number was committed is not committed again. It is answered as the first one was, or, if that
was forgotten, refused with Conflict. A number that was never committed is never answered as if it was. Numbers of an
id rise: below the last one nothing is taken.

Remembered
    The last ``NUMBERS`` numbers of each id, each with the version that it made; the ``IDS`` ids that were used last,
    and each one for ``DAYS`` after its last use. If there are so many that were all used since, a new id is refused.
    Of each id that was forgotten a hash stays, and the id is refused for good; so is every new one once there are
    ``HASHES``. The bytes are reserved in the account ``metadata``.

Following
    A write with ``after`` is refused unless ``after`` is the last number of its id: otherwise the write before it is
    lost, or another writer uses the id.

Lifetime
    They live as long as the name leads to the dataset: an overwrite takes them over, a drop or the end of a lease
    forgets them with the data. Those of a durable dataset are in the records, written in the transaction that commits
    the data (``records.transaction_records``), and so are on disk exactly when the data is.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

from flight_server.memory import Metadata
from flight_server.protocol import Conflict, Transaction
from flight_server.records import Entry

NUMBERS = 8
IDS = 10_000
DAYS = 30
HASHES = 100_000
ID_BYTES = 1280
"""One id: its text of up to 100 characters, its numbers and its entry in the table."""
HASH_BYTES = 8


class Transactions:
    """Those of one dataset. Synchronous. Its length is the number of ids."""

    __slots__ = ("_dataset", "_forgotten", "_ids", "_lasting", "_metadata", "_room")

    def __init__(
        self,
        dataset: str,
        metadata: Metadata | None = None,
        known: Mapping[str, Entry] | None = None,
        forgotten: Iterable[int] = (),
    ) -> None:
        """``known`` and ``forgotten`` as :meth:`entries` and :attr:`forgotten` gave them."""
        self._dataset = dataset
        self._metadata = metadata or Metadata()
        self._ids: dict[str, Entry] = dict(known or {})  # the one that was used least recently is the first
        self._lasting: set[str] = set()
        self._forgotten = array("Q", sorted(forgotten))
        size_bytes = ID_BYTES * len(self._ids) + HASH_BYTES * len(self._forgotten)
        self._room = self._metadata.pool.reserve(size_bytes)

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, transaction: Transaction) -> int | None:
        """The version that a write with this transaction made; None if it is to be made.

        Raises:
            Conflict: the number is below the last one and not remembered, or the id was forgotten, or is one too many.
            OutOfBudget: there is no room for a new id.
        """
        name, number = transaction.id, transaction.version
        entry = self._ids.get(name)
        if entry is None:
            self._check_new(name, number)
            return None
        below, last = entry[1], entry[-2]
        if number > last:
            return None
        for known, version in zip(entry[2::2], entry[3::2], strict=True):
            if known == number:
                return version
        raise self._conflict(
            f"number {number} of transaction id {name!r} may have been committed: of an id the last {NUMBERS} numbers "
            f"are remembered, here from {entry[2]} on. Look whether its rows are there, and go on above {last}"
            if number < below
            else f"number {number} of transaction id {name!r} was never committed, and {last} was: numbers of an id "
            f"rise, so nothing of this write is taken. Send it with a number above {last}; if two writers use this id, "
            "give each its own"
        )

    def check_after(self, transaction: Transaction) -> None:
        """Raise Conflict if a write with ``after`` that :meth:`find` does not know does not follow its last one."""
        name, number, after = transaction.id, transaction.version, transaction.after
        entry = self._ids.get(name)
        last, version = (None, 0) if entry is None else entry[-2:]
        if after is None or (last == after and version):
            return
        if last is None:
            why = "has had no write with this id since it was created"
        elif last < after:
            why = f"has those up to {last}"
        elif last > after:
            raise self._conflict(
                f"number {number} of transaction id {name!r} is to follow {after}, and {last} was committed since: "
                "two writers use this id; give each its own"
            )
        else:
            why = "was overwritten since"
        raise self._conflict(
            f"number {number} of transaction id {name!r} is to follow {after}, and the dataset {why}. Write again what "
            "is missing; or go on without it: a put without 'after', a Spark query with 'fail_on_data_loss' 'false'"
        )

    def note(
        self, transaction: tuple[str, int] | None, version: int, used: float | None = None
    ) -> dict[str, int]:
        """A write with this id and number is in the dataset. ``used``: when, in seconds since the epoch; now. Returns
        the ids that are forgotten since, with their hashes.
        """
        forgotten: dict[str, int] = {}
        if transaction is None:
            return forgotten
        name, number = transaction
        now = int(time.time() if used is None else used)
        entry = self.noted(name, number, version, now)
        if self._ids.pop(name, None) is None:
            self._room.grow(ID_BYTES)
        self._ids[name] = entry
        while len(self._ids) > IDS and (oldest := self._forgettable(now)) is not None:
            del self._ids[oldest]
            forgotten[oldest] = _hash(oldest)
            insort(self._forgotten, forgotten[oldest])
            self._room.shrink(ID_BYTES - HASH_BYTES)
        return forgotten

    def noted(self, name: str, number: int, version: int, used: float | None = None) -> Entry:
        """The entry of an id after :meth:`note`."""
        now = int(time.time() if used is None else used)
        before_used, below, *numbers = self._ids.get(name, (now, 0))
        if not numbers or number > numbers[-2]:
            numbers += [number, version]
        if len(numbers) > 2 * NUMBERS:
            below, numbers = numbers[0] + 1, numbers[2:]
        return (max(now, before_used), below, *numbers)

    def last(self, name: str) -> int | None:
        entry = self._ids.get(name)
        return None if entry is None else entry[-2]

    def keep(self, name: str) -> None:
        """Do not forget this id, however old it gets."""
        self._lasting.add(name)

    def begin(self, transaction: Transaction | None) -> None:
        """A write with this transaction makes the dataset."""
        self._room.shrink(ID_BYTES * len(self._ids))
        self._ids.clear()
        self.note(None if transaction is None else (transaction.id, transaction.version), 1)

    def replacing(self, before: Transactions | None) -> Transactions:
        """The transactions of the dataset once it replaces one that has ``before``."""
        if before is None or before is self:
            return self
        known = {name: (*entry[:-1], 0) for name, entry in before._ids.items()}
        both = Transactions(self._dataset, self._metadata, known, before.forgotten)
        for name, entry in self._ids.items():
            both.note((name, entry[-2]), entry[-1], entry[0])
        return both

    def entries(self) -> dict[str, Entry]:
        """All ids, to be stored."""
        return dict(self._ids)

    @property
    def forgotten(self) -> list[int]:
        """The hashes of the ids that were forgotten, to be stored."""
        return self._forgotten.tolist()

    def _check_new(self, name: str, number: int) -> None:
        hash_ = _hash(name)
        place = bisect_left(self._forgotten, hash_)
        if place < len(self._forgotten) and self._forgotten[place] == hash_:
            raise self._conflict(
                f"transaction id {name!r} was not used for {DAYS} days, and was forgotten: number {number} may have "
                "been committed. Look whether its rows are there, and go on under a new id (Spark: a new checkpoint)"
            )
        if len(self._ids) >= IDS and self._forgettable(int(time.time())) is None:
            why = (
                f"as many were forgotten as can be told from new ones ({HASHES})"
                if len(self._forgotten) >= HASHES
                else f"{IDS} others were used in the last {DAYS} days"
            )
            raise self._conflict(
                f"transaction id {name!r} is new, and {why}: use an id for many writes, with numbers that rise"
            )
        self._metadata.reserve(
            ID_BYTES, f"another transaction id of {self._dataset!r}", dataset=self._dataset
        )

    def _forgettable(self, now: int) -> str | None:
        if len(self._forgotten) >= HASHES:
            return None
        name = next((each for each in self._ids if each not in self._lasting), None)
        return name if name is not None and now - self._ids[name][0] >= DAYS * 86_400 else None

    def _conflict(self, what: str) -> Conflict:
        return Conflict.about(self._dataset, f": {what}")


def _hash(name: str) -> int:
    # Not Python's own, which differs from process to process. Two of 100,000 ids have one with a probability of 1e-9.
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
