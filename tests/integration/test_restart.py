"""Durable datasets over the death of their server, at every step of its writing."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.damaging import files_of
from tests.support.durable import action, files, get, names, put, put_attempt, segment_bytes, table
from tests.support.faulty_disk import FaultyServer
from tests.support.server_process import ServerProcess

OLD, NEW = table(1000), table(900, seed=5000)
# 5 MiB of RAM for frames: BIG is partly on disk long before its seal.
MEMORY = {"memory_limit": "8MiB", "segment_size": "1MiB"}
BIG = pa.table({"bytes": [os.urandom(1 << 16) for _ in range(100)]})
MAX_STEPS = 100
FILE_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.frames")

Servers = Callable[..., FaultyServer]


@dataclass(frozen=True)
class Scenario:
    """What is there before, what is done, and what may be there after a crash in the middle."""

    prepare: Callable[[flight.FlightClient], None]
    change: Callable[[flight.FlightClient], None]
    before: dict[str, list[pa.Table]]
    after: dict[str, list[pa.Table]]


def create(client: flight.FlightClient, **body: object) -> None:
    action(client, "create", dataset="d", durable=True, **body)


def seal_two_producers(client: flight.FlightClient) -> None:
    put_attempt(client, "d", {0: OLD, 1: NEW}, producer=0)
    put_attempt(client, "d", {0: NEW}, producer=1, attempt="2")
    put_attempt(client, "d", {0: OLD}, producer=1, attempt="3")
    action(client, "seal", dataset="d", attempts={"0": "1", "1": "2"})


def put_two_partitions(client: flight.FlightClient) -> None:
    put(client, OLD, dataset="d", partition=0)
    put(client, NEW, dataset="d", partition=1)


def put_old(client: flight.FlightClient) -> None:
    create(client)
    put(client, OLD, dataset="d")


def drop(client: flight.FlightClient) -> None:
    action(client, "drop", dataset="d")


SCENARIOS = {
    "put": Scenario(create, lambda client: put(client, OLD, dataset="d"), {}, {"d": [OLD]}),
    "two_partitions": Scenario(
        lambda client: create(client, partitions=2), put_two_partitions, {}, {"d": [OLD, NEW]}
    ),
    "shuffle": Scenario(
        lambda client: create(client, kind="shuffle", partitions=3),
        seal_two_producers,
        {},
        {"d": [pa.concat_tables([OLD, NEW]), NEW, OLD.schema.empty_table()]},
    ),
    "overwrite": Scenario(
        put_old,
        lambda client: put(client, NEW, dataset="d", mode="overwrite"),
        {"d": [OLD]},
        {"d": [NEW]},
    ),
    "spilled": Scenario(create, lambda client: put(client, BIG, chunk_rows=4, dataset="d"), {}, {"d": [BIG]}),
    "drop": Scenario(put_old, drop, {"d": [OLD]}, {}),
}


def found(client: flight.FlightClient) -> dict[str, list[pa.Table]]:
    """Everything that can be read."""
    return {
        name: [
            get(client, name, partition)
            for partition in range(action(client, "statistics")["datasets"][name]["partition_count"])
        ]
        for name in names(client)
    }


@pytest.mark.long
@pytest.mark.parametrize("name", SCENARIOS)
def test_sigkill_at_any_step_leaves_what_was_acknowledged_and_never_half(
    name: str, tmp_path: Path, faulty_server: Servers
) -> None:
    scenario, data_dir = SCENARIOS[name], tmp_path / "data"
    server, step, killed = faulty_server(data_dir, **MEMORY), 0, True
    while killed:
        assert step < MAX_STEPS, "the change never completes"
        with closing(flight.connect(server.location)) as client:
            scenario.prepare(client)
            server.kill_at(step)
            try:
                scenario.change(client)
                acknowledged = True
            except (flight.FlightError, pa.ArrowException, OSError):
                acknowledged = False
        # A clean end makes the changes that may follow the acknowledgement, such as deleting files.
        code = server.terminate() if acknowledged else server.wait()
        assert code in ((0, -signal.SIGKILL) if acknowledged else (-signal.SIGKILL,))
        killed = code != 0
        server = faulty_server(data_dir, **MEMORY)
        with closing(flight.connect(server.location)) as client:
            present = found(client)
            allowed = [scenario.after] if acknowledged else [scenario.before, scenario.after]
            assert present in allowed, f"killed at step {step}"
            assert_files_are_exactly_those_of(present, client, data_dir)
            for dataset in present:
                action(client, "drop", dataset=dataset)
            assert action(client, "statistics")["disk"]["used_bytes"] == 0
            assert files(data_dir) == []
        step += 1
    assert step > 3, "nothing was tested"


def assert_files_are_exactly_those_of(
    present: dict[str, list[pa.Table]], client: flight.FlightClient, data_dir: Path
) -> None:
    each_file = [path for name in present for path in files_of(data_dir, name)]
    assert sorted(each_file) == files(data_dir)
    assert all(FILE_NAME.fullmatch(path.name) for path in each_file)
    assert action(client, "statistics")["disk"]["used_bytes"] == segment_bytes(data_dir)


def test_a_restored_dataset_has_the_same_tickets_and_is_read_from_disk(
    tmp_path: Path, faulty_server: Servers
) -> None:
    server = faulty_server(tmp_path / "data")
    with closing(flight.connect(server.location)) as client:
        create(client, partitions=1, lease_seconds=1000)
        put(client, OLD, dataset="d")
        before = client.get_flight_info(flight.FlightDescriptor.for_path("d"))
    server.kill()
    server = faulty_server(tmp_path / "data")
    with closing(flight.connect(server.location)) as client:
        after = client.get_flight_info(flight.FlightDescriptor.for_path("d"))
        assert after.endpoints[0].ticket == before.endpoints[0].ticket
        assert (after.total_records, after.total_bytes) == (before.total_records, before.total_bytes)
        statistics = action(client, "statistics")
        assert statistics["datasets"]["d"]["resident_bytes"] == 0
        assert 990 < statistics["datasets"]["d"]["lease_left_seconds"] <= 1000
        assert client.do_get(before.endpoints[0].ticket).read_all() == OLD
        assert action(client, "statistics")["frames_read_back"] == 10


@pytest.mark.long
def test_sealing_again_after_a_restart_is_fine_with_the_same_attempts_only(
    tmp_path: Path, faulty_server: Servers
) -> None:
    server = faulty_server(tmp_path / "data")
    with closing(flight.connect(server.location)) as client:
        create(client, kind="shuffle", partitions=2)
        seal_two_producers(client)
    server.kill()
    server = faulty_server(tmp_path / "data")
    with closing(flight.connect(server.location)) as client:
        answer = action(client, "seal", dataset="d", attempts={"0": "1", "1": "2"})
        assert answer["rows"] == 2 * NEW.num_rows + OLD.num_rows
        with pytest.raises(pa.ArrowInvalid, match="other attempts"):
            action(client, "seal", dataset="d", attempts={"0": "1", "1": "3"})


def test_everything_else_is_gone_after_a_restart_and_its_files_too(
    tmp_path: Path, faulty_server: Servers
) -> None:
    data_dir = tmp_path / "data"
    server = faulty_server(data_dir, **MEMORY)
    with closing(flight.connect(server.location)) as client:
        put(client, BIG, chunk_rows=4, dataset="not-durable")
        action(client, "create", dataset="not-sealed", durable=True, partitions=2)
        put(client, BIG, chunk_rows=4, dataset="not-sealed", partition=1)
        action(client, "create", dataset="kept", durable=True)
        put(client, BIG, chunk_rows=4, dataset="kept")
        ticket = client.get_flight_info(flight.FlightDescriptor.for_path("not-durable")).endpoints[0].ticket
    server.kill()
    server = faulty_server(data_dir, **MEMORY)
    with closing(flight.connect(server.location)) as client:
        assert names(client) == {"kept"}
        assert get(client, "kept") == BIG
        assert_files_are_exactly_those_of({"kept": [BIG]}, client, data_dir)
        put(client, OLD, dataset="not-durable")
        with pytest.raises(pa.ArrowKeyError, match="not of this start of the server"):
            client.do_get(ticket).read_all()


@pytest.mark.long
def test_the_temporary_directory_of_a_killed_server_goes_with_the_next_start(
    tmp_path: Path, flight_server_process: Callable[..., ServerProcess]
) -> None:
    environment = {"TMPDIR": str(tmp_path)}
    killed = flight_server_process(environment=environment)
    alive = flight_server_process(environment=environment)
    assert len(list(tmp_path.iterdir())) == 2
    killed.kill()
    flight_server_process(environment=environment)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 2
    assert Path(alive.ready["data_dir"]).name in left
    assert Path(killed.ready["data_dir"]).name not in left
