"""The Helm chart: what it renders is what Kubernetes' schemas allow, what the server reads, and agrees with itself.

``deploy/kubernetes/flight-server.yaml`` is what its default values give, and is looked at in every run. Where there is
Helm (the variable HELM, or on PATH), other values are rendered, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ByteSize, TypeAdapter

from flight_server.config import Settings, load
from flight_server.protocol import DEFAULT_HTTP_PORT, DEFAULT_PORT
from spark_client.connection import check_locations
from spark_client.version import __version__
from tests.support.dockerfile import stages
from tests.support.server_process import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "flight-shuffle"
PLAIN = DEPLOY / "kubernetes" / "flight-server.yaml"
HELM = os.environ.get("HELM") or shutil.which("helm")
# The oldest that the chart allows, and the newest whose schemas the package has.
KUBERNETES = ("1.25.0", "1.37.0")
BIN = Path(sys.executable).parent
# What the process may need beside its memory limit.
HEADROOM_BYTES = 512 << 20
GIB = 1 << 30
IMAGE = stages(ROOT / "Dockerfile")["server"]
PREFIX = Settings.model_config["env_prefix"]
RULES = "groups: [{name: flight, rules: [{alert: Down, expr: up == 0, annotations: {summary: '{{ $labels.pod }}'}}]}]"
needs_helm = pytest.mark.skipif(HELM is None, reason="needs Helm, in the variable HELM or on PATH")

Documents = dict[str, Any]


def size_bytes(text: str) -> int:
    return TypeAdapter(ByteSize).validate_python(text)


def quantity_bytes(text: str) -> int:
    """Of Kubernetes, where 4Gi are 4GiB."""
    return size_bytes(text + "B")


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=120, check=False)


def rendered(values: dict[str, Any], directory: Path, version: str = KUBERNETES[0]) -> str:
    """The chart's text with these values; AssertionError with what Helm says."""
    path = directory / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    done = helm("template", "flight-server", CHART, "--kube-version", version, "--values", path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> Documents:
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def pod_of(found: Documents) -> Documents:
    return dict(found["StatefulSet"]["spec"]["template"]["spec"])


def environment_of(found: Documents) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod_of(found)["containers"][0]["env"]}


def settings_of(found: Documents) -> dict[str, Any]:
    """What the server finds in its file."""
    return tomllib.loads(found["ConfigMap"]["data"]["flight-server.toml"])


def check_schemas(text: str, directory: Path) -> None:
    """Kubernetes, of the oldest and newest versions, takes it. Kinds that are not its own are left out."""
    kept = [each for each in yaml.safe_load_all(text) if not each["apiVersion"].startswith("monitoring.")]
    path = directory / "kept.yaml"
    path.write_text(yaml.safe_dump_all(kept))
    for version in KUBERNETES:
        command: list[str | Path] = [
            BIN / "kubernetes-validate",
            "--strict",
            "-k",
            version.removesuffix(".0"),
            path,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def plain() -> Documents:
    return documents(PLAIN.read_text())


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"{PREFIX}{name.upper()}", raising=False)


def test_the_plain_manifest_and_the_executors_pod_are_what_kubernetes_takes(tmp_path: Path) -> None:
    check_schemas(PLAIN.read_text(), tmp_path)
    check_schemas((DEPLOY / "kubernetes" / "spark-executor.yaml").read_text(), tmp_path)


def test_the_default_values_are_as_the_chart_s_schema_says() -> None:
    command: list[str | Path] = [
        BIN / "check-jsonschema",
        "--schemafile",
        CHART / "values.schema.json",
        CHART / "values.yaml",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_chart_s_image_is_of_this_version() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


def test_the_server_reads_its_file(plain: Documents, no_settings: None, tmp_path: Path) -> None:
    path = tmp_path / "flight-server.toml"
    path.write_text(plain["ConfigMap"]["data"]["flight-server.toml"])
    settings = load({}, path)
    assert settings.memory_limit == size_bytes("3584MiB")
    pod = pod_of(plain)
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    folder, _, name = container["args"][1].rpartition("/")
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mounts[folder]]
    assert volume["configMap"]["name"] == plain["ConfigMap"]["metadata"]["name"]
    assert name in plain["ConfigMap"]["data"]


def test_no_variable_of_the_image_hides_a_setting_of_the_file() -> None:
    excluded = yaml.safe_load((CHART / "values.schema.json").read_text())
    names = excluded["properties"]["settings"]["propertyNames"]["not"]["enum"]
    in_image = re.findall(rf"{PREFIX}([A-Z_]+)=", dict(IMAGE.instructions)["ENV"])
    in_pod = re.findall(rf"{PREFIX}([A-Z_]+)", (CHART / "templates" / "statefulset.yaml").read_text())
    assert {name.lower() for name in [*in_image, *in_pod]} <= set(names)


def test_the_pod_has_room_beside_the_memory_limit(plain: Documents) -> None:
    resources = pod_of(plain)["containers"][0]["resources"]
    limit_bytes = quantity_bytes(resources["limits"]["memory"])
    assert limit_bytes == size_bytes(settings_of(plain)["memory_limit"]) + HEADROOM_BYTES
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert "cpu" not in resources["limits"]


