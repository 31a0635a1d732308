"""Reports: statistics, datasets and waits as JSON, on both lanes, made when there is room for them
(``transfer.answer_room``).

Guarantee: an answer has a bounded size, and the loop serves the streams while it is made, so its numbers are not of one
moment. It holds one *page* of up to ``MAX_PAGE`` entries, of ``count``; the next begins at ``first`` + ``limit``:

    {"first": 0, "limit": 1000, "count": 100000, …}

    statistics                    the server's numbers, a summary of each dataset whose name ``contains`` a text, in a
                                  ``DatasetOrder``, and the ``servers``: this one with its ``host`` (its machine),
                                  then the other workers of its supervisor (``fellows``)
    statistics of one dataset     the same of one and of this server, with its partitions by index, its attempts as they
                                  came, what each server has of one that is spread (``portions``), and in ``starts`` the
                                  start of the server whose portion this is
    datasets                      a shorter summary of each dataset, for a prefix
    why                           the open waits, longest first, and what is in ``quarantine``
    history                       traffic, pools and waits over the last minutes (``history``), not in pages
    rows                          the columns and the first rows of one dataset (``first_rows``), not in pages

``statistics`` and ``why`` also list the bytes that are held by generations that were replaced or outlived while they
were read (``ended``), and by writes that no name leads to yet (``staged``), each with the ``generation`` by which it is
dropped.

Each answer has what its caller sees, with counts of that only. The server's own numbers are for principals that see all
of it; others get their name and quotas in the place of these.

A partition that no producer or reader has asked for yet is in no page. Of a dataset that is spread over several servers
all numbers are those of this server, but for ``server_count``, ``whole``, the servers, rows and bytes of all portions,
and ``portions``.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Protocol, Self

from flight_server.access import Authenticator, acting
from flight_server.concurrency import Background, LoopLag, Running, Subscription, Waits, in_slices
from flight_server.datasets import (
    Caller,
    Catalogue,
    Counters,
    Dataset,
    PartitionState,
    Sees,
    own_start,
    server_count,
    whole,
)
from flight_server.frames import Frame
from flight_server.host import machine
from flight_server.kinds import Kinds
from flight_server.memory import MemoryPool
from flight_server.protocol import (
    Body,
    Fields,
    InJson,
    check_dataset_name,
    integer,
    one_of,
    parse_json,
    with_numbers,
)
from flight_server.storage import Segment
from flight_server.tiering import Spiller
from flight_server.transfer import Delivery, MadeAnswer

from .fellows import Fellows
from .history import History

MAX_PAGE = 1000
MAX_NAMED_FILES = 100
MAX_FAILURE_CHARACTERS = 1000
SLOWEST_READERS = 100
_MAX_FIRST = 1 << 31
_AT_ONCE = 50
"""Datasets between two passes of the event loop: one with versions, or of many servers, takes up to 0.3 ms."""
_ENTRY_BYTES = 4096
"""Of a dataset, a partition or an attempt in ``statistics``: its JSON, and as much of its objects."""
_ROW_BYTES = 512
"""Of a wait, or a dataset in the shorter list."""


@dataclass(frozen=True)
class Page(Body):
    """The part of a long answer that is asked for; ``dataset`` None for all datasets."""

    dataset: Annotated[str | None, InJson(Fields.any)] = None
    first: Annotated[int, integer(0, _MAX_FIRST)] = 0
    limit: Annotated[int, integer(1, MAX_PAGE)] = MAX_PAGE

    @classmethod
    def parse(cls, data: bytes, what: str) -> Self:
        """The page that an action's body asks for. Raises InvalidRequest."""
        return cls.of(parse_json(data, what), what)

    @classmethod
    def of_query(cls, query: dict[str, str], what: str) -> Self:
        """The page that a URL's query asks for. Raises InvalidRequest."""
        return cls.of(with_numbers(query, ("first", "limit")), what)

    def check(self, what: str) -> None:
        super().check(what)
        if self.dataset is not None:
            check_dataset_name(self.dataset)

    def head(self, count: int) -> dict[str, int]:
        return {"first": self.first, "limit": self.limit, "count": count}

    @property
    def part(self) -> slice:
        return slice(self.first, self.first + self.limit)


class DatasetOrder(StrEnum):
    """``ATTENTION``: failed ones, those that a stream waits for, then by the bytes in RAM and on disk."""

    NAME = "name"
    ATTENTION = "attention"


@dataclass(frozen=True)
class ListedPage(Page):
    """The part of ``statistics`` that is asked for."""

    contains: Annotated[str, InJson(Fields.text)] = ""
    order: Annotated[DatasetOrder, one_of(DatasetOrder, None)] = DatasetOrder.NAME


class ServedCertificates(Protocol):
    """The server's own, on both ports."""

    trouble: str | None

    def expires_seconds(self) -> float | None: ...


