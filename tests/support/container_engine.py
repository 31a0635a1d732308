"""An engine of containers for tests: the one that answers, or one of their own, on Debian as root.

Guarantee: when :func:`engine` is left, by Ctrl-C, SIGTERM or the end of the process, too, an engine of its own has
ended, with its containers, mounts and network; its layers stay in ``build/containers``, for the next run, within
``CACHE_BYTES`` and the images themselves. Of an engine that was there nothing is ended but what tests began.

What such a machine lacks
    A registry of images: :meth:`Engine.base_image` makes Debian with its own Python, which a virtual environment at
    ``/usr/local`` puts where the official image has its one, and :meth:`Engine.prometheus_image` takes Debian's
    program. CAP_SYS_RESOURCE: containers have the limits of this process. Compose: Debian 13's package has the plugin,
    whose one file runs on Debian 12, too, and is not installed.

Mirrors are the machine's own: apt's, and pip's, which the stand-in hands to builds with the machine's certificates.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import debian
from tests.support.polling import eventually

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "build" / "containers"
CACHE_BYTES = 4 << 30
"""Of the build's layers that no image has."""
START_SECONDS = 120
BUILD_SECONDS = 3600
_DEBIANS_CLIENT = "/usr/bin/docker"
_PROGRAMS = ("dockerd", "iptables-save", "debootstrap", "setpriv", "unshare")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_NO_RULES = {
    "filter": "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n",
    "nat": "*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n",
}
"""What there is of these tables before a program has used them."""
_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Engine:
    """One that answers. ``is_own``: it was started for these tests, and has no registry."""

    client: str
    environment: dict[str, str] = field(repr=False)
    is_own: bool

    def run(
        self, *arguments: str | Path, text: str | None = None, seconds: float = 600, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """``docker`` with these arguments. Raises RuntimeError with what it wrote: it failed, and is to ``check``."""
        return _ran([self.client, *arguments], self.environment, text, seconds, check=check)

    def output(self, *arguments: str | Path, text: str | None = None) -> str:
        """What it writes to standard output, without the end of the last line."""
        return self.run(*arguments, text=text).stdout.rstrip("\n")

    def has_image(self, name: str) -> bool:
        """It is here, or can be had from a registry."""
        if self.run("image", "inspect", name, check=False).returncode == 0:
            return True
        return not self.is_own and self.run("pull", "--quiet", name, check=False).returncode == 0

    def base_image(self, name: str) -> None:
        """Make the stand-in for ``python:VERSION-slim-RELEASE``, unless it is there, or can be had."""
        if self.has_image(name):
            return
        release = name.rpartition("-")[2]
        tree = DIRECTORY / "debian"
        shutil.rmtree(tree, ignore_errors=True)
        packages = "--include=python3,python3-venv,ca-certificates"
        _ran(["debootstrap", "--variant=minbase", packages, release, tree, _mirror()], seconds=BUILD_SECONDS)
        shutil.copy(_CERTIFICATES, tree / _CERTIFICATES.relative_to("/"))
        _ran(["chroot", tree, "python3", "-m", "venv", "/usr/local"])
        variables = {"PATH": _PATH, "LANG": "C.UTF-8", **_settings_of_pip()}
        changes = [f"--change=ENV {key}={value}" for key, value in variables.items()]
        leave_out = ["--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*"]
        with subprocess.Popen(["tar", "-C", tree, *leave_out, "-c", "."], stdout=subprocess.PIPE) as archive:
            command = [self.client, "import", *changes, '--change=CMD ["python3"]', "-", name]
            subprocess.run(
                command, env=self.environment, stdin=archive.stdout, check=True, capture_output=True
            )
        shutil.rmtree(tree)

    def prometheus_image(self, name: str, base: str) -> None:
        """Make the stand-in for Prometheus's image, unless it is there, or can be had."""
        if self.has_image(name):
            return
        dockerfile = f"""
            FROM {base}
            RUN apt-get update && apt-get install --yes --no-install-recommends prometheus wget \
                && install --directory --owner=nobody /prometheus && rm -rf /var/lib/apt/lists/*
            USER nobody
            ENTRYPOINT ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
            """
        self.run("build", "--tag", name, "-", text=dockerfile, seconds=BUILD_SECONDS)


def missing() -> str | None:
    """In one sentence why there is no engine, and none can be started; None if there is one."""
    if (found := _answering()) is not None:
        has_compose = found.run("compose", "version", check=False).returncode == 0
        return None if has_compose else "the engine of containers that answers has no Compose (its plugin)"
    if os.geteuid() != 0:
        return "no engine of containers answers, and to start one needs root"
    lacking = [program for program in _PROGRAMS if shutil.which(program) is None]
    if lacking:
        return f"no engine of containers answers, and to start one needs {', '.join(lacking)} (Debian's docker.io)"
    return None


def install() -> None:
    """Install what an engine of their own needs, where root may."""
    if os.geteuid() == 0 and _answering() is None:
        for package in ("docker.io", "iptables", "debootstrap"):
            if shutil.which({"docker.io": "dockerd"}.get(package, package)) is None:
                debian.install(package, [package])


@contextmanager
def engine() -> Iterator[Engine]:
    """The engine that answers, else one of their own. SIGTERM ends the program as Ctrl-C does. Raises RuntimeError:
    see :func:`missing`.
    """
    with ExitStack() as ending:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        ending.callback(signal.signal, signal.SIGTERM, before)
        known = _answering()
        if (reason := missing()) is not None:
            raise RuntimeError(reason)
        if known is None:
            known = ending.enter_context(_own_engine())
        yield known


def _answering() -> Engine | None:
    """The engine that the environment leads to."""
    client = shutil.which("docker")
    if client is None:
        return None
    found = Engine(client, {**os.environ, "DOCKER_BUILDKIT": "1"}, is_own=False)
    return found if found.run("version", check=False).returncode == 0 else None


@contextmanager
def _own_engine() -> Iterator[Engine]:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="engine-") as short, _network_put_back():
        # A path of a socket has at most 107 bytes.
        place = Path(short)
        config = DIRECTORY / "config"
        _compose_plugin(config / "cli-plugins" / "docker-compose")
        _write_config(config / "config.json")
        settings = {"builder": {"gc": {"enabled": True, "defaultKeepStorage": f"{CACHE_BYTES >> 30}GB"}}}
        (place / "daemon.json").write_text(json.dumps(settings))
        address = f"unix://{place / 'docker.sock'}"
        environment = {
            **os.environ,
            "DOCKER_HOST": address,
            "DOCKER_CONFIG": str(config),
            "DOCKER_BUILDKIT": "1",
        }
        own = Engine(_DEBIANS_CLIENT, environment, is_own=True)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        command: list[str | Path] = [
            # Its mounts are its own, and end with it, as it does with this process.
            *("setpriv", "--pdeathsig", "TERM", "unshare", "--mount", "dockerd"),
            *("--host", address, "--config-file", place / "daemon.json", "--pidfile", place / "pid"),
            *("--data-root", DIRECTORY / "data", "--exec-root", place / "exec"),
            *("--default-ulimit", f"nofile={files}:{files}"),
        ]
        with (DIRECTORY / "engine.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            eventually(lambda: _has_begun(own, process), expected=True, deadline_seconds=START_SECONDS)
            # What a run that was killed has left, and the engine has started again.
            if left := own.output("ps", "--all", "--quiet").split():
                own.run("rm", "--force", "--volumes", *left)
            own.run("volume", "prune", "--force")
            own.run("network", "prune", "--force")
            yield own
            own.run("image", "prune", "--force", check=False)
            own.run("builder", "prune", "--force", "--keep-storage", str(CACHE_BYTES), check=False)
        finally:
            process.terminate()
            process.wait(120)


def _has_begun(own: Engine, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"dockerd has ended:\n{(DIRECTORY / 'engine.log').read_text()[-4000:]}")
    return own.run("version", check=False).returncode == 0


@contextmanager
def _network_put_back() -> Iterator[None]:
    """The engine adds rules, a bridge, and lets the machine forward packets."""
    forwards, rules = _IP_FORWARD.read_text(), _ran(["iptables-save"]).stdout
    rules += "".join(text for table, text in _NO_RULES.items() if f"*{table}\n" not in rules)
    try:
        yield
    finally:
        _ran(["ip", "link", "delete", "docker0"], check=False)
        _ran(["iptables-restore"], text=rules, check=False)
        _IP_FORWARD.write_text(forwards)


def _compose_plugin(path: Path) -> None:
    """Compose, from the package of the first Debian that has its second version."""
    if path.exists():
        return
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "lists" / "partial").mkdir(parents=True)
        key = "/usr/share/keyrings/debian-archive-keyring.gpg"
        (place / "trixie.list").write_text(f"deb [signed-by={key}] {_mirror()} trixie main\n")
        options = {
            "Dir::Etc::SourceList": place / "trixie.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": place / "lists",
            "APT::Sandbox::User": "root",
            # Not the machine's own caches, which would be made anew.
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
        }
        apt = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in options.items())]
        _ran([*apt, "update"])
        _ran([*apt, "download", "docker-compose/trixie"], directory=place)
        _ran(["dpkg", "--extract", *place.glob("docker-compose_*.deb"), place / "package"])
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(place / "package/usr/libexec/docker/cli-plugins/docker-compose", path)