def test_the_pod_has_a_volume_larger_than_the_disk_limit(plain: Documents) -> None:
    (claim,) = plain["StatefulSet"]["spec"]["volumeClaimTemplates"]
    volume_bytes = quantity_bytes(claim["spec"]["resources"]["requests"]["storage"])
    assert volume_bytes > size_bytes(settings_of(plain)["disk_limit"])


def test_the_pod_is_given_longer_than_the_pause_and_the_drain(plain: Documents) -> None:
    pod = pod_of(plain)
    pause_seconds = float(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    drain_seconds = settings_of(plain)["drain_grace_seconds"]
    assert pod["terminationGracePeriodSeconds"] >= pause_seconds + drain_seconds + 30


def test_the_pod_is_probed_and_not_killed_while_it_drains(plain: Documents) -> None:
    (container,) = pod_of(plain)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": DEFAULT_PORT, "http": DEFAULT_HTTP_PORT}
    for probe, path in {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}.items():
        assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http", "scheme": "HTTP"}


def test_the_pod_is_the_image_s_user_and_writes_its_volumes_alone(plain: Documents) -> None:
    pod = pod_of(plain)
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == IMAGE.last(
        "USER"
    )
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert written == {IMAGE.last("VOLUME"), "/tmp"}
    assert pod["automountServiceAccountToken"] is False


def test_each_selector_finds_the_pods(plain: Documents) -> None:
    stateful_set = plain["StatefulSet"]["spec"]
    labels = stateful_set["template"]["metadata"]["labels"].items()
    spread = pod_of(plain)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    for selector in (
        plain["Service"]["spec"]["selector"],
        stateful_set["selector"]["matchLabels"],
        plain["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        plain["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        spread,
    ):
        assert selector.items() <= labels
    assert stateful_set["serviceName"] == plain["Service"]["metadata"]["name"]
    assert plain["Service"]["spec"]["clusterIP"] == "None"
    assert [port["port"] for port in plain["Service"]["spec"]["ports"]] == [DEFAULT_PORT, DEFAULT_HTTP_PORT]
    assert pod_of(plain)["serviceAccountName"] == plain["ServiceAccount"]["metadata"]["name"]


def test_the_names_by_which_the_servers_are_asked_are_allowed(
    plain: Documents, monkeypatch: pytest.MonkeyPatch, no_settings: None
) -> None:
    environment = environment_of(plain)
    allowed = environment[f"{PREFIX}ALLOWED_HOSTS"].replace("$(POD_NAMESPACE)", "spark")
    monkeypatch.setenv(f"{PREFIX}ALLOWED_HOSTS", allowed)
    advertised = environment[f"{PREFIX}ADVERTISE_HOST"]
    advertised = advertised.replace("$(POD_NAME)", "flight-server-0").replace("$(POD_NAMESPACE)", "spark")
    assert advertised == "flight-server-0.flight-server.spark.svc"
    for name in (
        advertised,
        f"{advertised}.cluster.local",
        "flight-server-0.flight-server",
        "flight-server.spark",
    ):
        assert any(f".{name}".endswith(allowed) for allowed in load({}).allowed_hosts), name


@needs_helm
def test_the_plain_manifest_is_what_the_chart_s_default_values_give(tmp_path: Path) -> None:
    header, _, rest = PLAIN.read_text().partition("\n")
    assert header == "# helm template flight-server deploy/helm/flight-shuffle"
    assert rest == rendered({}, tmp_path, KUBERNETES[1])


@needs_helm
def test_helm_s_linter_finds_nothing() -> None:
    done = helm("lint", "--strict", CHART, "--kube-version", KUBERNETES[1])
    assert done.returncode == 0, done.stdout


@needs_helm
def test_with_everything_that_can_be_asked_for_it_is_still_what_kubernetes_takes(tmp_path: Path) -> None:
    values = {
        "fullnameOverride": "flight",
        "replicas": 3,
        "image": {"repository": "registry/flight", "tag": "2"},
        "imagePullSecrets": [{"name": "pull"}],
        "settings": {"drain_grace_seconds": 90.5, "source_roots": ["/data"], "max_datasets": 2_000_000},
        "resources": {"limits": {"memory": "6Gi", "cpu": 4}},
        "persistence": {"storageClassName": "fast"},
        "access": {"tokenFileSecret": {"name": "principals"}},
        "tls": {"secretName": "certificate", "clientCaKey": "ca.crt"},
        "serviceAccount": {"name": "flights", "annotations": {"role": "reader"}},
        "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"name": "spark"}}}]},
        "serviceMonitor": {
            "enabled": True,
            "tlsConfig": {"insecureSkipVerify": True},
            "labels": {"release": "p"},
        },
        "prometheusRule": {"enabled": True, "rules": RULES},
        "extraEnv": [{"name": "AWS_REGION", "value": "eu-west-1"}],
        "extraVolumes": [{"name": "files", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "files", "mountPath": "/data"}],
        "podAnnotations": {"note": "a"},
        "podLabels": {"team": "data"},
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "disk", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
    }
    text = rendered(values, tmp_path)
    check_schemas(text, tmp_path)
    found = documents(text)
    pod = pod_of(found)
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] == 5 + 91 + 30
    assert container["resources"]["limits"] == {"memory": "6Gi", "cpu": 4}
    assert (
        quantity_bytes(container["resources"]["requests"]["memory"])
        == size_bytes("3584MiB") + HEADROOM_BYTES + GIB
    )
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert found["PrometheusRule"]["spec"] == yaml.safe_load(RULES)
    monitor = found["ServiceMonitor"]["spec"]
    assert found["Service"]["metadata"]["labels"][monitor["jobLabel"]] == "flight-shuffle"
    (endpoint,) = monitor["endpoints"]
    assert (endpoint["scheme"], endpoint["authorization"]["credentials"]["key"]) == ("https", "token")
    secrets = {
        volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume
    }
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    settings = settings_of(found)
    assert secrets == {"tls": "certificate", "access": "principals"}
    assert settings["tls_cert"] == f"{mounted['tls']}/tls.crt"
    assert settings["tls_client_ca"] == f"{mounted['tls']}/ca.crt"
    assert settings["token_file"] == f"{mounted['access']}/tokens.toml"
    assert settings["max_datasets"] == 2_000_000


@needs_helm
def test_without_volumes_and_tokens_it_renders_too(tmp_path: Path) -> None:
    values = {
        "access": {"tokenSecret": {"name": ""}, "insecure": True},
        "persistence": {"enabled": False},
        "serviceAccount": {"create": False},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
    }
    text = rendered(values, tmp_path)
    check_schemas(text, tmp_path)
    found = documents(text)
    assert set(found) == {"ConfigMap", "Service", "StatefulSet"}
    assert pod_of(found)["serviceAccountName"] == "default"
    assert f"{PREFIX}TOKEN" not in environment_of(found)
    assert settings_of(found)["insecure"] is True


@needs_helm
def test_what_helm_says_after_an_installation_names_each_server(tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    # Helm shows these notes only where there is a Kubernetes.
    shutil.move(chart / "templates" / "NOTES.txt", chart / "notes.txt")
    (chart / "templates" / "notes.yaml").write_text(
        'notes: |\n  {{- tpl (.Files.Get "notes.txt") . | nindent 2 }}\n'
    )
    values = [
        "--set",
        "replicas=2,tls.secretName=certificate",
        "--namespace",
        "spark",
        "--kube-version",
        KUBERNETES[0],
    ]
    done = helm("template", "flight", chart, "--show-only", "templates/notes.yaml", *values)
    assert done.returncode == 0, done.stderr
    notes = yaml.safe_load(done.stdout)["notes"]
    (location,) = re.findall(r"spark\.flight\.shuffle\.location=(\S+)", notes)
    each = [f"grpc+tls://flight-{number}.flight.spark.svc:8815" for number in range(2)]
    assert [*check_locations(location)] == each
    assert "create secret generic flight-shuffle-token" in notes
    assert "https://localhost:8816" in notes


@needs_helm
def test_other_settings_restart_the_pods(tmp_path: Path) -> None:
    sums = {
        documents(rendered({"settings": {"lease_seconds": seconds}}, tmp_path))["StatefulSet"]["spec"][
            "template"
        ]["metadata"]["annotations"]["checksum/config"]
        for seconds in (60, 61)
    }
    assert len(sums) == 2


@needs_helm
@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"resources": {"limits": {"memory": "4095Mi"}}}, "limits.memory 4095Mi is too small"),
        ({"resources": {"requests": {"memory": "1Gi"}}}, "requests.memory 1Gi is too small"),
        ({"settings": {"memory_limit": "4GB"}, "resources": {"limits": {"memory": "4G"}}}, "is too small"),
        ({"persistence": {"size": "45Gi"}}, "must be below persistence.size"),
        ({"persistence": {"enabled": False, "size": "45Gi"}}, "the pod is evicted"),
        ({"access": {"tokenSecret": {"name": ""}}}, "or access.insecure"),
        ({"tls": {"clientCaKey": "ca.crt"}}, "tls.secretName, which is empty"),
        ({"prometheusRule": {"enabled": True}}, "--set-file prometheusRule.rules"),
        ({"settings": {"memory_limit": "half"}}, "settings.memory_limit"),
        ({"settings": {"workers": 4}}, "workers"),
        ({"settings": {"log_format": "text"}}, "log_format"),
        ({"networkPolicy": {"from": []}}, "networkPolicy.from"),
        ({"replica": 2}, "replica"),
    ],
)
def test_values_that_do_not_agree_are_refused_with_a_sentence(
    values: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError) as refused:
        rendered(values, tmp_path)
    # Helm says the paths of a schema with slashes or dots, by its version.
    assert sentence in str(refused.value).replace("/", ".").replace("at '.", "at '")