@dataclass
class Observed:
    """The parts of one server that reports and metrics read."""

    catalogue: Catalogue
    waits: Waits
    spiller: Spiller
    background: Background
    counters: Counters
    delivery: Delivery
    kinds: Kinds
    fellows: Fellows
    running: Running
    loop_lag: LoopLag
    history: History
    authenticator: Authenticator
    certificates: ServedCertificates | None
    started_seconds: float = field(default_factory=time.time)
    """Since the epoch."""


async def _ended(server: Observed, caller: Caller) -> dict[str, Any]:
    """The bytes that generations without a name still hold, for the streams that read or write them, and up to
    ``MAX_NAMED_FILES`` of these generations, oldest first.
    """
    sums = {"count": 0, "resident_bytes": 0, "disk_bytes": 0}
    named: list[dict[str, Any]] = []
    reading = Counter(map(id, server.delivery.datasets()))
    async for dataset in in_slices(caller.seen(server.catalogue.alive()), _AT_ONCE):
        if not dataset.ended or dataset.dropped:
            continue
        totals = await _totals(dataset)
        sums["count"] += 1
        sums["resident_bytes"] += totals.resident_bytes
        sums["disk_bytes"] += totals.disk_bytes
        if len(named) < MAX_NAMED_FILES:
            named.append(
                {
                    "dataset": dataset.name,
                    "generation": dataset.generation,
                    "readers": reading[id(dataset)],
                    "resident_bytes": totals.resident_bytes,
                    "disk_bytes": totals.disk_bytes,
                }
            )
    return {**sums, "generations": named}


async def _staged(server: Observed, name: str | None, caller: Caller) -> dict[str, Any]:
    """The number of staged writes, for one name or for all, and up to ``MAX_NAMED_FILES`` of them, oldest first."""
    staged = server.catalogue.staged
    datasets = [each for each in caller.seen(staged.all()) if name in (None, each.name)]
    writes = []
    for dataset in datasets[:MAX_NAMED_FILES]:
        put, attempted = await _totals(dataset), await _attempted(dataset)
        left = dataset.lease_left_seconds
        mode = staged.mode_of(dataset)
        if mode is None or left is None:
            continue  # it was sealed or dropped meanwhile
        writes.append(
            {
                "dataset": dataset.name,
                "generation": dataset.generation,
                "mode": mode.value,
                "rows": put.rows + attempted.rows,
                "bytes": put.size_bytes + attempted.size_bytes,
                "attempt_states": dict(attempted.states),
                "lease_left_seconds": round(left, 3),
            }
        )
    return {"count": len(datasets), "writes": writes}


async def statistics(server: Observed, page: ListedPage, caller: Caller) -> dict[str, Any]:
    """The answer to ``statistics``. Raises NotFound for an unknown dataset."""
    readers = Counter(reader.dataset for reader in server.delivery.readers.values())
    staged = await _staged(server, page.dataset, caller)
    own = _of_server(server, caller) if caller.sees_all else _of_principal(server, caller)
    answer = {**own, "ended": await _ended(server, caller), "staged": staged}
    if (usage := acting.get()) is not None:
        answer["quotas"] = usage.statistics()
    if page.dataset is not None:
        dataset = caller.find(page.dataset)
        summary = await _summary(dataset, readers[dataset.name], caller.sees)
        answer |= {"servers": answer["servers"][:1]} if caller.sees_all else {}
        return {
            **answer,
            **page.head(dataset.partition_count),
            "datasets": {dataset.name: {**summary, **await _details(server, dataset, page)}},
        }
    listed = [each for each in caller.listed() if page.contains in each.name]
    answer |= page.head(len(listed))
    if page.order is DatasetOrder.ATTENTION:
        listed = await _by_attention(server, listed)
    answer["slowest_readers"] = _slowest(server, caller)
    if caller.sees_all:
        memory_bytes = await server.background.in_thread(machine.memory_bytes)
        answer["servers"][0]["host"] = {"memory_bytes": memory_bytes}
    answer["datasets"] = {
        dataset.name: await _summary(dataset, readers[dataset.name], caller.sees)
        async for dataset in in_slices(listed[page.part], _AT_ONCE)
    }
    return answer


async def _by_attention(server: Observed, listed: list[Dataset]) -> list[Dataset]:
    awaited = {wait["dataset"] for wait in server.waits.listed()}
    ranked: list[tuple[tuple[bool, bool, int, int], Dataset]] = []
    async for dataset in in_slices(listed, _AT_ONCE):
        totals = await _totals(dataset)
        stored_bytes = totals.resident_bytes + totals.disk_bytes
        rank = (not _failed(dataset, totals), dataset.name not in awaited, -stored_bytes, len(ranked))
        ranked.append((rank, dataset))
    return [dataset for _, dataset in sorted(ranked, key=lambda each: each[0])]


