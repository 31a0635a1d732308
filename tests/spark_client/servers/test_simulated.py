"""The state machine in a simulated cluster: random schedules, with servers lost at any step."""

from __future__ import annotations

import time
from collections import Counter
from itertools import count
from random import Random
from typing import Any

import pytest
from spark_client.servers.spread_write import WriteState

from flight_server.protocol import FlightShuffleError, ServerLost
from spark_client.connection import TimedOut, Unreachable
from tests.support.simulated_cluster import SimulatedCluster

FORMS: dict[str, dict[str, Any]] = {
    "no fault": {"faults": 0},
    "one fault": {"faults": 1},
    "many faults": {"faults": 6},
    "handed out": {"faults": 2, "hands_out": True},
    "one server": {"faults": 0, "given": True, "servers": 1},
    "one server that restarts": {"faults": 2, "given": True, "servers": 1},
    "cut off": {"faults": 0, "cuts": 3},
    "answers that never come": {"faults": 1, "mute": 0.05},
    "one dataset": {"faults": 3, "datasets": ("only",), "tasks": 9},
}


DRAWN_SCHEDULES = 100


def check(cluster: SimulatedCluster) -> None:
    """What must hold at the end, by what Spark accepted and readers got alone.

    Each dataset was read whole: each row once, all of one run, of the attempts that Spark accepted in it; or an error
    of a known type says why not. No server has anything that the driver was told of, but one that it could not reach:
    there the lease ends it.
    """
    machine = cluster.machine
    if machine.state is WriteState.DROPPED:
        assert cluster.failed is None
        assert cluster.read.keys() == {*cluster.datasets}
        for dataset, rows in cluster.read.items():
            accepted = cluster.accepted[cluster.read_in[dataset], dataset]
            assert accepted.keys() == {*range(cluster.tasks)}
            assert rows == {
                (producer, attempt, partition): count
                for producer, attempt in accepted.items()
                for partition, count in cluster.rows(producer).items()
            }
    else:
        assert machine.state is WriteState.FAILED
        assert isinstance(cluster.failed, FlightShuffleError)
        if isinstance(cluster.failed, ServerLost):
            assert cluster.failed.detail.keys() == {"server", "start", "dataset", "run"}
            assert cluster.failed.detail["dataset"] in cluster.datasets
        else:
            assert isinstance(cluster.failed, Unreachable | TimedOut)
    away = {each.location if cluster.given else each for each in cluster.away}
    for server, held in cluster.left():
        assert not held.known or (server.location if cluster.given else server) in away
    assert not machine.renew()
    if not cluster.cuts and not cluster.mute:
        assert machine.run <= 1 + len(cluster.states_at_faults), "one loss costs one rerun"


def ran(seed: int, **form: Any) -> SimulatedCluster:
    """A cluster that has run and is right; else its log is printed."""
    cluster = SimulatedCluster(seed, **form)
    try:
        cluster.run()
        check(cluster)
    except BaseException:
        print(f"seed {seed}, {form}", *cluster.schedule.log, sep="\n")
        raise
    return cluster


def drawn(seed: int) -> dict[str, Any]:
    """A form that the seed draws: any faults, in any number, with one server or with several."""
    random = Random(f"form {seed}")
    given = random.random() < 0.15
    return {
        "servers": 1 if given else random.randint(1, 6),
        "given": given,
        "tasks": random.randint(1, 9),
        "partitions": random.randint(1, 4),
        "datasets": random.choice([("only",), ("left", "right"), ("a", "b", "c")]),
        "faults": random.choice([0, 1, 1, 2, 6]),
        "cuts": random.choice([0, 0, 1, 2]),
        "mute": random.choice([0.0, 0.0, 0.02, 0.1]),
        "hands_out": random.random() < 0.2,
        "changes": random.choice([2, 5, 20]),
    }


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_read_exactly_once_or_an_error_says_why_and_nothing_is_kept(
    form: str, pytestconfig: pytest.Config
) -> None:
    for seed in range(pytestconfig.getoption("--simulated-schedules")):
        ran(seed, **FORMS[form])


@pytest.mark.parametrize("seed", range(3))
def test_a_server_may_be_lost_at_each_step(seed: int) -> None:
    form: dict[str, Any] = {"servers": 3, "tasks": 3, "faults": 0}
    steps = len(ran(seed, **form).schedule.log)
    runs = {ran(seed, **form | {"faults": 1, "fault_at": step}).machine.run for step in range(steps)}
    assert runs == {1, 2}


@pytest.mark.timeout(0)  # as long as it was told to
def test_random_schedules_of_random_clusters_are_right_and_repeat(pytestconfig: pytest.Config) -> None:
    seconds = pytestconfig.getoption("--schedules-seconds")
    first = int(pytestconfig.getoption("--schedules-seed"))
    until = time.monotonic() + (seconds or 0.0)
    ended = Counter[str]()
    for seed in count(first):
        if seed - first >= DRAWN_SCHEDULES if seconds is None else time.monotonic() > until:
            break
        one, again = (ran(seed, **drawn(seed)) for _ in range(2))
        assert one.schedule.log == again.schedule.log, f"seed {seed}"
        ended[f"{one.machine.state}, {len(one.machine.losses)} times run again"] += 1
    print(f"{ended.total()} schedules from seed {first} on, each run twice:", dict(ended.most_common()))
    assert len(ended) >= 4, "with and without losses, good and bad"
