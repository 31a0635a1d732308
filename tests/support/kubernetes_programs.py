"""The programs of a Kubernetes, from packages: its own and Helm from their Go modules, the rest from Debian's.

They are built and unpacked once, into ``build/kubernetes``, and never installed. Nothing but package registries is
asked. The builds take some ten minutes of two cores.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "build" / "kubernetes"
PROGRAMS = DIRECTORY / "bin"
DEBIAN = DIRECTORY / "debian"
KUBERNETES = "v1.34.1"
PAUSE_IMAGE = "localhost/pause:1"
BUILD_SECONDS = 3600

_OF_KUBERNETES = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
)
_DEBIANS = (
    *("etcd-server", "containerd", "runc", "containernetworking-plugins", "iptables", "conntrack"),
    *("libip4tc2", "libip6tc2", "libxtables12", "libnetfilter-conntrack3", "libnfnetlink0"),
)
_HELM = "helm.sh/helm/v3/cmd/helm@v3.19.2"
# CoreDNS with the two plugins that a cluster needs, where all of them would be hundreds of modules.
_DNS = """
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func init() {
	dnsserver.Directives = []string{"errors", "kubernetes"}
}

func main() {
	coremain.Run()
}
"""
_DNS_MODULE = "module dns\n\ngo 1.24.0\n\nrequire github.com/coredns/coredns v1.12.4\n"
# What holds a pod's namespaces.
_PAUSE = """
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}
"""
_PAUSE_MODULE = "module pause\n\ngo 1.21\n"


def missing() -> str | None:
    """In one sentence why there are no programs, and none can be built; None if there are."""
    lacking = [
        name
        for name in ("go", "apt-get", "dpkg", "unshare", "nsenter", "openssl", "ip")
        if not shutil.which(name)
    ]
    if os.geteuid() != 0:
        return "a Kubernetes of one node needs root"
    return f"a Kubernetes of one node needs {', '.join(lacking)}" if lacking else None


def build() -> None:
    """Make the programs that are not there. Raises RuntimeError with what a build has written."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    if not DEBIAN.exists():
        with _new_directory(DEBIAN) as place, tempfile.TemporaryDirectory() as packages:
            _run(["apt-get", "--quiet", "--option=APT::Sandbox::User=root", "update"])
            _run(
                ["apt-get", "--quiet", "--option=APT::Sandbox::User=root", "download", *_DEBIANS],
                Path(packages),
            )
            for package in Path(packages).glob("*.deb"):
                _run(["dpkg", "--extract", package, place])
    if any(not (PROGRAMS / name).exists() for name in _OF_KUBERNETES):
        with tempfile.TemporaryDirectory() as directory:
            source = _source_of_kubernetes(Path(directory))
            version = "k8s.io/component-base/version.gitVersion"
            for name in _OF_KUBERNETES:
                _build(source, f"./cmd/{name}", name, [f"-X={version}={KUBERNETES}"])
    for name, code, module in (("coredns", _DNS, _DNS_MODULE), ("pause", _PAUSE, _PAUSE_MODULE)):
        if not (PROGRAMS / name).exists():
            with tempfile.TemporaryDirectory() as directory:
                Path(directory, "main.go").write_text(code)
                Path(directory, "go.mod").write_text(module)
                _build(Path(directory), ".", name)
    if not (PROGRAMS / "helm").exists():
        _run(["go", "install", "-trimpath", _HELM], variables={"GOBIN": str(PROGRAMS)})


def environment() -> dict[str, str]:
    """Variables with which these programs find each other and their libraries."""
    libraries = DEBIAN / "usr/lib/x86_64-linux-gnu"
    places = [PROGRAMS, DEBIAN / "usr/bin", DEBIAN / "usr/sbin", DEBIAN / "sbin", os.environ["PATH"]]
    return {
        **os.environ,
        "PATH": ":".join(map(str, places)),
        "LD_LIBRARY_PATH": str(libraries),
        "XTABLES_LIBDIR": str(libraries / "xtables"),
    }


def pause_image(archive: Path) -> None:
    """Write an image that has ``pause`` alone, as ``docker save`` would."""
    files = BytesIO()
    with tarfile.open(fileobj=files, mode="w") as layer:
        layer.add(PROGRAMS / "pause", "pause")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(files.getvalue()).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]
    members = {
        "config.json": json.dumps(config).encode(),
        "layer.tar": files.getvalue(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    with tarfile.open(archive, "w") as whole:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            whole.addfile(entry, BytesIO(content))


def _source_of_kubernetes(directory: Path) -> Path:
    """Its module, which refers to the staged modules in its repository; these are published, too."""
    facts = json.loads(_run(["go", "mod", "download", "-json", f"k8s.io/kubernetes@{KUBERNETES}"]))
    source = Path(shutil.copytree(facts["Dir"], directory / "kubernetes"))
    _run(["chmod", "--recursive", "u+w", source])
    shutil.rmtree(source / "vendor")
    module = source / "go.mod"
    text = re.sub(r"\nreplace \(.*?\n\)\n", "\n", module.read_text(), flags=re.DOTALL)
    published = f"v0{KUBERNETES.removeprefix('v1')}"
    module.write_text(re.sub(r"(k8s\.io/[\w.-]+) v0\.0\.0$", rf"\1 {published}", text, flags=re.MULTILINE))
    return source


def _build(source: Path, package: str, name: str, link_flags: Sequence[str] = ()) -> None:
    flags = " ".join(["-s", "-w", *link_flags])
    _run(["go", "build", "-trimpath", f"-ldflags={flags}", "-o", PROGRAMS / name, package], source)


def _run(
    command: Sequence[str | Path], directory: Path | None = None, variables: dict[str, str] | None = None
) -> str:
    go = {"GOWORK": "off", "GOFLAGS": "-buildvcs=false -mod=mod", "CGO_ENABLED": "0"}
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **go, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stderr[-4000:]}"
        )
    return done.stdout


@contextmanager
def _new_directory(path: Path) -> Iterator[Path]:
    """A directory that has its name once all is in it."""
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        place = Path(directory, path.name)
        place.mkdir()
        yield place
        place.rename(path)