def _failed(dataset: Dataset, totals: _Totals) -> bool:
    return not dataset.attached.pulled and totals.states["failed"] > 0


def failure_of(dataset: Dataset) -> str | None:
    """Why a partition failed, and what to do, as its readers are told; None if none has."""
    failures = (each.failure for each in dataset.partitions() if each.state is PartitionState.FAILED)
    failure = next(failures, None)
    return None if failure is None else str(failure)[:MAX_FAILURE_CHARACTERS]


async def datasets(prefix: str, page: Page, caller: Caller) -> dict[str, Any]:
    """A page of the datasets whose names start with ``prefix``."""
    listed = caller.listed(prefix)
    rows = []
    async for dataset in in_slices(listed[page.part], _AT_ONCE):
        totals = await _totals(dataset)
        rows.append(
            {
                "dataset": dataset.name,
                "kind": dataset.kind.value,
                "generation": dataset.generation,
                "partitions": dataset.partition_count,
                "sealed": dataset.sealed,
                "failed": _failed(dataset, totals),
                "rows": totals.rows,
                "bytes": totals.size_bytes,
                "whole": whole(dataset),
            }
        )
    return {**page.head(len(listed)), "datasets": rows}


async def why(server: Observed, page: Page, caller: Caller) -> dict[str, Any]:
    """A page of the open waits, the disk's trouble, damaged datasets, ended generations and staged writes."""
    shown = None if caller.sees_all else caller.sees
    waits = server.waits.listed(page.dataset, page.part, shown)
    count = server.waits.count(page.dataset, shown)
    return {
        **page.head(count),
        "waits": waits,
        "disk_trouble": server.spiller.trouble if caller.sees_all else None,
        "quarantine": _quarantined(server, page.dataset, caller),
        "ended": await _ended(server, caller),
        "staged": await _staged(server, page.dataset, caller),
    }


def _quarantined(server: Observed, name: str | None, caller: Caller) -> list[dict[str, Any]]:
    """Up to ``MAX_NAMED_FILES`` entries, of one name or of all."""
    entries = [
        entry
        for entry in server.catalogue.disk.quarantine.entries
        if name in (None, entry.dataset) and caller.sees(entry.dataset)
    ]
    return [entry.to_json() for entry in entries[:MAX_NAMED_FILES]]


@dataclass
class _Totals:
    """Sums over the partitions of a dataset that were asked for, and how many are in each state."""

    rows: int
    frames: int
    size_bytes: int
    resident_bytes: int
    disk_bytes: int
    states: Counter[str]


async def _totals(dataset: Dataset) -> _Totals:
    rows, resident_bytes, disk_bytes = dataset.attached.stored()
    sums = _Totals(rows, 0, resident_bytes + disk_bytes, resident_bytes, disk_bytes, Counter())
    segments: set[Segment] = set()
    if dataset.on_disk is not None:  # partitions that no reader has asked for know none
        segments.update(segment for segment, _ in dataset.on_disk.files)
    async for partition in in_slices(dataset.partitions()):
        segments.update(partition.table.segments())
        totals = partition.totals
        sums.rows += totals.rows
        sums.frames += totals.frames
        sums.size_bytes += totals.bytes
        sums.resident_bytes += partition.resident_bytes
        sums.states[partition.state.value] += 1
    sums.disk_bytes += sum(each.size_bytes for each in segments)
    return sums


async def _attempted(dataset: Dataset) -> _Totals:
    sums = _Totals(0, 0, 0, 0, 0, Counter())
    async for attempt in in_slices(list(dataset.attempts)):
        sums.states[attempt.state.value] += 1
        sums.rows += attempt.rows
        sums.size_bytes += attempt.total_bytes
    return sums


async def _summary(dataset: Dataset, readers: int, sees: Sees) -> dict[str, Any]:
    totals, attempted = await _totals(dataset), await _attempted(dataset)
    left = dataset.lease_left_seconds
    return {
        "kind": dataset.kind.value,
        "generation": dataset.generation,
        "sealed": dataset.sealed,
        "failed": _failed(dataset, totals),
        "failure": failure_of(dataset) if totals.states["failed"] else None,
        "durable": dataset.durable,
        "rows": totals.rows,
        "frames": totals.frames,
        "bytes": totals.size_bytes,
        "resident_bytes": totals.resident_bytes,
        "disk_bytes": totals.disk_bytes,
        "partition_count": dataset.partition_count,
        "server_count": server_count(dataset),
        "whole": whole(dataset),
        "partition_states": dict(totals.states),
        "readers": readers,
        "lease_left_seconds": None if left is None else round(left, 3),
        "attempt_states": dict(attempted.states),
        "attempt_rows": attempted.rows,
        "attempt_bytes": attempted.size_bytes,
        **dataset.attached.statistics(sees),
    }


