"""Transactions: which writes of each id a dataset has, so that one which is repeated changes nothing.

Guarantee: a dataset has a transaction if a write with it, or with a later version of its id, made a part of the
dataset or of an earlier generation that it replaced. They live as long as the name leads to a dataset: a drop, or the
end of a lease, forgets them with the data. Those of a durable dataset are in its manifest, and so are on disk exactly
when the dataset is. A changelog keeps its own (``changelogs.changelog``).

``MAX_TRANSACTIONS`` ids are remembered; the one that was used least recently is forgotten.
"""

from __future__ import annotations

from flight_server.protocol import Conflict, Transaction

MAX_TRANSACTIONS = 1000


class Transactions:
    """Those of one dataset. Synchronous; ``known`` are from its manifest."""

    __slots__ = ("_earlier", "_own")

    def __init__(self, known: dict[str, int] | None = None) -> None:
        self._own: dict[str, int] = dict(known or {})  # the last version of each id
        self._earlier: dict[str, int] = {}  # of generations that this one replaced

    def has(self, transaction: Transaction) -> bool:
        """Whether a write with this transaction is a repetition."""
        known = (each.get(transaction.id, -1) for each in (self._own, self._earlier))
        return max(known) >= transaction.version

    def check_after(self, transaction: Transaction | None, dataset: str) -> None:
        """Raise Conflict if this generation does not have the version that the transaction follows."""
        if transaction is None or transaction.after is None:
            return
        last = self._own.get(transaction.id)
        if last is None or last < transaction.after:
            had = "none of them" if last is None else f"them up to version {last}"
            raise Conflict(
                f"dataset {dataset!r} has lost what {transaction.id} appended before version "
                f"{transaction.version}: it has {had}; it was dropped, overwritten, or lost with its server",
                dataset=dataset,
            )

    def note(self, transaction: Transaction | None) -> None:
        """A write with this transaction is in the dataset."""
        if transaction is not None:
            self._own.pop(transaction.id, None)
            self._own[transaction.id] = transaction.version
            self._own = _last(self._own)

    def begin(self, transaction: Transaction | None) -> None:
        """A write with this transaction makes the dataset."""
        self._own = {}
        self.note(transaction)

    def replacing(self, before: Transactions | None) -> dict[str, int]:
        """The last version of each id when the dataset replaces one that has ``before``."""
        known = {} if before is None else {**before._earlier, **before._own}
        for name, version in self._own.items():
            last = known.pop(name, -1)
            known[name] = max(last, version)
        return _last(known)

    def replace(self, before: Transactions) -> None:
        """The dataset replaces one that has ``before``."""
        self._earlier = self.replacing(before)


def _last(versions: dict[str, int]) -> dict[str, int]:
    return dict(list(versions.items())[-MAX_TRANSACTIONS:])
