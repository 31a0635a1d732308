"""The chart and Spark's executors on a Kubernetes of one node, with the images that the Dockerfile makes.

A pod with the Spark image is the user: it reads and writes with the client, and is the driver of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.conftest import timed
from tests.support import kubernetes_programs
from tests.support.container_engine import ROOT, Engine
from tests.support.kubernetes_node import Node, node
from tests.support.polling import eventually
from tests.support.server_containers import SERVER_IMAGE, SPARK_IMAGE

pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(3600)]

RELEASE, SERVERS = "flight-server", 2
POD_SECONDS = 300.0
CHART = ROOT / "deploy" / "helm" / "flight-shuffle"
LOCATION = ",".join(f"grpc://{RELEASE}-{each}.{RELEASE}.default.svc:8815" for each in range(SERVERS))
SETTINGS = [
    *("settings.memory_limit=256MiB", "settings.disk_limit=512MiB", "persistence.size=1Gi"),
    "resources.requests.cpu=100m",  # executors have to fit beside them
]
VALUES = [f"replicas={SERVERS}", f"image.repository={SERVER_IMAGE}", "image.tag=latest", *SETTINGS]

BEGIN = f"""
import pyarrow as pa
from spark_client import ShuffleClient
client = ShuffleClient({LOCATION!r}, token=open("/etc/flight-shuffle/token").read())
rows = pa.table({{"row": range(100_000)}})
changelogs = [client.changelog(f"{{name}}-{{number}}", rows.schema) for number in range(8)]  # on both servers
"""
PUT = """
for changelog in changelogs:
    changelog.put(rows)
"""
READ = """
for changelog in changelogs:
    assert changelog.snapshot().table.sort_by("row") == rows, changelog
print("all there")
"""
READ_ON = """
import os
from spark_client import FlightShuffleError
print("reading", flush=True)
while not os.path.exists("/tmp/enough"):
    for changelog in changelogs:
        try:
            assert changelog.snapshot().table.num_rows == len(rows), changelog
        except FlightShuffleError:
            pass  # its server starts for longer than a client waits
"""


@pytest.fixture(scope="module")
def cluster(images: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with both images, and the pod of the user."""
    if (reason := kubernetes_programs.missing()) is not None:
        pytest.skip(reason)
    with timed("Kubernetes' programs"):
        kubernetes_programs.build()
    with node() as started:
        for image in (SERVER_IMAGE, SPARK_IMAGE):
            archive = tmp_path_factory.mktemp("image") / f"{image}.tar"
            images.run("save", f"{image}:latest", "--output", archive)
            started.import_image(archive)
            archive.unlink()
        _make_user(started)
        yield started


def _make_user(cluster: Node) -> None:
    cluster.kubectl("create", "secret", "generic", "flight-shuffle-token", "--from-literal=token=of-the-test")
    cluster.kubectl("create", "serviceaccount", "user")
    cluster.kubectl("create", "rolebinding", "user", "--clusterrole=edit", "--serviceaccount=default:user")
    container = {
        "name": "user",
        "image": f"{SPARK_IMAGE}:latest",
        "imagePullPolicy": "Never",
        "args": ["sleep", "infinity"],
        "volumeMounts": [{"name": "token", "mountPath": "/etc/flight-shuffle"}],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    }
    secret = {"name": "token", "secret": {"secretName": "flight-shuffle-token"}}
    spec = {"serviceAccountName": "user", "containers": [container], "volumes": [secret]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"}, "spec": spec}
    cluster.apply(pod)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/user", f"--timeout={POD_SECONDS:.0f}s")
    for file in ("deploy/exchange_job.py", "deploy/kubernetes/spark-executor.yaml"):
        place = f"/tmp/{Path(file).name}"  # of the pod
        cluster.kubectl("cp", file, f"user:{place}")


@pytest.fixture(scope="module")
def servers(cluster: Node) -> Node:
    """The cluster with the chart's servers, ready, each with a volume of the node."""
    for number in range(SERVERS):
        directory = cluster.directory / f"volume-{number}"
        directory.mkdir()
        directory.chmod(0o777)
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"volume-{number}"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": str(directory)},
            },
        }
        cluster.apply(volume)
    with timed("helm install --wait"):
        _helm(cluster, "install")
    return cluster


