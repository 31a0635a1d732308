"""Metrics for Prometheus, read from the server's own state at each scrape.

Labels are bounded: accounts, kinds, waits, codes of errors, the server's own tasks. Datasets' names are not;
``/v1/statistics`` has them. The metrics of a kind are totals over its datasets (``DatasetKind.metrics``). Those of the
process have the names that Prometheus's own clients give them.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import pyarrow as pa
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from flight_server.concurrency import WAITED_FOR, Slice
from flight_server.memory import MemoryPool
from flight_server.protocol import Kind, error_classes

from .reports import Observed

PREFIX = "flight_shuffle_"

_COUNTERS = {
    "puts": "puts begun, on both lanes",
    "gets": "reads of a partition begun, on both lanes",
    "frames_in": "record batches accepted from producers",
    "rows_in": "rows accepted from producers",
    "bytes_in": "bytes accepted from producers",
    "frames_out": "record batches given to readers",
    "bytes_out": "bytes given to readers",
    "encodes": "record batches encoded for this server; equals frames_in for any number of readers",
    "joins": "messages made of several small record batches, for readers on the gRPC lane",
    "frames_read_back": "record batches read back from disk",
    "bytes_read_back": "bytes read back from disk",
    "pulls": "pulls of a source's partition begun",
    "pulls_failed": "pulls of a source's partition that failed",
    "datasets_expired": "datasets whose lease or retention has ended",
    "offloads": "writes of an object of an exchange begun",
    "offloads_failed": "writes of an object of an exchange that failed",
    "offloaded_bytes": "bytes of the objects of exchanges that were written",
    "readers_ended_as_too_slow": "stalled readers that were ended because others waited for their room",
}
# With their label, and the values that it always has.
_LABELLED = {
    "errors": (
        "calls that were refused or failed, on both lanes",
        "code",
        sorted({*error_classes()} - {"error"}),
    ),
    "reloads_failed": ("changed files that could not be read again; the earlier content stays", "file", []),
}
OVERDUE_SECONDS = 5.0
"""A wait ends soon after its deadline; one that does not is stuck."""


class Metrics:
    """The metrics of one server: two servers in one process do not mix."""

    content_type: Final = CONTENT_TYPE_LATEST

    def __init__(self, server: Observed) -> None:
        self._server = server

    async def render(self) -> bytes:
        """The exposition text, Cancelling is safe."""
        added_up = [_gauge(*each) for kind in self._server.kinds.values() for each in await kind.metrics()]
        added_up += await self._datasets()
        made = CollectorRegistry()
        made.register(_ServerCollector(self._server, added_up))
        ProcessCollector(registry=made)
        return generate_latest(made)

    async def _datasets(self) -> list[Metric]:
        catalogue, present = self._server.catalogue, Slice()
        kinds: Counter[str] = Counter({kind.value: 0 for kind in Kind})
        sealed = failed = 0
        for dataset in catalogue:
            kinds[dataset.kind.value] += 1
            sealed += dataset.sealed
            failed += dataset.failure is not None
            await present.end()
        return [
            _family(GaugeMetricFamily, "datasets", "datasets that a name leads to", "kind", kinds.items()),
            _gauge("datasets_sealed", "those of them that are sealed", sealed),
            _gauge("datasets_failed", "those of them with a partition that has failed", failed),
            _gauge("datasets_staged", "writes that no name leads to yet", len(catalogue.staged)),
            _gauge("host_copies", "copies of broadcasts that hosts keep", len(catalogue.copies)),
        ]


class _ServerCollector(Collector):
    def __init__(self, server: Observed, added_up: list[Metric]) -> None:
        self._server = server
        self._added_up = added_up

    def collect(self) -> Iterator[Metric]:
        server = self._server
        yield InfoMetricFamily(PREFIX + "build", "the versions that run", value=versions())
        yield _gauge(
            "start_time_seconds", "when this server started, since the epoch", server.started_seconds
        )
        yield _gauge("draining", "1 while the server takes nothing new", float(server.catalogue.draining))
        yield _gauge("calls_running", "calls that are being served", len(server.running))
        lag = server.loop_lag
        yield HistogramMetricFamily(
            PREFIX + "loop_lag_seconds",
            "how late the event loop has run a timer, looked at four times a second",
            buckets=lag.buckets(),
            sum_value=lag.total_seconds,
        )
        yield from self._pools()
        yield from self._counters()
        yield from self._reloaded()
        yield from self._disk()
        yield from self._added_up
        readers = server.delivery.readers
        yield _gauge("subscriptions", "readers that are attached", len(readers))
        lag_bytes = max((each.lag_bytes for each in readers), default=0)
        yield _gauge("subscription_lag_max_bytes", "what the slowest reader has not taken yet", lag_bytes)
        yield from self._waits()

    def _counters(self) -> Iterator[Metric]:
        server = self._server
        for name, text in _COUNTERS.items():
            yield _counter(name, text, getattr(server.counters, name))
        for name, (text, label, known) in _LABELLED.items():
            numbers = {**dict.fromkeys(known, 0), **getattr(server.counters, name)}
            yield _family(CounterMetricFamily, name, text, label, numbers.items())
        failures, text = server.background.failures, "failures of the server's own tasks"
        yield _family(CounterMetricFamily, "task_failures", text, "task", failures.items())

    def _reloaded(self) -> Iterator[Metric]:
        tokens, certificates = self._server.authenticator, self._server.certificates
        troubles = {"tokens": tokens.trouble, "tls": certificates and certificates.trouble}
        numbers = ((file, float(trouble is not None)) for file, trouble in troubles.items())
        text = "1 while a file is not as it is on disk, because the server refuses that"
        yield _family(GaugeMetricFamily, "reload_trouble", text, "file", numbers)
        text = "when the first of the server's certificates expires, since the epoch; none without TLS"
        expires = None if certificates is None else certificates.expires_seconds()
        yield GaugeMetricFamily(PREFIX + "certificate_expiry_seconds", text, value=expires)

    def _disk(self) -> Iterator[Metric]:
        spiller, quarantine = self._server.spiller, self._server.catalogue.disk.quarantine
        yield _counter("spilled_frames", "record batches moved to disk", spiller.spilled_frames)
        yield _counter("spilled_bytes", "bytes moved to disk", spiller.spilled_bytes)
        trouble = float(spiller.trouble is not None)
        yield _gauge("disk_trouble", "1 while the disk refuses to take frames", trouble)
        yield _gauge(
            "quarantined_datasets", "datasets that were found damaged on disk", len(quarantine.entries)
        )
        foreign = len(self._server.catalogue.disk.foreign)
        yield _gauge("foreign_files", "files in the data directory that no server has written", foreign)
        damaged = len(self._server.catalogue.disk.damaged_records)
        yield _gauge("damaged_records", "folders of damaged records, which a start has replaced", damaged)

    def _pools(self) -> Iterator[Metric]:
        memory, disk = self._server.catalogue.budget.memory, self._server.catalogue.budget.disk
        pools = [("all", memory), *_accounts(memory)]
        yield _by_account("memory_used_bytes", "bytes held in RAM", pools, lambda pool: pool.used_bytes)
        yield _by_account("memory_limit_bytes", "their limit", pools, lambda pool: pool.limit_bytes or 0)
        yield _by_account("memory_peak_bytes", "most at any time", pools, lambda pool: pool.peak_bytes)
        waiting = "streams that wait for room"
        yield _by_account("memory_waiting", waiting, pools, lambda pool: pool.waiting)
        yield _gauge("disk_used_bytes", "bytes held in segments", disk.used_bytes)
        if disk.limit_bytes is not None:
            yield _gauge("disk_limit_bytes", "their limit", disk.limit_bytes)

    def _waits(self) -> Iterator[Metric]:
        numbers: Counter[str] = Counter(dict.fromkeys(WAITED_FOR, 0))
        longest = dict.fromkeys(WAITED_FOR, 0.0)
        for wait in self._server.waits.listed():
            what = str(wait["waiting_for"])
            numbers[what] += 1
            longest[what] = max(longest[what], float(wait["seconds"]))
        label = "waiting_for"
        yield _family(GaugeMetricFamily, "waits", "streams that wait", label, numbers.items())
        yield _family(GaugeMetricFamily, "wait_max_seconds", "the longest wait", label, longest.items())
        text = f"waits that have lasted {OVERDUE_SECONDS:g} s longer than their deadline"
        yield _gauge("waits_overdue", text, self._server.waits.overdue(OVERDUE_SECONDS))


def versions() -> dict[str, str]:
    """Those of what runs: this package, pyarrow and Python."""
    try:
        own = version("flight-shuffle")
    except PackageNotFoundError:  # it runs from its sources
        own = "unknown"
    return {"version": own, "pyarrow": pa.__version__, "python": platform.python_version()}


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _accounts(pool: MemoryPool) -> Iterator[tuple[str, MemoryPool]]:
    for account in pool.accounts():
        yield account.name, account
        yield from _accounts(account)


def _by_account(
    name: str, text: str, pools: list[tuple[str, MemoryPool]], value: Callable[[MemoryPool], float]
) -> Metric:
    numbers = [(account, value(pool)) for account, pool in pools]
    return _family(GaugeMetricFamily, name, text, "account", numbers)


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    label: str,
    numbers: Iterable[tuple[str, float]],
) -> Metric:
    family = kind(PREFIX + name, text, labels=[label])
    for value, number in numbers:
        family.add_metric([value], number)
    return family
