"""A Kubernetes of one node for tests, in namespaces of its own.

Guarantee: it has no network but its own, so its pods reach each other and nothing else. When :func:`node` is left, or
its process dies, all of it has ended: it runs in a namespace of processes whose first one ends with its parent.

    parent        :class:`Node`: kubectl, Helm and images, by ``nsenter``
    first process ``python -m tests.support.kubernetes_node``: etcd, containerd, the API server, controllers, scheduler,
                  kubelet, kube-proxy and CoreDNS as its children; no init system, no kubeadm. It ends when one does.

What such a machine lacks
    CAP_SYS_RESOURCE: containers run with the process's own limits and score (``KubeletInUserNamespace``,
    ``restrict_oom_score_adj``). A registry: images are imported from archives.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import kubernetes_programs
from tests.support.kubernetes_programs import DEBIAN, DIRECTORY, PAUSE_IMAGE, ROOT

NODE = "one-node"
START_SECONDS = 300.0
API_SERVER = "https://127.0.0.1:6443"
_NODE_ADDRESS = "10.87.0.1"
_PODS, _SERVICES, _FIRST_SERVICE, _DNS = "10.88.0.0/16", "10.96.0.0/16", "10.96.0.1", "10.96.0.10"
_TOKEN = "of-the-administrator"  # of a cluster that no network reaches
_CGROUP = "flight-shuffle-tests"
_CGROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "memory", "pids", "systemd")


@dataclass(frozen=True)
class Node:
    """One that is ready. ``directory``: its files, among them a log for each program."""

    directory: Path
    pid: int

    def run(self, *command: str | Path, text: str | None = None, seconds: float = 600) -> str:
        """What a command in its namespaces writes. Raises RuntimeError with it: the command failed."""
        process = self.start(*command, text=text)
        try:
            output, errors = process.communicate(timeout=seconds)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            line = " ".join(map(str, command))
            raise RuntimeError(f"{line} exited with {process.returncode}:\n{output[-4000:]}{errors[-4000:]}")
        return output

    def start(self, *command: str | Path, text: str | None = None) -> subprocess.Popen[str]:
        """Begin a command in its namespaces, with this input."""
        process = subprocess.Popen(
            ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid", f"--wd={ROOT}", *command],
            env={**kubernetes_programs.environment(), "KUBECONFIG": str(self.directory / "admin.conf")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(text or "")
        process.stdin.close()
        process.stdin = None
        return process

    def kubectl(self, *arguments: str | Path, text: str | None = None, seconds: float = 600) -> str:
        """As ``run``."""
        return self.run("kubectl", *arguments, text=text, seconds=seconds)

    def apply(self, *documents: dict[str, Any]) -> None:
        """Let the cluster have these objects. Raises RuntimeError."""
        self.kubectl("apply", "--filename=-", text="\n---\n".join(map(json.dumps, documents)))

    def import_image(self, archive: Path) -> None:
        """Have the images of an archive that ``docker save`` has written. Raises RuntimeError."""
        _import(self.run, self.directory, archive)


@contextmanager
def node() -> Iterator[Node]:
    """A node that takes pods. Raises RuntimeError: a program could not be built, or has ended."""
    kubernetes_programs.build()
    with tempfile.TemporaryDirectory(prefix="kubernetes-") as short:
        directory = Path(short)  # a path of a socket has at most 107 bytes
        namespaces = ["--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
        first = [sys.executable, "-m", "tests.support.kubernetes_node", short]
        # The signal goes to unshare, which ends its child as it ends.
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, *first]
        with (directory / "first.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            _wait_until_ready(directory, process)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield Node(directory, int(children[0]))
        finally:
            process.kill()
            process.wait()
            _remove_cgroups()
            _copy_logs(directory)


def _wait_until_ready(directory: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not (directory / "ready").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                f"Kubernetes has not started:\n{(directory / 'first.log').read_text()[-4000:]}"
            )
        time.sleep(0.2)


def _copy_logs(directory: Path) -> None:
    """Keep them for who looks after a failure."""
    logs = DIRECTORY / "logs"
    logs.mkdir(exist_ok=True)
    for log in directory.glob("*.log"):
        shutil.copy(log, logs)


def _remove_cgroups() -> None:
    """Of containers that have ended; the kernel needs a moment for their processes."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = list(_CGROUPS.glob(f"*/{_CGROUP}"))
        if not left:
            return
        for place in left:
            for below, _, _ in os.walk(place, topdown=False):
                with suppress(OSError):
                    Path(below).rmdir()
        time.sleep(0.1)


