"""Seals: what makes a shuffle's accepted attempts readable, under its name or, staged, under the name that it takes.

Guarantee: the whole of a seal is one step for readers of the name. A seal that is repeated with the same attempts is
harmless; ``StagedWrites.appended`` has the answers of appends, whose staged dataset is gone. The same rows in another
staged dataset are appended again, unless a transaction says that they are the same.
"""

from __future__ import annotations

from functools import partial

from flight_server.datasets import Catalogue, Dataset, Partition, Sealed, check_mode
from flight_server.protocol import Conflict, Kind, SealRequest, Transaction, WriteMode
from flight_server.tiering import Durability

from .version_appends import VersionAppends

MAX_TRANSACTIONS = 1000
"""How many ids a dataset remembers; the one that was used least recently is forgotten."""


async def seal(
    durability: Durability, dataset: Dataset, request: SealRequest, appends: VersionAppends | None = None
) -> Sealed:
    """Seal a shuffle with its accepted attempts, a durable one once it is on disk.

    Args:
        appends: for a dataset that may be staged.

    Raises:
        Conflict: see :meth:`Dataset.accept`, or the transaction follows one that is not there; nothing was changed.
        AlreadyExists, Conflict, InvalidRequest: a staged one can not be sealed as its mode says (``check_mode``).
        Unavailable: the disk does not take it; seal again with the same attempts.
    """
    catalogue = durability.catalogue
    mode = catalogue.staged.mode_of(dataset)
    if mode is WriteMode.APPEND and (target := catalogue.get(dataset.name)) is not None:
        if target.kind is Kind.CHANGELOG and appends is not None:
            return await appends.append(dataset, target, request)
        return _append(catalogue, dataset, target, request)
    if mode is None:
        check, finish = _nothing, dataset.close
    else:
        _repeats(dataset, request.transaction, mode)
        check, finish = (
            partial(_check_name, catalogue, dataset, mode),
            partial(_take_name, catalogue, dataset, request.transaction),
        )
    check()
    if mode is not None and request.partitions is not None and dataset.attempts.accepted is None:
        dataset.narrow(request.partitions)
    dataset.accept(request.attempts, None if mode is None else request.partition_bytes)
    if dataset.durable and not dataset.sealed:
        await durability.persist(dataset, range(dataset.partition_count), finish, check)
    else:
        finish()
    dataset.touch()
    return Sealed.of(dataset, dataset.partitions())


def _append(catalogue: Catalogue, staged: Dataset, target: Dataset, request: SealRequest) -> Sealed:
    check_mode(WriteMode.APPEND, target, staged.schema, durable=staged.durable)
    new: list[Partition] = []
    if not _repeats(target, request.transaction, WriteMode.APPEND):
        new = target.extend(staged, request.attempts, request.partition_bytes)
        _note(target, request.transaction)
    target.touch()
    sealed = Sealed.of(target, new)
    catalogue.unstage(staged, sealed)
    return sealed


def _repeats(target: Dataset, transaction: Transaction | None, mode: WriteMode) -> bool:
    """Whether the dataset has this version. Raises Conflict if it does not have the one before."""
    if transaction is None or mode is not WriteMode.APPEND:
        return False
    last = target.transactions.get(transaction.id)
    if transaction.after is not None and (last is None or last < transaction.after):
        had = "none of them" if last is None else f"them up to version {last}"
        raise Conflict(
            f"dataset {target.name!r} has lost what {transaction.id} appended before version "
            f"{transaction.version}: it has {had}; it was dropped, overwritten, or lost with its server",
            dataset=target.name,
        )
    return last is not None and last >= transaction.version


def _note(dataset: Dataset, transaction: Transaction | None) -> None:
    if transaction is not None:
        dataset.transactions.pop(transaction.id, None)
        dataset.transactions[transaction.id] = transaction.version
        if len(dataset.transactions) > MAX_TRANSACTIONS:
            del dataset.transactions[next(iter(dataset.transactions))]


def _check_name(catalogue: Catalogue, dataset: Dataset, mode: WriteMode) -> None:
    current = catalogue.get(dataset.name)
    if current is None or current is dataset:
        return
    check_mode(mode, current, dataset.schema, durable=dataset.durable)
    if mode is WriteMode.APPEND:
        raise Conflict(f"dataset {dataset.name!r} was created meanwhile; write again", dataset=dataset.name)


def _take_name(catalogue: Catalogue, dataset: Dataset, transaction: Transaction | None) -> None:
    dataset.close()
    # Else another call of the seal did it, and the name may lead elsewhere by now.
    if catalogue.staged.mode_of(dataset) is not None:
        catalogue.take_name(dataset)
        _note(dataset, transaction)


def _nothing() -> None:
    pass