async def _details(server: Observed, dataset: Dataset, page: Page) -> dict[str, Any]:
    indices = range(page.first, page.first + page.limit)
    made = {each.index: each async for each in in_slices(dataset.partitions()) if each.index in indices}
    partitions = {}
    for index in sorted(made):
        partition = made[index]
        totals, subscriptions = partition.totals, partition.subscriptions()
        partitions[str(index)] = {
            "state": partition.state.value,
            "rows": totals.rows,
            "frames": totals.frames,
            "bytes": totals.bytes,
            "resident_bytes": partition.resident_bytes,
            "frames_left": partition.frames_left,
            "readers": len(subscriptions),
            "subscriptions": [_reader(server, each) for each in subscriptions[: page.limit]],
        }
    return {
        "attempts": [
            {
                "producer": attempt.producer,
                "attempt": attempt.attempt,
                "state": attempt.state.value,
                "rows": attempt.rows,
                "bytes": attempt.total_bytes,
            }
            for attempt in list(dataset.attempts)[page.part]
        ],
        "partitions": partitions,
        "portions": [each.to_json() for each in dataset.servers],
        "starts": [own_start()],
    }


def _reader(server: Observed, subscription: Subscription[Frame]) -> dict[str, Any]:
    reader = server.delivery.readers.get(subscription)
    return {
        "peer": None if reader is None else reader.peer,
        "position": subscription.position,
        "lag_bytes": subscription.lag_bytes,
    }


def _slowest(server: Observed, caller: Caller) -> list[dict[str, Any]]:
    readers = server.delivery.readers
    seen = (each for each, reader in readers.items() if caller.sees(reader.dataset))
    slowest = heapq.nlargest(SLOWEST_READERS, seen, key=lambda each: each.lag_bytes)
    return [
        {
            "dataset": readers[each].dataset,
            "partition": readers[each].partition,
            **_reader(server, each),
        }
        for each in slowest
    ]


def _of_server(server: Observed, caller: Caller) -> dict[str, Any]:
    return {
        "memory": _pool(server.catalogue.budget.memory),
        "disk": {**_pool(server.catalogue.budget.disk), "trouble": server.spiller.trouble},
        "spilled_frames": server.spiller.spilled_frames,
        "spilled_bytes": server.spiller.spilled_bytes,
        "draining": server.catalogue.draining,
        "waits": len(server.waits),
        **asdict(server.counters),
        "task_failures": dict(server.background.failures),
        "quarantine": _quarantined(server, None, caller),
        "damaged_records": server.catalogue.disk.damaged_records[:MAX_NAMED_FILES],
        "foreign_files": server.catalogue.disk.foreign[:MAX_NAMED_FILES],
        "servers": server.fellows.listed(),
        "token_file_trouble": server.authenticator.trouble,
        "certificates_trouble": server.certificates and server.certificates.trouble,
    }


def _of_principal(server: Observed, caller: Caller) -> dict[str, Any]:
    """The part of the server's numbers that a principal gets which does not see all of it."""
    return {
        "principal": caller.principal.name,
        "draining": server.catalogue.draining,
        "waits": server.waits.count(None, caller.sees),
    }


def _pool(pool: MemoryPool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "limit_bytes": pool.limit_bytes,
        "used_bytes": pool.used_bytes,
        "peak_bytes": pool.peak_bytes,
        "waiting": pool.waiting,
    }
    if pool.accounts():
        shown["accounts"] = {account.name: _pool(account) for account in pool.accounts()}
    return shown


def statistics_answer(server: Observed, page: ListedPage, caller: Caller) -> MadeAnswer:
    """The answer to ``statistics``. Raises NotFound for an unknown dataset."""
    if page.dataset is None:
        entries = min(page.limit, len(server.catalogue))
    else:
        dataset = caller.find(page.dataset)
        counts = (dataset.partition_count, len(dataset.attempts), len(dataset.servers))
        entries = sum(min(page.limit, count) for count in counts)
    return MadeAnswer(entries * _ENTRY_BYTES, lambda: statistics(server, page, caller))


def why_answer(server: Observed, page: Page, caller: Caller) -> MadeAnswer:
    """The answer to ``why``."""
    size_bytes = min(page.limit, len(server.waits)) * _ROW_BYTES
    return MadeAnswer(size_bytes, lambda: why(server, page, caller))


def datasets_answer(server: Observed, prefix: str, page: Page, caller: Caller) -> MadeAnswer:
    """The answer of ``/v1/datasets``."""
    size_bytes = min(page.limit, len(server.catalogue)) * _ROW_BYTES
    return MadeAnswer(size_bytes, lambda: datasets(prefix, page, caller))