def _write_config(path: Path) -> None:
    proxies = {name: os.environ[name] for name in _PROXIES if name in os.environ}
    names = {"http_proxy": "httpProxy", "https_proxy": "httpsProxy", "no_proxy": "noProxy"}
    path.write_text(
        json.dumps({"proxies": {"default": {names[name]: each for name, each in proxies.items()}}})
    )


def _mirror() -> str:
    """What apt asks for this machine's release."""
    return _ran(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian"]).stdout.split()[0]


def _settings_of_pip() -> dict[str, str]:
    """Where pip and uv find packages, as this machine's pip does."""
    settings = {"PIP_CERT": str(_CERTIFICATES), "SSL_CERT_FILE": str(_CERTIFICATES)}
    pip = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    index = os.environ.get("PIP_INDEX_URL") or _ran(pip, check=False).stdout.strip()
    return settings | ({"PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index} if index else {})


def _ran(
    command: Sequence[str | Path],
    environment: dict[str, str] | None = None,
    text: str | None = None,
    seconds: float = 600,
    *,
    check: bool = True,
    directory: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        env=environment,
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        cwd=directory,
    )
    if check and done.returncode:
        said = f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
        raise RuntimeError(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{said}")
    return done


if __name__ == "__main__":
    if "--install" in sys.argv[1:]:
        install()
    sys.exit(missing())
