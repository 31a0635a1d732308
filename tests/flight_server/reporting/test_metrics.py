"""The metrics for Prometheus."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import flight

from flight_server.concurrency import WAITED_FOR, LoopLag
from flight_server.protocol import error_classes
from tests.support import changelogs
from tests.support.bulk import RawGet, get
from tests.support.durable import action, put, table
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess


def metrics(server: ServerProcess) -> dict[str, float]:
    """Every sample, its labels behind its name."""
    text = get(f"{server.http}/metrics").body.decode()
    return {
        sample.name
        + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_show_what_happened(flight_server_process: Callable[..., ServerProcess]) -> None:
    server = flight_server_process(memory_limit="64MiB")
    with flight.connect(server.location) as client:
        put(client, table(1000), dataset="d")
        before = metrics(server)
        for _ in range(3):
            get(f"{server.http}/v1/datasets/d/partitions/0")
        with RawGet(f"{server.http}/v1/datasets/w/partitions/0") as waiting:
            waiting.answer()
            action(client, "create", dataset="w")
            waiting.ask(f"{server.http}/v1/datasets/w/partitions/0")
            eventually(lambda: metrics(server).get("flight_shuffle_waits{waiting_for=producer}", 0.0), 1.0)
            after = metrics(server)
    assert after["flight_shuffle_gets_total"] - before["flight_shuffle_gets_total"] == 3
    assert after["flight_shuffle_frames_in_total"] == after["flight_shuffle_encodes_total"] == 10
    assert after["flight_shuffle_frames_out_total"] == 30
    assert after["flight_shuffle_rows_in_total"] == 1000
    assert after["flight_shuffle_memory_limit_bytes{account=all}"] == 64 << 20
    used = [after[f"flight_shuffle_memory_used_bytes{{account={name}}}"] for name in ("all", "frames")]
    assert used[0] == used[1] > 0
    assert after["flight_shuffle_datasets{kind=stream}"] == 2
    assert after["flight_shuffle_draining"] == 0
    assert after["flight_shuffle_calls_running"] == 2, "the scrape and the reader that waits"
    assert (after["flight_shuffle_datasets_sealed"], after["flight_shuffle_datasets_failed"]) == (1, 0)
    assert after["process_resident_memory_bytes"] > 10 << 20
    assert {name for name in after if name.startswith("flight_shuffle_build_info")}


def test_metrics_add_up_what_changelogs_have(flight_server_process: Callable[..., ServerProcess]) -> None:
    server = flight_server_process(memory_limit="64MiB")
    schema = pa.schema([("key", pa.int64())])
    with flight.connect(server.location) as client:
        for name, puts in (("a", 1), ("b", 3), ("empty", 0)):
            changelogs.create(client, name, schema, delay_seconds=3600)
            for _ in range(puts):
                changelogs.put(client, name, pa.table({"key": range(10)}))
        for hold in ("one", "two"):
            action(client, "hold", dataset="b", hold=hold)
        follower = client.do_get(changelogs.ticket("b", after=2, follow=True))
        assert next(changelogs.steps(follower)).version == 3
        shown = metrics(server)
        said = [changelogs.numbers(client, name) for name in ("a", "b")]
        follower.cancel()
    found = {
        name.removeprefix("flight_shuffle_changelog_"): value
        for name, value in shown.items()
        if name.startswith("flight_shuffle_changelog_")
    }
    assert shown["flight_shuffle_datasets{kind=changelog}"] == 3
    assert shown["flight_shuffle_changelogs_damaged"] == shown["flight_shuffle_changelogs_not_emitting"] == 0
    assert found.pop("memory_bytes") == sum(each["bytes"] for each in said) > 0
    assert found.pop("disk_bytes") == sum(each["disk_bytes"] for each in said) == 0, (
        "without a data directory"
    )
    assert found == {
        "rows": 40,
        "tombstones": 0,
        "waiting_retractions": 0,
        "transaction_ids": 0,
        "garbage_rows": sum(each["garbage_rows"] for each in said),
        "ranges": 3,
        "runs": 4,
        "debt_rows": 40,
        "holds": 2,
        "followers": 1,
        "versions": 4,
    }


# Words that Prometheus's `promtool check metrics` objects to in a name.
_ABBREVIATED = (
    r"(^|_)(ms|millis|sec|secs|min|mins|hours|days|kb|mb|gb|kib|mib|gib|kilobytes|megabytes|percent)(_|$)"
)
_TYPES = r"(^|_)(gauge|counter|histogram|summary)(_|$)"


def test_names_keep_the_rules_of_prometheus_and_each_metric_is_explained(server: ServerProcess) -> None:
    text = get(f"{server.http}/metrics").body.decode()
    families = list(text_string_to_metric_families(text))
    assert len(families) > 70
    for family in families:
        name = family.name
        assert family.documentation
        assert name.startswith(("flight_shuffle_", "process_"))
        assert re.fullmatch("[a-z][a-z_]*", name)
        assert not re.search(_ABBREVIATED, name)
        assert not re.search(_TYPES, name)
        assert not name.endswith(("_total", "_count", "_sum", "_bucket"))
        names = {sample.name for sample in family.samples}
        if family.type == "counter":
            assert names <= {f"{name}_total"}
        elif family.type == "histogram":
            assert names == {f"{name}_bucket", f"{name}_count", f"{name}_sum"}
        else:
            assert names <= {name}
        for sample in family.samples:
            assert set(sample.labels) <= LABELS, (
                "each one has few values; names of datasets and peers have not"
            )


LABELS = {"account", "kind", "waiting_for", "task", "code", "file", "le", "version", "python", "pyarrow"}
# In ``statistics``, beside the server's numbers: pages, and what has names.
_NO_NUMBERS = {"first", "limit", "count", "datasets", "slowest_readers", "ended", "servers"}
_NAMED = {
    "memory.limit_bytes": "memory_limit_bytes",
    "memory.used_bytes": "memory_used_bytes",
    "memory.peak_bytes": "memory_peak_bytes",
    "memory.waiting": "memory_waiting",
    "disk.limit_bytes": "disk_limit_bytes",
    "disk.used_bytes": "disk_used_bytes",
    "disk.peak_bytes": None,
    "disk.waiting": None,
    "disk.trouble": "disk_trouble",
    "waits": "waits",
    "staged": "datasets_staged",
    "draining": "draining",
    "errors": "errors_total",
    "reloads_failed": "reloads_failed_total",
    "task_failures": "task_failures_total",
    "token_file_trouble": "reload_trouble",
    "certificates_trouble": "reload_trouble",
    "quarantine": "quarantined_datasets",
    "foreign_files": "foreign_files",
    "damaged_records": "damaged_records",
}


def test_every_number_of_the_server_is_a_metric(server: ServerProcess) -> None:
    with flight.connect(server.location) as client:
        said = action(client, "statistics")
    numbers: set[str] = set()
    for key, value in said.items():
        if key not in _NO_NUMBERS:
            inner = value if key in ("memory", "disk") else {}
            numbers |= {f"{key}.{each}" for each in inner if each != "accounts"} or {key}
    text = get(f"{server.http}/metrics").body.decode()
    missing = []
    for number in sorted(numbers):
        metric = _NAMED.get(number, f"{number}_total")
        if metric is not None and not re.search(rf"^(# TYPE )?flight_shuffle_{metric}\b", text, re.MULTILINE):
            missing.append(number)
    assert missing == [], "give them a text in flight_server/reporting/metrics.py"
    accounts = set(re.findall(r'memory_used_bytes{account="(\w+)"}', text))
    assert accounts == {"all", *_accounts(said["memory"])}


def _accounts(pool: dict[str, Any]) -> set[str]:
    inner = pool.get("accounts", {})
    return set(inner) | {name for each in inner.values() for name in _accounts(each)}


def test_every_number_of_a_changelog_is_a_metric(server: ServerProcess) -> None:
    with flight.connect(server.location) as client:
        changelogs.create(client, "a", pa.schema([("key", pa.int64())]))
        said = changelogs.numbers(client, "a")
    shown = metrics(server)
    renamed = {"bytes": "memory_bytes", "upper": "versions", "hold_count": "holds"}
    of_one = {"since", "delay_seconds"}  # not to be added up
    numbers = {
        key for key, value in said.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    missing = {
        key for key in numbers - of_one if f"flight_shuffle_changelog_{renamed.get(key, key)}" not in shown
    }
    assert missing <= {"frames", "resident_bytes", "partition_count", "server_count", "readers"}


def test_each_code_of_an_error_and_each_kind_of_wait_is_a_metric_from_the_start(
    server: ServerProcess,
) -> None:
    shown = metrics(server)
    codes = [code for code, kind in error_classes().items() if kind.__module__.startswith("flight_server.")]
    assert len(codes) > 20
    for code in set(codes) - {"error"}:
        assert shown[f"flight_shuffle_errors_total{{code={code}}}"] == 0
    for what in WAITED_FOR:
        assert f"flight_shuffle_waits{{waiting_for={what}}}" in shown


def test_the_lag_of_the_loop_is_a_histogram() -> None:
    lag = LoopLag()
    for seconds in (0.0005, 0.02, 0.02, 7.0, -1.0):
        lag.note(seconds)
    assert [number for _, number in lag.buckets()] == [2, 2, 2, 4, 4, 4, 4, 4, 5]
    assert lag.total_seconds == pytest.approx(7.0405)
    asyncio.run(lag.look())
    assert lag.buckets()[-1] == ("+Inf", 6)
