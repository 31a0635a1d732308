"""The metrics for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import flight

from flight_server.datasets.counters import Counters
from tests.support import changelogs
from tests.support.bulk import RawGet, get
from tests.support.durable import action, put, table
from tests.support.polling import eventually
from tests.support.server_process import ServerProcess


@pytest.fixture
def server(flight_server_process: Callable[..., ServerProcess]) -> ServerProcess:
    return flight_server_process(memory_limit="64MiB")


def metrics(server: ServerProcess) -> dict[str, float]:
    """Every sample, its labels behind its name."""
    text = get(f"{server.http}/metrics").body.decode()
    return {
        sample.name
        + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_show_what_happened(server: ServerProcess) -> None:
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


def test_metrics_add_up_what_changelogs_have(server: ServerProcess) -> None:
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
    assert found.pop("disk_bytes") == sum(each["disk_bytes"] for each in said) > 0
    assert found.pop("fuel_rows") == sum(each["fuel_rows"] for each in said) == 160
    assert found == {
        "rows": 40,
        "keys": 40,
        "runs": 4,
        "debt_rows": 20,
        "holds": 2,
        "followers": 1,
        "versions": 4,
    }


def test_every_metric_is_explained_and_names_its_unit(server: ServerProcess) -> None:
    text = get(f"{server.http}/metrics").body.decode()
    families = list(text_string_to_metric_families(text))
    assert len(families) > 20
    for family in families:
        assert family.documentation
        assert family.name.startswith("flight_shuffle_")
        assert not re.search(r"(_kb|_mb|_ms|_millis)$", family.name)


def test_every_counter_of_the_server_is_a_metric(server: ServerProcess) -> None:
    shown = metrics(server)
    missing = [field.name for field in fields(Counters) if f"flight_shuffle_{field.name}_total" not in shown]
    assert missing == []
