"""Seals: makes a shuffle's accepted attempts readable, under its name or, staged, under the name that it takes.

Guarantee: the whole of a seal is one step for readers of the name. A seal that is repeated with the same attempts is
harmless; ``StagedWrites.appended`` has the answers of appends, whose staged dataset is gone. The same rows in another
staged dataset are written again, unless a transaction says that they are the same: then that one is dropped.
No lease ends during a seal. A durable dataset that the disk refuses is as it was before the seal, and so is one whose
seal is cancelled before it is on disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from flight_server.concurrency import at_once, in_steps, to_its_end
from flight_server.datasets import (
    Catalogue,
    Dataset,
    Partition,
    Sealed,
    check_mode,
    check_servers,
    set_servers,
)
from flight_server.protocol import Conflict, FlightShuffleError, SealRequest, Transaction, WriteMode
from flight_server.tiering import Durability


class _Repeated(Exception):
    """The dataset of the name has the transaction."""


async def seal(durability: Durability, dataset: Dataset, request: SealRequest) -> Sealed:
    """Seal a shuffle with its accepted attempts, a durable one once it is on disk.

    Raises:
        Conflict: see :meth:`Dataset.accepting`, or the transaction follows one that is not there; nothing was changed.
        AlreadyExists, Conflict, InvalidRequest: a staged one can not be sealed as its mode says (``check_mode``).
        ServerLost, Conflict: see :func:`check_servers`; nothing was changed.
        OutOfBudget: ``metadata`` has no room for the list of servers; nothing was changed.
        OutOfBudget, Unavailable: the disk does not take it; nothing was changed.
    """
    with dataset.held_back():
        check_servers(dataset, request)
        before = dataset.servers
        set_servers(dataset, request.servers or before, durability.catalogue.budget.metadata)
        try:
            return await _sealed(durability, dataset, request)
        except FlightShuffleError:
            dataset.servers = before
            raise


async def _sealed(durability: Durability, dataset: Dataset, request: SealRequest) -> Sealed:
    catalogue = durability.catalogue
    mode = catalogue.staged.mode_of(dataset)
    target = catalogue.find(dataset.name) if mode is WriteMode.DELETE else catalogue.get(dataset.name)
    if mode in (WriteMode.APPEND, WriteMode.DELETE) and target is not None:
        if (append := target.attached.append) is not None:
            if dataset.attempts.accepted is not None:
                # An earlier seal was for a dataset of this name that is gone: the attempts' frames are in partitions.
                raise Conflict.about(target.name, "was replaced meanwhile; write again")
            appended: Sealed = await append(dataset, target, request, mode)
            return appended
        check_mode(mode, target, dataset.schema, durable=dataset.durable)
        return await _append(catalogue, dataset, target, request)
    check: Callable[[], None]
    finish: Callable[[], None]
    if mode is None:
        check, finish = lambda: None, dataset.close
        request = replace(request, partitions=None, partition_bytes=None)
    else:
        if mode is WriteMode.APPEND:
            _is_new(dataset, request.transaction)
        dataset.transactions.begin(request.transaction)
        check = partial(_check_name, catalogue, dataset, mode, request.transaction)
        finish = partial(_take_name, catalogue, dataset)

    def checked_finish() -> None:
        check()
        finish()

    try:
        check()
        if dataset.durable:
            await _on_disk(durability, dataset, request, finish, check)
        else:
            await to_its_end(_accept(dataset, request, checked_finish))
    except _Repeated:
        nothing = at_once(Sealed.of(catalogue.get(dataset.name) or dataset, ()))
        catalogue.unstage(dataset, nothing)
        return nothing
    return await in_steps(Sealed.of(dataset, dataset.partitions()))


async def _on_disk(
    durability: Durability,
    dataset: Dataset,
    request: SealRequest,
    finish: Callable[[], None],
    check: Callable[[], None],
) -> None:
    """Accept the attempts and write them to disk, or leave both as they were."""
    async with _turn(durability, dataset):
        try:
            await to_its_end(_accept(dataset, request))
            if not dataset.sealed:
                await durability.persist(dataset, range(dataset.partition_count), finish, check)
        except BaseException:
            try:
                await to_its_end(in_steps(dataset.giving_back()))
            finally:
                if dataset.on_disk is not None and not dataset.sealed:
                    dataset.on_disk.begin_again()
                # The caller gets the error in the same step, so it is the first that can change what is chosen next.
                dataset.reopen()
            raise


@asynccontextmanager
async def _turn(durability: Durability, dataset: Dataset) -> AsyncIterator[None]:
    on_disk = dataset.on_disk
    assert on_disk is not None
    with durability.waits.enter("disk", dataset=dataset.name):
        while on_disk.sealing:
            await dataset.changes.next()
    on_disk.sealing = True
    try:
        yield
    finally:
        on_disk.sealing = False
        dataset.changes.tell()


async def _accept(dataset: Dataset, request: SealRequest, finish: Callable[[], None] | None = None) -> None:
    """Accept the attempts; with ``finish`` seal their partitions, too, and call it in the last step. All steps are done
    (``to_its_end``), also when the call is cancelled: else a half of the frames could stay behind.
    """
    await in_steps(dataset.accepting(request.attempts, request.partition_bytes, request.partitions))
    while dataset.moving:  # by another call of the seal
        await dataset.changes.next()
    if finish is not None:
        dataset.check_step("accept")
        await in_steps(dataset.closing())
        finish()


async def _append(catalogue: Catalogue, staged: Dataset, target: Dataset, request: SealRequest) -> Sealed:
    def check() -> Dataset:
        if catalogue.get(target.name) is not target:
            raise Conflict.about(target.name, "was replaced meanwhile; seal again")
        check_mode(WriteMode.APPEND, target, staged.schema, durable=staged.durable)
        return target

    new: list[Partition] = []

    def finish() -> None:
        if catalogue.staged.mode_of(staged) is None:
            staged.check_step("accept")  # it was dropped meanwhile, or another call of the seal did it
        check()
        if _is_new(target, request.transaction):
            new.extend(target.extend(staged))
            if request.transaction is not None:
                target.transactions.note((request.transaction.id, request.transaction.version), 1)
        # The answer to a repeat of this call; it names no partitions.
        catalogue.unstage(staged, at_once(Sealed.of(target, new)))

    check()
    if _is_new(target, request.transaction):
        if staged.attempts.accepted is None:
            staged.retention = target.retention
        try:
            await to_its_end(_accept(staged, replace(request, partitions=None), finish))
        except Conflict:
            appended = catalogue.staged.appended(staged.name, staged.generation)
            if appended is None:
                raise
            return appended  # by another call of the seal
    else:
        finish()
    target.touch()
    return await in_steps(Sealed.of(target, new))


def _is_new(target: Dataset, transaction: Transaction | None) -> bool:
    """Whether the dataset does not have this append. Raises as :meth:`Transactions.find` and ``check_after``."""
    if transaction is None:
        return True
    if target.transactions.find(transaction) is not None:
        return False
    target.transactions.check_after(transaction)
    return True


def _check_name(
    catalogue: Catalogue, dataset: Dataset, mode: WriteMode, transaction: Transaction | None
) -> None:
    current = catalogue.get(dataset.name)
    if current is None or current is dataset:
        return
    if transaction is not None and current.transactions.find(transaction) is not None:
        raise _Repeated
    check_mode(mode, current, dataset.schema, durable=dataset.durable)
    if mode is WriteMode.APPEND:
        raise Conflict.about(dataset.name, "was created meanwhile; write again")


def _take_name(catalogue: Catalogue, dataset: Dataset) -> None:
    dataset.close()
    # Else another call of the seal did it, and the name may lead elsewhere by now.
    if catalogue.staged.mode_of(dataset) is not None:
        catalogue.take_name(dataset)