def _import(run: Callable[..., str], directory: Path, archive: Path) -> None:
    run("ctr", "--address", directory / "containerd.sock", "--namespace=k8s.io", "images", "import", archive)


class _Programs:
    """What the first process has started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._environment = {
            **kubernetes_programs.environment(),
            "KUBECONFIG": str(directory / "admin.conf"),
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *command: str | Path) -> None:
        with (self.directory / f"{command[0]}.log").open("wb") as log:
            self._running[str(command[0])] = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def run(self, *command: str | Path) -> str:
        """What it writes. Raises CalledProcessError."""
        return subprocess.run(
            command, env=self._environment, check=True, capture_output=True, text=True
        ).stdout

    def check(self) -> None:
        """Raises RuntimeError: one has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                log = (self.directory / f"{name}.log").read_text(errors="replace")
                raise RuntimeError(f"{name} has ended:\n{log[-3000:]}")

    def wait_until(self, look: Callable[[], bool]) -> None:
        """Returns when ``look`` is true; while it raises CalledProcessError it is not."""
        while True:
            self.check()
            with suppress(subprocess.CalledProcessError):
                if look():
                    return
            time.sleep(0.2)


def main(directory: Path) -> None:
    """Be the first process."""
    programs = _Programs(directory)
    _make_keys(programs)
    _make_network(programs)
    _start_containerd(programs)
    _start_control_plane(programs)
    _start_node(programs)
    (directory / "ready").touch()
    while True:
        programs.check()
        time.sleep(1)


def _make_keys(programs: _Programs) -> None:
    place = programs.directory
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
    addresses = ["127.0.0.1", _NODE_ADDRESS, _FIRST_SERVICE]
    alternatives = [*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)]
    (place / "extensions").write_text(f"subjectAltName={','.join(alternatives)}\n")
    new_key = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
    programs.run(*new_key, "-x509", "-subj=/CN=tests", "-keyout", place / "ca.key", "-out", place / "ca.crt")
    programs.run(
        *new_key, "-subj=/CN=apiserver", "-keyout", place / "server.key", "-out", place / "server.csr"
    )
    signer: list[str | Path] = ["-CA", place / "ca.crt", "-CAkey", place / "ca.key", "-CAcreateserial"]
    files: list[str | Path] = [
        "-in",
        place / "server.csr",
        "-extfile",
        place / "extensions",
        "-out",
        place / "server.crt",
    ]
    programs.run("openssl", "x509", "-req", *signer, *files)
    programs.run("openssl", "genrsa", "-out", place / "accounts.key", "2048")
    (place / "tokens.csv").write_text(f'{_TOKEN},admin,admin,"system:masters"\n')
    cluster = {"server": API_SERVER, "certificate-authority": str(place / "ca.crt")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": _TOKEN}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
    }
    (place / "admin.conf").write_text(json.dumps(config))


def _make_network(programs: _Programs) -> None:
    """The node's address on a bridge that leads nowhere, and that of the DNS service."""
    for command in (
        "ip link set lo up",
        "ip link add node0 type bridge",
        f"ip address add {_NODE_ADDRESS}/24 dev node0",
        "ip link set node0 up",
        f"ip address add {_DNS}/32 dev lo",
        f"ip route add default via {_NODE_ADDRESS.rpartition('.')[0]}.254",
    ):
        programs.run(*command.split())
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": _PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(programs.directory / "addresses"),
        },
    }
    network = programs.directory / "network"
    network.mkdir()
    (network / "pods.conflist").write_text(
        json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})
    )


