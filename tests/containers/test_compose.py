"""Compose: all that can be had of it is healthy, its job runs on its cluster, and Prometheus reads the server."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tests.support.container_engine import ROOT, Engine
from tests.support.polling import eventually
from tests.support.server_containers import SERVICES, Project, ServerContainer, project

pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(7200)]

RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"][0]["rules"]
SPARK = ["spark-master", "spark-worker-1", "spark-worker-2"]
# Without a location: the tasks' executors start the servers.
IN_EXECUTORS = ["spark-submit", "--master", "spark://spark-master:7077", "--conf", "spark.executor.memory=1g"]
JOB = "/opt/spark/work-dir/exchange_job.py"


def answer(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        return json.load(response)


def test_all_services_run_and_those_with_a_check_are_healthy(cluster: Project) -> None:
    services = cluster.available_services()
    assert {"flight-server", *SPARK} <= {*services}
    states = {name: cluster.container(name).fact("{{json .State}}") for name in services}
    for name, state in states.items():
        found = json.loads(state)
        if name == "flight-token":
            assert (found["Status"], found["ExitCode"]) == ("exited", 0)
        else:
            assert found["Status"] == "running", name
            assert found.get("Health", {}).get("Status", "healthy") == "healthy", name


def test_the_master_has_two_workers_and_no_port_that_takes_programs(cluster: Project) -> None:
    eventually(lambda: answer(cluster.ports["SPARK_UI_PORT"], "/json/")["aliveworkers"], 2)
    connect = "import socket; socket.create_connection(('spark-master', {}), 3)"
    master = cluster.container("spark-master")
    assert master.inside("python", "-c", connect.format(7077)) == ""
    assert master.inside("python", "-c", connect.format(6066)) is None


@pytest.mark.parametrize("where", ["on the server", "on servers in executors"])
def test_the_job_gives_what_spark_alone_gives(where: str, cluster: Project) -> None:
    begun = time.monotonic()
    command = [] if where == "on the server" else [*IN_EXECUTORS, JOB]
    said = cluster.compose("--profile=job", "run", "--rm", "--no-TTY", "job", *command, seconds=1800)
    (line,) = (line for line in said.splitlines() if "rows exchanged" in line)
    print(f"\njob {where}: {line}; {time.monotonic() - begun:.0f} s in all")
    assert line.endswith("by Spark alone the answer is the same")
    apps = answer(cluster.ports["SPARK_UI_PORT"], "/json/")["completedapps"]
    assert apps[0]["state"] == "FINISHED"


def test_prometheus_reads_the_server_and_has_all_alerts(cluster: Project) -> None:
    if "prometheus" not in cluster.available_services():
        pytest.skip("Prometheus cannot be had here")
    port = cluster.ports["PROMETHEUS_PORT"]

    def target() -> tuple[str, str]:
        (found,) = answer(port, "/api/v1/targets")["data"]["activeTargets"]
        return found["health"], found["lastError"]

    eventually(target, ("up", ""), deadline_seconds=120)
    rules = _rules(port)
    assert [rule["name"] for rule in rules] == [rule["alert"] for rule in RULES]
    eventually(lambda: {rule["health"] for rule in _rules(port)}, {"ok"}, deadline_seconds=180)
    found = answer(port, "/api/v1/query?query=flight_shuffle_memory_limit_bytes")["data"]["result"]
    assert {sample["metric"]["instance"] for sample in found} == {"flight-server:8816"}


@pytest.mark.parametrize(
    "command", ["check rules deploy/prometheus/alerts.yaml", "test rules tests/alerts_test.yaml"]
)
def test_prometheus_s_own_tool_takes_the_alerts_and_their_tests(command: str, cluster: Project) -> None:
    options = ["--rm", f"--volume={ROOT}:/repository:ro", "--workdir=/repository", "--entrypoint=promtool"]
    cluster.engine.run("run", *options, SERVICES["prometheus"]["image"], *command.split())


def _rules(port: int) -> list[dict[str, Any]]:
    groups = answer(port, "/api/v1/rules")["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_a_server_whose_process_is_killed_comes_back_with_what_is_durable(cluster: Project) -> None:
    found = cluster.container("flight-server")
    server = ServerContainer(found.engine, found.name, cluster.ports["FLIGHT_GRPC_PORT"])
    table = pa.table({"n": range(200_000)})
    server.put_durable("durable", table)
    started = server.fact("{{.State.StartedAt}}")
    server.kill_process()
    eventually(lambda: server.fact("{{.State.StartedAt}}") != started, expected=True, deadline_seconds=120)
    server.wait_until_healthy()
    with server.client() as client:
        assert client.get("durable").read_all() == table
    assert server.fact("{{.RestartCount}}") == "1"


def test_without_a_token_that_it_may_read_compose_ends_with_the_reason(
    images: Engine, tmp_path: Path
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("secret")
    token_file.chmod(0o600)
    with project(images, "flight-shuffle-token-tests", token_file) as refused:
        said = refused.compose("up", "--wait", "--wait-timeout=300", "flight-server", check=False)
        assert "flight-token" in said
        assert "chmod a+r" in refused.compose("logs", "flight-token")
        assert refused.container("flight-token").fact("{{.State.ExitCode}}") == "1"
        assert refused.container("flight-server").fact("{{.State.Status}}") == "created"
