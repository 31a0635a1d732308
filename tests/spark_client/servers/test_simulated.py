"""The state machine in a simulated cluster: random schedules, with servers lost at any step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from flight_server.protocol import FlightShuffleError, ServerLost
from spark_client.connection import Unreachable
from spark_client.servers import Create, Drop, Renew, RunJob, Seal, ServerStart, WriteState
from tests.support.simulated_cluster import SimulatedCluster

FORMS: dict[str, dict[str, Any]] = {
    "no fault": {"faults": 0},
    "one fault": {"faults": 1},
    "many faults": {"faults": 6},
    "two copies": {"faults": 1, "copies": 2},
    "two copies, many faults": {"faults": 6, "copies": 2},
    "handed out": {"faults": 2, "hands_out": True},
    "one server": {"faults": 0, "given": True, "servers": 1},
    "one server that restarts": {"faults": 2, "given": True, "servers": 1},
    "one dataset": {"faults": 3, "datasets": ("only",), "tasks": 9},
}


def check(cluster: SimulatedCluster) -> None:
    machine = cluster.machine
    if machine.state is WriteState.DROPPED:
        assert cluster.failed is None
        assert cluster.read == dict.fromkeys(cluster.datasets, cluster.expected())
    else:
        assert machine.state is WriteState.FAILED
        assert isinstance(cluster.failed, FlightShuffleError)
        if isinstance(cluster.failed, ServerLost):
            assert cluster.failed.detail.keys() == {"server", "start", "dataset", "run"}
            assert cluster.failed.detail["dataset"] in cluster.datasets
        else:
            assert isinstance(cluster.failed, Unreachable)
    # Leases end what no report has named.
    assert not [held for held in cluster.left() if held.known]
    assert not machine.renew()


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_read_exactly_once_or_an_error_says_why_and_nothing_is_kept(
    form: str, pytestconfig: pytest.Config
) -> None:
    for seed in range(pytestconfig.getoption("--simulated-schedules")):
        cluster = SimulatedCluster(seed, **FORMS[form])
        cluster.run()
        try:
            check(cluster)
        except BaseException:
            print(f"seed {seed}", *cluster.schedule.log, sep="\n")
            raise


@pytest.mark.parametrize("form", ["many faults", "two copies, many faults"])
def test_a_seed_gives_the_same_log_each_time(form: str) -> None:
    logs = []
    for seed in (*range(10), *range(10)):
        cluster = SimulatedCluster(seed, **FORMS[form])
        cluster.run()
        logs.append(cluster.schedule.log)
    assert logs[:10] == logs[10:]
    assert len({*map(tuple, logs)}) == 10


def test_servers_are_lost_in_every_state() -> None:
    # Else the other tests would say little.
    states = Counter[WriteState]()
    runs = Counter[int]()
    for seed in range(80):
        cluster = SimulatedCluster(seed, **FORMS["many faults"])
        cluster.run()
        states.update(cluster.states_at_faults)
        runs[cluster.machine.run] += 1
    assert {WriteState.WRITING, WriteState.SEALING, WriteState.SEALED} <= states.keys()
    assert runs.keys() == {1, 2, 3}


def test_with_one_server_the_calls_are_create_run_seal_and_drop() -> None:
    cluster = SimulatedCluster(1, faults=0, given=True, servers=1, datasets=("only",), changes=0)
    cluster.run()
    server, generation = ServerStart("grpc://host0:1"), "s0.0/1"
    create, job, seal, drop = (each for each in cluster.calls if not isinstance(each, Renew))
    assert (create, job) == (Create(server, "only", 1), RunJob(1, {"only": generation}))
    assert isinstance(seal, Seal)
    assert (seal.server, seal.dataset, seal.generation) == (server, "only", generation)
    assert seal.attempts.keys() == {*range(6)}
    assert seal.largest is None
    assert drop == Drop(server, "only", generation)