def _start_containerd(programs: _Programs) -> None:
    place = programs.directory
    (place / "containerd.toml").write_text(
        f"""
        version = 2
        root = "{place}/containerd"
        state = "{place}/containerd-state"
        [grpc]
        address = "{place}/containerd.sock"
        [plugins."io.containerd.grpc.v1.cri"]
        sandbox_image = "{PAUSE_IMAGE}"
        restrict_oom_score_adj = true
        disable_apparmor = true
        [plugins."io.containerd.grpc.v1.cri".cni]
        bin_dir = "{DEBIAN}/usr/lib/cni"
        conf_dir = "{place}/network"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{DEBIAN}/usr/sbin/runc"
        """
    )
    programs.start("containerd", "--config", place / "containerd.toml")
    address: list[str | Path] = ["ctr", "--address", place / "containerd.sock"]
    programs.wait_until(lambda: bool(programs.run(*address, "version")))
    kubernetes_programs.pause_image(place / "pause.tar")
    _import(programs.run, place, place / "pause.tar")


def _start_control_plane(programs: _Programs) -> None:
    place = programs.directory
    database = "http://127.0.0.1:2379"
    programs.start(
        *("etcd", "--data-dir", place / "etcd", "--unsafe-no-fsync"),
        *("--listen-client-urls", database, "--advertise-client-urls", database),
    )
    programs.start(
        "kube-apiserver",
        f"--etcd-servers={database}",
        f"--advertise-address={_NODE_ADDRESS}",
        f"--tls-cert-file={place}/server.crt",
        f"--tls-private-key-file={place}/server.key",
        f"--token-auth-file={place}/tokens.csv",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={place}/accounts.key",
        f"--service-account-signing-key-file={place}/accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={_SERVICES}",
        "--kubelet-preferred-address-types=InternalIP",
    )
    programs.wait_until(lambda: programs.run("kubectl", "get", "--raw", "/readyz") == "ok")
    admin = f"--kubeconfig={place}/admin.conf"
    programs.start(
        *("kube-controller-manager", admin, "--leader-elect=false", f"--root-ca-file={place}/ca.crt"),
        f"--service-account-private-key-file={place}/accounts.key",
    )
    programs.start("kube-scheduler", admin, "--leader-elect=false")
    (place / "Corefile").write_text(
        f"cluster.local:53 {{\n errors\n kubernetes cluster.local {{\n kubeconfig {place}/admin.conf\n }}\n}}\n"
    )
    programs.start("coredns", "-conf", place / "Corefile")


def _start_node(programs: _Programs) -> None:
    place = programs.directory
    for controller in _CONTROLLERS:
        (_CGROUPS / controller / _CGROUP).mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):
        (_CGROUPS / "cpuset" / _CGROUP / file).write_text((_CGROUPS / "cpuset" / file).read_text())
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": _NODE_ADDRESS,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{_CGROUP}",
        "clusterDNS": [_DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{place}/containerd.sock",
        "enforceNodeAllocatable": [],
        # The disk and the memory have other users, too.
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
        "failSwapOn": False,
        "featureGates": {"KubeletInUserNamespace": True},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "podLogsDir": str(place / "pods"),
        "resolvConf": "",
    }
    proxy = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(place / "admin.conf")},
        "clusterCIDR": _PODS,
        "conntrack": {"maxPerCore": 0},
        "hostnameOverride": NODE,
        "mode": "iptables",
    }
    (place / "kubelet.json").write_text(json.dumps(kubelet))
    (place / "proxy.json").write_text(json.dumps(proxy))
    programs.start(
        *("kubelet", f"--config={place}/kubelet.json", f"--kubeconfig={place}/admin.conf"),
        *(f"--root-dir={place}/kubelet", f"--cert-dir={place}/kubelet-keys"),
        *(f"--hostname-override={NODE}", f"--node-ip={_NODE_ADDRESS}"),
    )
    programs.start("kube-proxy", f"--config={place}/proxy.json")
    condition = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    programs.wait_until(lambda: programs.run("kubectl", "get", "node", NODE, "-o", condition) == "True")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main(Path(sys.argv[1]))
