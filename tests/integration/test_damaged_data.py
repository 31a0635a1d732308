"""Data that was damaged on disk: kept aside, named, never deleted, and never replaced by older data in silence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.durable import action, get, names, put, put_attempt, table
from tests.support.faulty_disk import FaultyServer
from tests.support.polling import eventually

OLD, NEW = table(1000), table(900, seed=5000)

Servers = Callable[..., FaultyServer]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    started: list[FaultyServer] = []

    def start(**settings: Any) -> FaultyServer:
        started.append(FaultyServer.start(tmp_path / "data", **settings))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def refusal(client: flight.FlightClient, dataset: str, partition: int = 0) -> dict[str, Any]:
    with pytest.raises(flight.FlightInternalError, match=f"dataset .{dataset}.") as caught:
        get(client, dataset, partition)
    assert "data loss" in str(caught.value)
    said: dict[str, Any] = json.loads(caught.value.extra_info)
    return said


def quarantine(client: flight.FlightClient) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = action(client, "statistics")["quarantine"]
    return listed


def create(client: flight.FlightClient, name: str, **options: Any) -> None:
    action(client, "create", dataset=name, durable=True, **options)


@pytest.mark.parametrize(
    "damage",
    ["flipped_manifest", "fifo_segment", pytest.param("cut_segment", marks=pytest.mark.long)],
)
def test_what_is_damaged_at_the_start_is_kept_aside_and_the_rest_is_served(
    damage: str, data_dir: Path, servers: Servers
) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        for name in ("damaged", "whole"):
            create(client, name)
            put(client, OLD, dataset=name)
    assert server.terminate() == 0
    (directory,) = (data_dir / "datasets").glob("damaged-*")
    kind, _, what = damage.partition("_")
    victim = directory / ("manifest" if what == "manifest" else "segment-000001")
    if kind == "cut":
        os.truncate(victim, victim.stat().st_size - 1)
    elif kind == "fifo":
        victim.unlink()
        os.mkfifo(victim)
    else:
        flip(victim, 100)
    left = {path.name for path in directory.iterdir()}
    for _ in range(2):  # it is known after another restart, too
        server = servers()
        with closing(flight.connect(server.location)) as client:
            assert names(client) == {"whole"}
            assert get(client, "whole") == OLD
            (listed,) = quarantine(client)
            aside = Path(listed["path"])
            assert aside == data_dir / "quarantine" / directory.name
            assert {path.name for path in aside.iterdir()} == {*left, "quarantine.json"}
            said = refusal(client, "damaged")
            assert (said["error"], said["path"]) == ("data_quarantined", str(aside))
        server.kill()
    with closing(flight.connect(servers().location)) as client:
        put(client, NEW, dataset="damaged")
        assert get(client, "damaged") == NEW
        assert quarantine(client) == [listed]


def test_an_older_generation_is_neither_served_nor_lost_when_the_newer_one_is_damaged(
    data_dir: Path, servers: Servers
) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        create(client, "d")
        put(client, OLD, dataset="d")
        (old,) = (data_dir / "datasets").iterdir()
        server.fail(unlink="EIO")  # the older manifest stays
        put(client, NEW, dataset="d", mode="overwrite")
        assert get(client, "d") == NEW
    server.kill()
    (new,) = set((data_dir / "datasets").iterdir()) - {old}
    flip(new / "manifest", 50)
    server = servers()
    with closing(flight.connect(server.location)) as client:
        assert names(client) == set()
        assert {Path(each["path"]).name for each in quarantine(client)} == {old.name, new.name}
        assert refusal(client, "d")["error"] == "data_quarantined"
    assert server.terminate() == 0
    (data_dir / "quarantine" / old.name).rename(old)
    with closing(flight.connect(servers().location)) as client:
        assert get(client, "d") == OLD
        assert [Path(each["path"]).name for each in quarantine(client)] == [new.name]


def test_a_flipped_bit_costs_one_partition_only_and_is_not_deleted_with_the_next_generation(
    data_dir: Path, servers: Servers
) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        create(client, "d", kind="shuffle", partitions=2)
        put_attempt(client, "d", {0: OLD, 1: OLD})
        action(client, "seal", dataset="d")
    assert server.terminate() == 0
    (directory,) = (data_dir / "datasets").iterdir()
    flip(directory / "segment-000001", 1000)
    for _ in range(2):
        server = servers()
        with closing(flight.connect(server.location)) as client:
            said = refusal(client, "d")
            assert (said["error"], said["partition"]) == ("corrupt_frame", 0)
            assert get(client, "d", 1) == OLD
            (listed,) = quarantine(client)
            assert (listed["dataset"], listed["path"]) == ("d", str(directory))
        server.kill()
    server = servers()
    with closing(flight.connect(server.location)) as client:
        put(client, NEW, dataset="d", mode="overwrite")
        assert get(client, "d") == NEW
        aside = data_dir / "quarantine" / directory.name
        eventually(lambda: [each["path"] for each in quarantine(client)], [str(aside)])
        assert (aside / "segment-000001").exists()


def test_a_drop_deletes_what_is_damaged(data_dir: Path, servers: Servers) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        create(client, "d")
        put(client, OLD, dataset="d")
    server.kill()
    (directory,) = (data_dir / "datasets").iterdir()
    flip(directory / "segment-000001", 1000)
    with closing(flight.connect(servers().location)) as client:
        refusal(client, "d")
        action(client, "drop", dataset="d")
        assert quarantine(client) == []
        assert not directory.exists()
        with pytest.raises(pa.ArrowKeyError, match="no dataset"):
            get(client, "d")
