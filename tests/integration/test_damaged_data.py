"""Frames, runs and dictionaries that were damaged on disk: kept where they are, named, and never replaced by older data
in silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support import changelogs
from tests.support.damaging import cut, files_of, flip, quarantine, refusal
from tests.support.durable import action, files, get, names, put, put_attempt, table
from tests.support.faulty_disk import FaultyServer
from tests.support.polling import eventually
from tests.support.rates import LATEST, RATES, rates_of

OLD, NEW = table(1000), table(900, seed=5000)

Servers = Callable[..., FaultyServer]


@pytest.fixture
def servers(faulty_server: Servers, data_dir: Path) -> Servers:
    return partial(faulty_server, data_dir)


def create(client: flight.FlightClient, name: str, **options: Any) -> None:
    action(client, "create", dataset=name, durable=True, **options)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


DAMAGE: dict[str, Callable[[Path], None]] = {
    "gone": Path.unlink,
    "cut": lambda path: cut(path, 1),
    "empty": lambda path: os.truncate(path, 0),
    "fifo": fifo,
    "link": link,
}


@pytest.mark.parametrize(
    "damage",
    [name if name in ("gone", "fifo") else pytest.param(name, marks=pytest.mark.long) for name in DAMAGE],
)
def test_what_is_damaged_at_the_start_is_named_and_kept_and_the_rest_is_served(
    damage: str, data_dir: Path, servers: Servers
) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        for name in ("damaged", "whole"):
            create(client, name)
            put(client, OLD, dataset=name)
    assert server.terminate() == 0
    (victim,) = files_of(data_dir, "damaged")
    DAMAGE[damage](victim)
    left = files(data_dir)
    listed: list[dict[str, Any]] = []
    for _ in range(2):  # it is known after another restart, too
        server = servers()
        with closing(flight.connect(server.location)) as client:
            assert names(client) == {"whole"}
            assert get(client, "whole") == OLD
            (entry,) = listed = quarantine(client)
            assert (entry["dataset"], entry["files"]) == ("damaged", [victim.name])
            assert entry["reason"]
            said = refusal(client, "damaged")
            assert (said["error"], said["files"]) == ("data_quarantined", victim.name)
            assert "drop" in said["message"]
        server.kill()
    assert files(data_dir) == left
    with closing(flight.connect(servers().location)) as client:
        put(client, NEW, dataset="damaged")
        assert get(client, "damaged") == NEW
        assert quarantine(client) == listed


def test_a_drop_of_a_name_that_only_the_quarantine_has_deletes_its_files(
    data_dir: Path, servers: Servers
) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        create(client, "d")
        put(client, OLD, dataset="d")
        put(client, OLD, dataset="other")
    server.kill()
    (victim,) = files_of(data_dir, "d")
    cut(victim, 1)
    server = servers()
    with closing(flight.connect(server.location)) as client:
        refusal(client, "d")
        server.fail(wal_write="ENOSPC")
        with pytest.raises(flight.FlightUnavailableError):
            action(client, "drop", dataset="d")
        assert len(quarantine(client)) == 1
        assert victim.exists()
        server.heal()
        action(client, "drop", dataset="d")
        assert quarantine(client) == []
        eventually(victim.exists, False)
        with pytest.raises(pa.ArrowKeyError, match="no dataset"):
            get(client, "d")
        with pytest.raises(pa.ArrowKeyError, match="no dataset"):
            action(client, "drop", dataset="d")
    server.kill()
    with closing(flight.connect(servers().location)) as client:
        assert quarantine(client) == []


def test_a_flipped_bit_costs_one_partition_only_and_is_not_deleted_with_the_next_generation(
    data_dir: Path, servers: Servers
) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        create(client, "d", kind="shuffle", partitions=2)
        put_attempt(client, "d", {0: OLD, 1: OLD})
        action(client, "seal", dataset="d")
    assert server.terminate() == 0
    (victim,) = files_of(data_dir, "d")
    flip(victim, 1500)
    for _ in range(2):
        server = servers()
        with closing(flight.connect(server.location)) as client:
            said = refusal(client, "d")
            assert (said["error"], said["partition"]) == ("corrupt_frame", 0)
            assert get(client, "d", 1) == OLD
            (listed,) = quarantine(client)
            assert (listed["dataset"], listed["files"]) == ("d", [victim.name])
        server.kill()
    server = servers()
    with closing(flight.connect(server.location)) as client:
        put(client, NEW, dataset="d", mode="overwrite")
        assert get(client, "d") == NEW
        (listed,) = quarantine(client)
        assert listed["files"] == [victim.name]
    server.kill()
    with closing(flight.connect(servers().location)) as client:
        assert get(client, "d") == NEW
        assert victim.exists()


def test_a_drop_deletes_what_is_damaged(data_dir: Path, servers: Servers) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        create(client, "d")
        put(client, OLD, dataset="d")
    server.kill()
    (victim,) = files_of(data_dir, "d")
    flip(victim, 1500)
    with closing(flight.connect(servers().location)) as client:
        refusal(client, "d")
        action(client, "drop", dataset="d")
        assert quarantine(client) == []
        eventually(victim.exists, False)
        with pytest.raises(pa.ArrowKeyError, match="no dataset"):
            get(client, "d")


def test_an_older_generation_is_not_served_where_the_newer_one_is_damaged(
    data_dir: Path, servers: Servers
) -> None:
    server = servers()
    with closing(flight.connect(server.location)) as client:
        create(client, "d")
        put(client, OLD, dataset="d")
        old = files_of(data_dir, "d")
        server.fail(unlink="EIO")  # the older one's file stays
        put(client, NEW, dataset="d", mode="overwrite")
        assert get(client, "d") == NEW
    server.kill()
    (new,) = {*files_of(data_dir, "d")} - {*old}
    cut(new, 1)
    with closing(flight.connect(servers().location)) as client:
        assert names(client) == set()
        assert [each["files"] for each in quarantine(client)] == [[new.name]]
        assert refusal(client, "d")["error"] == "data_quarantined"


def test_a_changelog_whose_run_is_damaged_is_named_and_the_others_go_on(
    data_dir: Path, servers: Servers
) -> None:
    large = rates_of(*((f"c{number}", number, 1.0) for number in range(40_000)))
    memory = {"memory_limit": "16MiB"}  # a put of a MiB is a run's file
    server = servers(**memory)
    with closing(flight.connect(server.location)) as client:
        for name in ("damaged", "whole"):
            changelogs.create(client, name, RATES, keep=LATEST, delay_seconds=3600)
            assert changelogs.put(client, name, large)["version"] == 1
    server.kill()
    victim, *_ = files_of(data_dir, "damaged")
    assert victim.suffix == ".run"
    flip(victim, victim.stat().st_size // 2)
    with closing(flight.connect(servers(**memory).location)) as client:
        with pytest.raises(flight.FlightInternalError, match="data loss"):
            changelogs.snapshot(client, "damaged")
        assert len(changelogs.snapshot(client, "whole")) == large.num_rows
        assert {each["dataset"] for each in quarantine(client)} == {"damaged"}
        with pytest.raises(flight.FlightInternalError, match="damaged"):
            changelogs.put(client, "damaged", rates_of(("EUR", 1, 1.0)))
        assert changelogs.put(client, "whole", rates_of(("EUR", 1, 1.0)))["version"] == 2
