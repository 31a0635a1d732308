"""What is shipped for running the server agrees with the server, and with itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ByteSize, TypeAdapter

from flight_server.config import Settings, load
from flight_server.protocol import DEFAULT_HTTP_PORT, DEFAULT_PORT
from tests.support.polling import eventually
from tests.support.server_process import ROOT, ServerProcess

DEPLOY = ROOT / "deploy"
# What the process may need beside its memory limit.
HEADROOM_BYTES = 512 << 20
PREFIX = Settings.model_config["env_prefix"]


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions with their arguments, continuation lines joined."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined)]


DOCKERFILE = instructions(ROOT / "Dockerfile")
LAST_FROM = max(index for index, (word, _) in enumerate(DOCKERFILE) if word == "FROM")
IMAGE = dict(DOCKERFILE[LAST_FROM:])


def size_bytes(text: str) -> int:
    return TypeAdapter(ByteSize).validate_python(text)


def manifests(name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
    return {document["kind"]: document for document in documents}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "docker-compose.yaml").read_text())["services"]["flight-server"])


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    return dict(manifests("flight-server.yaml")["StatefulSet"]["spec"]["template"]["spec"])


@pytest.fixture(scope="module")
def environment(pod: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod["containers"][0]["env"]}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"{PREFIX}{name.upper()}", raising=False)
    return load({}, DEPLOY / "flight-server.toml")


def test_the_example_configuration_is_what_the_server_reads(example: Settings) -> None:
    assert (example.port, example.http_port) == (DEFAULT_PORT, DEFAULT_HTTP_PORT)


def test_the_commented_keys_of_the_example_exist_too() -> None:
    text = re.sub(r"^# (?=\w+ = )", "", (DEPLOY / "flight-server.toml").read_text(), flags=re.MULTILINE)
    assert tomllib.loads(text).keys() <= Settings.model_fields.keys()


def test_each_variable_that_is_set_anywhere_is_a_setting() -> None:
    settings = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for path in [ROOT / "Dockerfile", *DEPLOY.rglob("*.*")]:
        assert set(re.findall(rf"{PREFIX}[A-Z_0-9]+", path.read_text())) <= settings, path


def test_the_image_runs_the_server_directly_and_not_as_root() -> None:
    assert json.loads(IMAGE["ENTRYPOINT"]) == ["flight-server"]
    assert IMAGE["STOPSIGNAL"] == "SIGTERM"
    user = IMAGE["USER"].split(":")[0]
    assert user.isdecimal()
    assert user != "0"
    assert IMAGE["EXPOSE"].split() == [str(DEFAULT_PORT), str(DEFAULT_HTTP_PORT)]


def test_what_the_image_copies_exists_and_is_sent_to_the_build() -> None:
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for word, rest in DOCKERFILE:
        if word == "COPY" and "--from=" not in rest:
            for source in rest.split()[:-1]:
                assert source in sent
                assert (ROOT / source).exists()


def test_the_container_of_compose_has_room_beside_the_memory_limit(
    compose: dict[str, Any], example: Settings
) -> None:
    assert size_bytes(compose["mem_limit"].replace("g", "GiB")) >= example.memory_limit + HEADROOM_BYTES


def test_compose_waits_for_the_drain(compose: dict[str, Any], example: Settings) -> None:
    assert float(compose["stop_grace_period"].removesuffix("s")) > example.drain_grace_seconds


def test_compose_mounts_what_the_example_names(compose: dict[str, Any], example: Settings) -> None:
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in compose["volumes"]}
    assert str(example.data_dir) in mounted
    assert (DEPLOY / mounted[compose["command"][1]]).is_file()
    assert {port.split(":")[-1] for port in compose["ports"]} == {str(example.port), str(example.http_port)}
    assert compose["read_only"] is True


def test_the_pod_has_room_beside_the_memory_limit(pod: dict[str, Any], environment: dict[str, str]) -> None:
    resources = pod["containers"][0]["resources"]
    limit_bytes = size_bytes(resources["limits"]["memory"] + "B")
    assert limit_bytes >= size_bytes(environment[f"{PREFIX}MEMORY_LIMIT"]) + HEADROOM_BYTES
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_the_pod_has_a_volume_larger_than_the_disk_limit(environment: dict[str, str]) -> None:
    (claim,) = manifests("flight-server.yaml")["StatefulSet"]["spec"]["volumeClaimTemplates"]
    volume_bytes = size_bytes(claim["spec"]["resources"]["requests"]["storage"] + "B")
    assert volume_bytes > size_bytes(environment[f"{PREFIX}DISK_LIMIT"])


def test_the_pod_is_given_longer_than_the_drain(pod: dict[str, Any], environment: dict[str, str]) -> None:
    grace_seconds = float(environment[f"{PREFIX}DRAIN_GRACE_SECONDS"])
    assert pod["terminationGracePeriodSeconds"] > grace_seconds
    liveness = pod["containers"][0]["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 2 * grace_seconds


def test_the_pod_is_probed_through_grpc_and_is_not_root(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"]["port"] == DEFAULT_PORT
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert str(pod["securityContext"]["runAsUser"]) == IMAGE["USER"].split(":")[0]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {IMAGE["VOLUME"]}


def test_the_service_finds_the_pods_and_names_each() -> None:
    found = manifests("flight-server.yaml")
    service, stateful_set = found["Service"], found["StatefulSet"]["spec"]
    labels = stateful_set["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert stateful_set["selector"]["matchLabels"].items() <= labels.items()
    assert stateful_set["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert [port["port"] for port in service["spec"]["ports"]] == [DEFAULT_PORT, DEFAULT_HTTP_PORT]


def test_the_executors_have_shared_memory_for_broadcasts() -> None:
    spec = manifests("spark-executor.yaml")["Pod"]["spec"]
    (mount,) = spec["containers"][0]["volumeMounts"]
    (volume,) = spec["volumes"]
    assert (mount["mountPath"], mount["name"]) == ("/dev/shm", volume["name"])
    assert volume["emptyDir"]["medium"] == "Memory"


def test_the_names_by_which_the_servers_are_asked_are_allowed(
    example: Settings, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "flight-server" in example.allowed_hosts
    allowed = environment[f"{PREFIX}ALLOWED_HOSTS"].replace("$(POD_NAMESPACE)", "spark")
    monkeypatch.setenv(f"{PREFIX}ALLOWED_HOSTS", allowed)
    advertised = environment[f"{PREFIX}ADVERTISE_HOST"].replace("$(POD_NAME)", "flight-server-0")
    for domain in ("", ".spark", ".spark.svc", ".spark.svc.cluster.local"):
        assert any(f"{advertised}{domain}".endswith(name) for name in load({}).allowed_hosts)


def test_prometheus_scrapes_the_http_port() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"flight-server:{DEFAULT_HTTP_PORT}"]
    annotations = manifests("flight-server.yaml")["StatefulSet"]["spec"]["template"]["metadata"][
        "annotations"
    ]
    assert annotations["prometheus.io/path"] == job["metrics_path"]
    assert annotations["prometheus.io/port"] == str(DEFAULT_HTTP_PORT)


def test_the_health_check_tells_a_serving_server_from_an_ended_one(
    flight_server_process: Callable[..., ServerProcess],
) -> None:
    server = flight_server_process()
    port = server.location.rpartition(":")[2]

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(DEPLOY / "health_check.py")]
        return subprocess.run(
            command, env={f"{PREFIX}PORT": port}, capture_output=True, text=True, timeout=60, check=False
        )

    # Its own deadline is short; a container's first failure is not the last word either.
    eventually(lambda: check().returncode, 0, deadline_seconds=60)
    assert server.terminate() == 0, server.tail()
    assert check().returncode == 1
