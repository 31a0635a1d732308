"""The driver's loop and its state machine in a simulated cluster: random schedules, with faults at any step."""

from __future__ import annotations

import ast
import time
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

import spark_client
from spark_client.servers import dataset_machine
from tests.support.simulated_cluster import EVENTS, SimulatedCluster
from tests.support.simulated_driver import SimulatedDriver

DRAWN_SCHEDULES = 15
# Each by the arguments of the cluster, and those of the driver.
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no fault": ({}, {}),
    "servers that are killed": ({"kills": 2}, {}),
    "servers that are killed, and objects": ({"kills": 2}, {"offloads": 0.6}),
    "servers that are stopped": ({"stops": 3}, {"offloads": 0.3}),
    "servers that the driver does not reach": ({"cuts": 3}, {}),
    "answers that come late": ({"late": 0.05}, {}),
    "answers that never come": ({"mute": 0.05}, {}),
    "servers that tasks start": ({"learnt": True, "kills": 1, "stops": 1}, {}),
    "a client that is closed": ({"kills": 1}, {"closes": True}),
    "Ctrl-C": ({"kills": 1}, {"interrupts": 2}),
    "short leases": ({"lease_seconds": 6.0, "kills": 1, "stops": 2, "cuts": 2}, {}),
    "one server": ({"servers": 1, "kills": 1}, {}),
}


def ran(
    seed: int, cluster_arguments: dict[str, Any], driver_arguments: dict[str, Any]
) -> tuple[SimulatedCluster, SimulatedDriver]:
    """A cluster that has run and was right (``simulated_cluster``); else its log is printed."""
    cluster = SimulatedCluster(seed, **cluster_arguments)
    driver = SimulatedDriver(cluster, **driver_arguments)
    try:
        driver.run()
    except BaseException:
        print(f"seed {seed}, {cluster_arguments}, {driver_arguments}", *cluster.schedule.log, sep="\n")
        raise
    for server in cluster.all_servers:
        assert not server.datasets, "leases have ended"
    return cluster, driver


def drawn(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A form that the seed draws: any faults, in any number, with one server or with several."""
    random = Random(f"form {seed}")
    cluster = {
        "servers": random.choice([1, 2, 4, 4, 6]),
        "tasks": random.randint(1, 6),
        "partitions": random.randint(1, 4),
        "kills": random.choice([0, 0, 1, 2, 5]),
        "stops": random.choice([0, 0, 1, 3]),
        "cuts": random.choice([0, 0, 1, 3]),
        "mute": random.choice([0.0, 0.0, 0.0, 0.03, 0.1]),
        "late": random.choice([0.0, 0.0, 0.0, 0.03, 0.1]),
        "learnt": random.random() < 0.25,
        "lease_seconds": random.choice([6.0, 30.0, 30.0, 300.0]),
        "changes": random.choice([2, 5, 20]),
        "kill_driver_at": random.choice([None, None, None, random.randint(1, 150)]),
    }
    driver = {
        "threads": random.choice([1, 2, 2, 3]),
        "plans": random.choice([1, 2, 3]),
        "offloads": random.choice([0.0, 0.0, 0.5, 1.0]),
        "closes": random.random() < 0.15,
        "interrupts": random.choice([0, 0, 0, 0, 1, 3]),
    }
    return cluster, driver


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_read_exactly_once_or_an_error_says_why_and_nothing_is_kept(
    form: str, pytestconfig: pytest.Config
) -> None:
    read = 0
    for seed in range(pytestconfig.getoption("--simulated-schedules")):
        read += ran(seed, *FORMS[form])[1].read
    assert read


@pytest.mark.parametrize("every", [100, pytest.param(1, marks=pytest.mark.long)])
def test_a_server_may_be_lost_at_each_step(every: int) -> None:
    cluster, driver = {"servers": 3, "tasks": 3}, {"threads": 2, "plans": 1}
    for seed in range(3):
        steps = len(ran(seed, cluster, driver)[0].schedule.log)
        for step in range(seed, steps, every):
            ran(seed, cluster | {"kills": 1, "fault_at": step}, driver)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_what_a_driver_leaves_that_is_killed_at_any_call_ends_with_its_lease(every: int) -> None:
    cluster, driver = {"servers": 3, "tasks": 3}, {"threads": 2, "plans": 1}
    for seed in range(3):
        calls = ran(seed, cluster, driver)[0].network_calls
        for call in range(1 + seed, calls + 1, every):
            ended, _ = ran(seed, cluster | {"kill_driver_at": call}, driver)
            assert ended.network_calls == call


@pytest.mark.timeout(0)  # as long as it was told to
def test_random_schedules_of_random_clusters_are_right_and_repeat(pytestconfig: pytest.Config) -> None:
    seconds = pytestconfig.getoption("--schedules-seconds")
    first = int(pytestconfig.getoption("--schedules-seed"))
    until = time.monotonic() + (seconds or 0.0)
    ended, verbs = Counter[str](), Counter[str]()
    for seed in count(first):
        if seed - first >= DRAWN_SCHEDULES if seconds is None else time.monotonic() > until:
            break
        (one, driver), (again, _) = (ran(seed, *drawn(seed)) for _ in range(2))
        assert one.schedule.log == again.schedule.log, f"seed {seed}"
        ended.update(driver.errors)
        ended["datasets read"] += driver.read
        verbs.update(one.calls)
    print(f"schedules from seed {first} on, each run twice:", dict(ended.most_common()), dict(verbs))
    assert verbs.keys() == {*EVENTS}
    assert len(ended) >= 3, "good and bad"


@pytest.mark.long
def test_a_thousand_random_schedules_are_right() -> None:
    for seed in range(1000):
        ran(seed, *drawn(seed))


def test_each_verb_of_the_machine_is_simulated_and_is_called_in_production() -> None:
    tree = ast.parse(Path(dataset_machine.__file__).read_text())
    (machine,) = (
        each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "DatasetMachine"
    )
    # Those that the class's text has before its first event only look.
    methods = [each for each in machine.body if isinstance(each, ast.FunctionDef)]
    first = next(number for number, each in enumerate(methods) if each.name == "plan")
    verbs = {each.name for each in methods[first:] if not each.name.startswith("_")}
    assert verbs == {*EVENTS}
    called = set[str]()
    for path in Path(spark_client.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if path.name != "dataset_machine.py" and "machine." in text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    owner = ast.unparse(node.func.value)
                    if owner.rpartition(".")[2] in ("machine", "_machine"):
                        called.add(node.func.attr)
    assert verbs <= called
