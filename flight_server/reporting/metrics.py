"""Metrics for Prometheus, read from the server's own state at each scrape.

Labels are bounded: accounts, kinds, waits, the server's own tasks. Datasets' names are not; ``/v1/statistics`` has
them. The metrics of a kind are totals over its datasets (``DatasetKind.metrics``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flight_server.memory import MemoryPool
from flight_server.protocol import Kind

from .reports import Observed

CONTENT_TYPE = CONTENT_TYPE_LATEST
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
    "frames_read_back": "record batches read back from disk",
    "bytes_read_back": "bytes read back from disk",
    "pulls": "pulls of a source's partition begun",
    "pulls_failed": "pulls of a source's partition that failed",
    "readers_ended_as_too_slow": "stalled readers that were ended because others waited for their room",
}


class Metrics:
    """The metrics of one server: two servers in one process do not mix."""

    def __init__(self, server: Observed) -> None:
        self._server = server
        self._started_seconds = time.time()

    async def render(self) -> bytes:
        """The exposition text, of the type CONTENT_TYPE. Cancelling is safe."""
        of_kinds = [_gauge(*each) for kind in self._server.kinds.values() for each in await kind.metrics()]
        collector = _ServerCollector(self._server, self._started_seconds, of_kinds)
        made = CollectorRegistry()
        made.register(collector)
        return generate_latest(made)


class _ServerCollector(Collector):
    def __init__(self, server: Observed, started_seconds: float, of_kinds: list[Metric]) -> None:
        self._server = server
        self._started_seconds = started_seconds
        self._of_kinds = of_kinds

    def collect(self) -> Iterator[Metric]:
        server = self._server
        yield _gauge("start_time_seconds", "when this server started, since the epoch", self._started_seconds)
        yield _gauge("draining", "1 while the server takes nothing new", float(server.catalogue.draining))
        yield from self._pools()
        for name, text in _COUNTERS.items():
            yield _counter(name, text, getattr(server.counters, name))
        yield _counter("spilled_frames", "record batches moved to disk", server.spiller.spilled_frames)
        yield _counter("spilled_bytes", "bytes moved to disk", server.spiller.spilled_bytes)
        trouble = float(server.spiller.trouble is not None)
        yield _gauge("disk_trouble", "1 while the disk refuses to take frames", trouble)
        failures = CounterMetricFamily(
            PREFIX + "task_failures", "failures of the server's own tasks", labels=["task"]
        )
        for task, number in server.background.failures.items():
            failures.add_metric([task], number)
        yield failures
        yield from self._datasets()
        yield from self._of_kinds
        yield from self._waits()

    def _pools(self) -> Iterator[Metric]:
        memory, disk = self._server.catalogue.budget.memory, self._server.catalogue.budget.disk
        pools = [("all", memory), *((account.name, account) for account in memory.accounts())]
        yield _by_account("memory_used_bytes", "bytes held in RAM", pools, lambda pool: pool.used_bytes)
        yield _by_account("memory_limit_bytes", "their limit", pools, lambda pool: pool.limit_bytes or 0)
        yield _by_account("memory_peak_bytes", "most at any time", pools, lambda pool: pool.peak_bytes)
        waiting = "streams that wait for room"
        yield _by_account("memory_waiting", waiting, pools, lambda pool: pool.statistics().waiting)
        yield _gauge("disk_used_bytes", "bytes held in segments", disk.used_bytes)
        if disk.limit_bytes is not None:
            yield _gauge("disk_limit_bytes", "their limit", disk.limit_bytes)

    def _datasets(self) -> Iterator[Metric]:
        kinds: Counter[str] = Counter({kind.value: 0 for kind in Kind})
        for dataset in self._server.catalogue:
            kinds[dataset.kind.value] += 1
        lag_bytes = max((each.lag_bytes for each in self._server.delivery.readers), default=0)
        family = GaugeMetricFamily(PREFIX + "datasets", "datasets that a name leads to", labels=["kind"])
        for kind, number in kinds.items():
            family.add_metric([kind], number)
        yield family
        yield _gauge("subscriptions", "readers that are attached", len(self._server.delivery.readers))
        yield _gauge("subscription_lag_max_bytes", "what the slowest reader has not taken yet", lag_bytes)

    def _waits(self) -> Iterator[Metric]:
        numbers: Counter[str] = Counter()
        longest: dict[str, float] = {}
        for wait in self._server.waits.listed():
            what = str(wait["waiting_for"])
            numbers[what] += 1
            longest.setdefault(what, float(wait["seconds"]))
        count = GaugeMetricFamily(PREFIX + "waits", "streams that wait", labels=["waiting_for"])
        seconds = GaugeMetricFamily(PREFIX + "wait_max_seconds", "the longest wait", labels=["waiting_for"])
        for what, number in numbers.items():
            count.add_metric([what], number)
            seconds.add_metric([what], longest[what])
        yield count
        yield seconds


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _by_account(
    name: str, text: str, pools: list[tuple[str, MemoryPool]], value: Callable[[MemoryPool], float]
) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=["account"])
    for account, pool in pools:
        family.add_metric([account], value(pool))
    return family
