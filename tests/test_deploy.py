"""What is shipped for running the server agrees with the server, and with itself."""

from __future__ import annotations

import json
import re
import runpy
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
from flight_server.supervisor import shares
from tests.support.certificates import self_signed
from tests.support.dockerfile import stages
from tests.support.polling import eventually
from tests.support.server_process import ROOT, ServerProcess

DEPLOY = ROOT / "deploy"
# What the process may need beside its memory limit.
HEADROOM_BYTES = 512 << 20
# What it may take to stop after its drain.
STOPPING_SECONDS = 30
README = (DEPLOY / "README.md").read_text()
BIN = Path(sys.executable).parent
PREFIX = Settings.model_config["env_prefix"]


STAGES = stages(ROOT / "Dockerfile")
IMAGE = STAGES["server"]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())


def checked(command: list[str | Path]) -> None:
    """The command finds nothing; what it found is in the failure."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def size_bytes(text: str) -> int:
    return TypeAdapter(ByteSize).validate_python(text)


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


@pytest.fixture(scope="module")
def compose(composed: dict[str, Any]) -> dict[str, Any]:
    return dict(composed["services"]["flight-server"])


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"{PREFIX}{name.upper()}", raising=False)
    monkeypatch.setenv(f"{PREFIX}TOKEN", "t")
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
    assert list(STAGES)[-1] == IMAGE.name
    assert json.loads(IMAGE.last("ENTRYPOINT")) == ["flight-server"]
    assert IMAGE.last("STOPSIGNAL") == "SIGTERM"
    assert IMAGE.last("EXPOSE").split() == [str(DEFAULT_PORT), str(DEFAULT_HTTP_PORT)]
    for image in (IMAGE, STAGES["spark"]):
        user = image.last("USER").split(":")[0]
        assert user.isdecimal()
        assert user != "0"


def test_the_base_image_is_of_one_release_of_debian() -> None:
    (base,) = {stage.base for stage in STAGES.values()} - STAGES.keys()
    assert base == "python:3.11-slim-bookworm"


def test_the_images_install_what_the_lock_names_by_its_hashes() -> None:
    for name in ("server-packages", "spark-packages"):
        (install,) = (rest for word, rest in STAGES[name].instructions if word == "RUN")
        assert "uv pip install" in install
        assert "--require-hashes --constraint requirements-dev.lock" in install
    for image in (IMAGE, STAGES["spark"]):
        installs = [rest for _, rest in image.instructions if "pip install" in rest]
        assert [("--no-deps" in each, each.endswith("/mnt/*.whl")) for each in installs] == [(True, True)]


def test_the_images_add_users_without_a_warning_of_useradd() -> None:
    for image in (IMAGE, STAGES["spark"]):
        (run,) = (rest for word, rest in image.instructions if word == "RUN" and "useradd" in rest)
        user = int(image.last("USER").split(":")[0])
        # SYS_UID_MAX of Debian.
        assert ("--system" in run) == (user <= 999)


def test_the_health_check_ends_by_itself_before_it_is_ended() -> None:
    check = IMAGE.last("HEALTHCHECK")
    options = dict(re.findall(r"--([a-z-]+)=(\w+)", check))
    deadline_seconds = runpy.run_path(str(DEPLOY / "health_check.py"))["DEADLINE_SECONDS"]
    # HTTP, HTTPS and gRPC; the rest is for Python's start.
    assert 3 * deadline_seconds <= 0.6 * seconds(options["timeout"])
    assert seconds(options["start-period"]) >= 60


def test_the_workflow_builds_each_image_once() -> None:
    commands = [step["run"] for step in WORKFLOW["jobs"]["deploy"]["steps"] if "run" in step]
    builds = [command for command in commands if command.startswith("docker build")]
    assert len(builds) == len(set(builds)) == 2


def test_what_the_image_copies_exists_and_is_sent_to_the_build() -> None:
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        rest.split() for stage in STAGES.values() for word, rest in stage.instructions if word == "COPY"
    ]
    sources = {source for *each, _ in copied if "--from=" not in each[0] for source in each}
    assert sources == set(sent)
    assert all((ROOT / source).exists() for source in sources)


def test_the_dockerfile_has_no_fault_that_hadolint_finds() -> None:
    checked([BIN / "hadolint", ROOT / "Dockerfile"])


@pytest.mark.parametrize(
    ("schema", "path"),
    [("compose-spec", "deploy/compose.yaml"), ("github-workflows", ".github/workflows/ci.yml")],
)
def test_what_others_read_is_as_their_schema_says(schema: str, path: str) -> None:
    checked([BIN / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", ROOT / path])


def test_what_compose_names_is_there(composed: dict[str, Any]) -> None:
    services = composed["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service.get("secrets", [])) <= set(composed["secrets"]), name
        build = service.get("build")
        assert build is None or build["target"] in STAGES, name
        for awaited, how in service.get("depends_on", {}).items():
            checked_by_image = services[awaited]["image"].startswith("flight-server")
            healthy = "healthcheck" in services[awaited] or checked_by_image
            assert how["condition"] == "service_started" or healthy, (name, awaited)
        for source, _, _ in (volume.partition(":") for volume in service.get("volumes", [])):
            if source.endswith((".py", ".toml", ".yaml")):
                assert (DEPLOY / source).is_file(), (name, source)
            else:
                assert source.startswith("./") or source in composed["volumes"], (name, source)


def test_in_compose_each_client_of_the_server_has_its_token(composed: dict[str, Any]) -> None:
    (secret,) = composed["secrets"]
    path = f"/run/secrets/{secret}"
    services = composed["services"]
    assert [name for name, service in services.items() if secret not in service.get("secrets", [])] == [
        "grafana"
    ]
    assert f"cat {path}" in services["flight-server"]["entrypoint"][2]
    assert f"cat {path}" in services["flight-token"]["entrypoint"][2]
    assert f"spark.flight.shuffle.tokenFile={path}" in services["job"]["command"]
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["authorization"]["credentials_file"] == path


@pytest.mark.parametrize(
    ("token", "exit_code"),
    [("secret", 0), ("", 1), (None, 1)],
    ids=["a token", "an empty file", "a file that cannot be read"],
)
@pytest.mark.parametrize("service", ["flight-token", "flight-server"])
def test_without_its_token_compose_ends_with_a_reason(
    service: str, token: str | None, exit_code: int, composed: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "token"
    if token is not None:
        path.write_text(token)
    program = tmp_path / "flight-server"
    # As the server, which refuses an empty one.
    program.write_text('#!/bin/sh\ntest -n "$FLIGHT_SERVER_TOKEN" || { echo no token >&2; exit 1; }\n')
    program.chmod(0o755)
    command = [
        each.replace("$$", "$").replace("/run/secrets/flight-token", str(path))
        for each in composed["services"][service]["entrypoint"]
    ]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == exit_code
    assert bool(done.stderr) == bool(exit_code)


def test_no_server_is_started_without_a_token(composed: dict[str, Any], compose: dict[str, Any]) -> None:
    assert compose["depends_on"] == {"flight-token": {"condition": "service_completed_successfully"}}
    assert "restart" not in composed["services"]["flight-token"]


def test_compose_publishes_ports_to_its_own_machine_alone_and_each_can_be_another(
    composed: dict[str, Any],
) -> None:
    published = [port for service in composed["services"].values() for port in service.get("ports", [])]
    found = [re.fullmatch(r"127\.0\.0\.1:\$\{([A-Z_]+):-([0-9]+)\}:([0-9]+)", port) for port in published]
    assert all(found)
    assert all(port[2] == port[3] for port in found if port)
    names = {port[1] for port in found if port}
    assert len(names) == len(published)
    opening = (DEPLOY / "compose.yaml").read_text().split("\nname:")[0]
    assert names == set(re.findall(r"[A-Z]+(?:_[A-Z]+)*_PORT", opening))


def test_the_spark_master_of_compose_takes_no_programs_over_http(composed: dict[str, Any]) -> None:
    options = composed["services"]["spark-master"]["environment"]["SPARK_MASTER_OPTS"]
    assert options == "-Dspark.master.rest.enabled=false"


def test_the_spark_image_becomes_what_its_arguments_name() -> None:
    command = runpy.run_path(str(DEPLOY / "spark_entry.py"))["command"]
    home = {"SPARK_HOME": "/opt/spark", "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1"}
    assert command(["spark-submit", "job.py"], home) == ["spark-submit", "job.py"]
    worker = ["/opt/spark/bin/spark-class", "org.apache.spark.deploy.worker.Worker", "spark://master:7077"]
    assert command(["worker", "spark://master:7077"], home) == worker
    driver = command(["driver", "--class", "Main"], home)
    assert driver[1:] == [
        "--conf",
        "spark.driver.bindAddress=10.0.0.1",
        "--deploy-mode",
        "client",
        "--class",
        "Main",
    ]


def test_the_spark_image_is_an_executor_by_the_variables_that_spark_sets() -> None:
    names = "DRIVER_URL EXECUTOR_ID EXECUTOR_CORES APPLICATION_ID EXECUTOR_POD_IP RESOURCE_PROFILE_ID EXECUTOR_POD_NAME"
    given = {f"SPARK_{name}": name.lower() for name in names.split()}
    options = {"SPARK_JAVA_OPT_10": "-Dlast", "SPARK_JAVA_OPT_9": "-Dfirst=a b"}
    paths = {"SPARK_HOME": "/opt/spark", "JAVA_HOME": "/java", "SPARK_CLASSPATH": "/mine"}
    command = runpy.run_path(str(DEPLOY / "spark_entry.py"))["command"]
    java = command(["executor"], {**given, **options, **paths, "SPARK_EXECUTOR_MEMORY": "1g"})
    assert java[:7] == ["/java/bin/java", "-Dfirst=a b", "-Dlast", "-Xms1g", "-Xmx1g", "-cp", java[6]]
    assert java[6] == "/opt/spark/conf:/mine:/opt/spark/jars/*"
    assert dict(zip(java[8::2], java[9::2], strict=True)) == {
        "--driver-url": "driver_url",
        "--executor-id": "executor_id",
        "--cores": "executor_cores",
        "--app-id": "application_id",
        "--hostname": "executor_pod_ip",
        "--resourceProfileId": "resource_profile_id",
        "--podName": "executor_pod_name",
    }


def test_the_container_of_compose_has_room_beside_the_memory_limit(
    compose: dict[str, Any], example: Settings
) -> None:
    assert compose["hostname"] in example.allowed_hosts
    assert size_bytes(compose["mem_limit"].replace("g", "GiB")) >= example.memory_limit + HEADROOM_BYTES


def test_compose_waits_for_the_drain(compose: dict[str, Any], example: Settings) -> None:
    grace_seconds = example.drain_grace_seconds + STOPPING_SECONDS
    assert seconds(compose["stop_grace_period"]) == grace_seconds
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    for text in (README, workflow):
        assert re.findall(r"docker stop(?: -\S+)? ?(\d*)", text) == [f"{grace_seconds:g}"]


def test_compose_mounts_what_the_example_names(compose: dict[str, Any], example: Settings) -> None:
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in compose["volumes"]}
    assert str(example.data_dir) in mounted
    assert (DEPLOY / mounted[compose["command"][1]]).is_file()
    assert {port.split(":")[-1] for port in compose["ports"]} == {str(example.port), str(example.http_port)}
    assert compose["read_only"] is True


def test_the_executors_have_shared_memory_for_broadcasts() -> None:
    spec = yaml.safe_load((DEPLOY / "kubernetes" / "spark-executor.yaml").read_text())["spec"]
    (mount,) = spec["containers"][0]["volumeMounts"]
    (volume,) = spec["volumes"]
    assert (mount["mountPath"], mount["name"]) == ("/dev/shm", volume["name"])
    assert volume["emptyDir"]["medium"] == "Memory"


def test_prometheus_scrapes_the_http_port() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"flight-server:{DEFAULT_HTTP_PORT}"]


def test_the_page_names_the_ports_of_workers_that_prometheus_scrapes() -> None:
    ports = [share.http_port for share in shares(load({"workers": 3, "memory_limit": "1GiB"}))]
    named = re.search(r"scrape all N, by default (.*?) and so on", README, re.DOTALL)
    assert named is not None
    assert [int(port) for port in re.findall(r"host:(\d+)", named[1])] == ports


def test_the_page_builds_the_image_that_the_chart_asks_for() -> None:
    chart = yaml.safe_load((DEPLOY / "helm" / "flight-shuffle" / "Chart.yaml").read_text())
    repository = re.search(r"--set image\.repository=(\S+)", README)
    assert repository is not None
    assert f"docker build --tag {repository[1]}:{chart['appVersion']} ." in README
    assert f"docker push {repository[1]}:{chart['appVersion']}" in README


@pytest.mark.parametrize("way", ["http", pytest.param("tls", marks=pytest.mark.long), "grpc"])
def test_the_health_check_tells_a_serving_server_from_an_ended_one(
    way: str, tmp_path: Path, flight_server_process: Callable[..., ServerProcess]
) -> None:
    options: dict[str, Any] = {}
    if way == "tls":
        cert, key = self_signed(tmp_path)
        # It presents no certificate itself.
        options |= {"tls_cert": cert, "tls_key": key, "tls_client_ca": cert}
    if way == "grpc":
        options["http_port"] = -1
    server = flight_server_process(**options)
    http = "-1" if server.http is None else server.http.rpartition(":")[2]
    ports = {f"{PREFIX}PORT": server.location.rpartition(":")[2], f"{PREFIX}HTTP_PORT": http}

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(DEPLOY / "health_check.py")]
        return subprocess.run(command, env=ports, capture_output=True, text=True, timeout=60, check=False)

    # Its own deadline is short; a container's first failure is not the last word either.
    eventually(lambda: check().returncode, 0, deadline_seconds=60)
    assert server.terminate() == 0, server.tail()
    assert check().returncode == 1


def test_the_health_check_takes_the_address_of_a_service_for_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    port_of = runpy.run_path(str(DEPLOY / "health_check.py"))["port_of"]
    monkeypatch.setenv(f"{PREFIX}HTTP_PORT", "tcp://10.0.0.1:8080")
    assert port_of(f"{PREFIX}HTTP_PORT", 8816) == 8816
    monkeypatch.setenv(f"{PREFIX}HTTP_PORT", "-1")
    assert port_of(f"{PREFIX}HTTP_PORT", 8816) == -1