def _helm(cluster: Node, verb: str, *values: str) -> None:
    settings = [f"--set={value}" for value in (*VALUES, *values)]
    cluster.run("helm", verb, RELEASE, CHART, *settings, "--wait", f"--timeout={POD_SECONDS:.0f}s")


def _code(name: str, *code: str) -> str:
    """Of a program over changelogs of this name."""
    return "".join((f"name = {name!r}\n", BEGIN, *code))


def _python(cluster: Node, code: str) -> str:
    return cluster.kubectl("exec", "--stdin", "user", "--", "python", "-", text=code)


def _restarts(cluster: Node, pod: str) -> int:
    path = "jsonpath={.status.containerStatuses[0].restartCount}"
    return int(cluster.kubectl("get", "pod", pod, "-o", path) or 0)


def _ready_servers(cluster: Node) -> str:
    return cluster.kubectl("get", "statefulset", RELEASE, "-o", "jsonpath={.status.readyReplicas}")


def test_durable_data_outlives_killed_servers_and_deleted_pods(servers: Node) -> None:
    _python(servers, _code("killed", PUT, READ))

    # From outside: a container's first process takes no SIGKILL from inside of it.
    servers.run("pkill", "--signal=KILL", "--full", "flight-server --config")
    eventually(
        lambda: all(_restarts(servers, f"{RELEASE}-{pod}") for pod in range(SERVERS)),
        expected=True,
        deadline_seconds=POD_SECONDS,
    )
    eventually(lambda: _ready_servers(servers), expected=str(SERVERS), deadline_seconds=POD_SECONDS)
    assert "all there" in _python(servers, _code("killed", READ))

    servers.kubectl("delete", "pod", f"{RELEASE}-0", "--grace-period=0", "--force")
    servers.kubectl("rollout", "status", f"statefulset/{RELEASE}", f"--timeout={POD_SECONDS:.0f}s")
    assert "all there" in _python(servers, _code("killed", READ))


def test_no_reader_misses_rows_while_an_upgrade_replaces_each_server(servers: Node) -> None:
    _python(servers, _code("upgraded", PUT))
    command = ["kubectl", "exec", "--stdin", "user", "--", "python", "-"]
    reading = servers.start(*command, text=_code("upgraded", READ_ON))
    assert reading.stdout is not None
    assert reading.stdout.readline() == "reading\n"
    before = servers.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}").split()

    _helm(servers, "upgrade", "settings.drain_grace_seconds=9")
    servers.kubectl("exec", "user", "--", "touch", "/tmp/enough")  # of the pod
    _, errors = reading.communicate(timeout=POD_SECONDS)

    after = servers.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.uid}").split()
    assert len(set(after) - set(before)) == SERVERS
    assert reading.returncode == 0, errors
    assert "all there" in _python(servers, _code("upgraded", READ))


@pytest.mark.parametrize("where", ["the chart's servers", "servers in executors"])
def test_spark_on_kubernetes_runs_the_job(servers: Node, where: str) -> None:
    settings = {
        "spark.driver.host": "$POD_IP",
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "1g",
        "spark.kubernetes.authenticate.driver.serviceAccountName": "user",
        "spark.kubernetes.container.image": f"{SPARK_IMAGE}:latest",
        "spark.kubernetes.executor.podTemplateFile": "/tmp/spark-executor.yaml",  # of the pod
        "spark.kubernetes.executor.request.cores": "100m",
        "spark.kubernetes.executor.secrets.flight-shuffle-token": "/etc/flight-shuffle",
    }
    if where == "the chart's servers":
        settings["spark.flight.shuffle.location"] = LOCATION
        settings["spark.flight.shuffle.tokenFile"] = "/etc/flight-shuffle/token"
    options = " ".join(f'--conf "{key}={value}"' for key, value in settings.items())
    job = f"spark-submit --master k8s://https://kubernetes.default.svc {options} /tmp/exchange_job.py"

    with timed(f"spark-submit with {where}"):
        output = servers.kubectl("exec", "user", "--", "bash", "-c", job, seconds=2 * POD_SECONDS)

    assert "the answer is the same" in output
