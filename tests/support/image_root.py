"""Builds an image without an engine: a Dockerfile's own steps in a Debian that is made from nothing.

What is not the engine's: the base image is Debian with its own Python, which a virtual environment at ``/usr/local``
puts where ``python:3.11-slim`` has its one; layers, the engine's limits and its network are not tried. Needs root,
debootstrap and util-linux.

The mirror is the one that apt has; variables for pip and proxies, and the files of certificates that variables name,
are handed to the steps, and not kept.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support import debian as packages
from tests.support.dockerfile import PATH, Image, Stage, stages
from tests.support.polling import eventually

TOOLS = ("debootstrap", "unshare", "nsenter", "chroot", "ip")
STEP_SECONDS = 1800
_HANDED_ON = re.compile(r"(?i)(pip_.*|uv_.*|.*_proxy|ssl_cert_.*|requests_ca_bundle|curl_ca_bundle)")
_PACKAGES = "python3,python3-venv,ca-certificates"


@dataclass(frozen=True)
class Root:
    """An image's files, and what it says of its process."""

    path: Path
    image: Image

    @property
    def megabytes(self) -> int:
        """The files' size."""
        return int(_run(["du", "--summarize", "--block-size=1M", "--one-file-system", self.path]).split()[0])


def missing() -> str | None:
    """Why no image can be built here."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "needs root, for chroot and namespaces"
    return f"needs {', '.join(lacking)}" if lacking else None


def debian(path: Path) -> None:
    """Make the base image's stand-in, the release of this machine, unless it is there."""
    if path.exists():
        return
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line
    )
    unfinished = path.with_name(f"{path.name}-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    suite = release["VERSION_CODENAME"].strip('"')
    _run(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", suite, unfinished, _mirror(suite)])
    unfinished.rename(path)


def build(dockerfile: Path, target: str, base: Path, directory: Path) -> Root:
    """Carry out the steps of a stage, and before them those of the stages that it needs, below ``directory``."""
    made: dict[str, Root] = {}
    for stage in _needed(stages(dockerfile), target):
        path = directory / stage.name
        parent = made.get(stage.base)
        _run(["cp", "--archive", "--reflink=auto", parent.path if parent else base, path])
        if parent is None:
            _chroot(path, ["python3", "-m", "venv", "/usr/local"], _handed_on())
        image = parent.image if parent else Image()
        made[stage.name] = root = Root(path, copy.deepcopy(image))
        for word, rest in stage.instructions:
            _carry_out(word, rest, root, dockerfile.parent, made)
    return made[target]


@contextmanager
def started(
    root: Root, arguments: Sequence[str], environment: dict[str, str], log: Path
) -> Iterator[Started]:
    """The entry point as an engine starts it: as the image's user, first process of its namespace, on a network of its
    own with loopback alone, with nothing to write but its volumes, ``/tmp`` and ``/dev/shm``.
    """
    writable = " ".join(f"{root.path}{volume}" for volume in root.image.volumes)
    script = (
        # As an engine does: the container's name leads to it.
        f"hostname container && echo 127.0.0.1 localhost container > {root.path}/etc/hosts && "
        f"mount --bind {root.path} {root.path} && mount -t proc proc {root.path}/proc && "
        f"mount --rbind /dev {root.path}/dev && mount -t tmpfs -o size=64m tmpfs {root.path}/dev/shm && "
        f"mount -t tmpfs tmpfs {root.path}/tmp && for each in {writable}; do mount --bind $each $each; done && "
        f"mount -o remount,bind,ro {root.path} && ip link set lo up && "
        f'exec chroot --userspec={root.image.user} {root.path} /bin/sh -c \'cd "$0" && exec "$@"\' "$@"'
    )
    command = ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]
    command += ["sh", "-c", script, "sh", root.image.directory, *root.image.entry, *arguments]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, env=_own(root) | environment, stdout=out, stderr=out) as process,
    ):
        try:
            yield Started(root, process, log)
        finally:
            # Its children end with it.
            process.kill()


@dataclass(frozen=True)
class Started:
    """A running image."""

    root: Root
    process: subprocess.Popen[bytes]
    log: Path

    def inside(self, command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command there as the image's user, as ``docker exec`` does."""
        user, group = self.root.image.user.split(":")
        enter = ["nsenter", f"--target={self._first()}", *["-m", "-p", "-n", "-i", "-u", "--root", "--wd"]]
        return subprocess.run(
            [*enter, f"--setuid={user}", f"--setgid={group}", *command],
            input=text,
            env=_own(self.root),
            capture_output=True,
            text=True,
            timeout=STEP_SECONDS,
            check=False,
        )

    def stop(self) -> int:
        """Send the image's stop signal to the first process; its exit code."""
        os.kill(self._first(), signal.Signals[self.root.image.stop_signal])
        return self.process.wait(60)

    def _first(self) -> int:
        """The number by which this machine knows the namespace's first process, once that is in the image's files."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        eventually(lambda: len(children.read_text().split()), 1)
        first = int(children.read_text())
        eventually(lambda: str(Path(f"/proc/{first}/root").readlink()), str(self.root.path))
        return first


def _carry_out(word: str, rest: str, root: Root, context: Path, made: dict[str, Root]) -> None:
    if word == "RUN":
        script = f'cd "{root.image.directory}" && {rest}'
        _chroot(root.path, ["/bin/sh", "-c", script], _own(root) | _handed_on())
    elif word == "COPY":
        *sources, target = rest.split()
        base = context
        if sources[0].startswith("--from="):
            base = made[sources.pop(0).removeprefix("--from=")].path
        for source in sources:
            _copy(base / source.lstrip("/"), root.path / f"{root.image.directory}/{target}".lstrip("/"))
    else:
        root.image.take(word, rest)
        if word == "WORKDIR":
            (root.path / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)


def _copy(source: Path, target: Path) -> None:
    """As COPY: a folder's content, or a file; what ``.dockerignore`` keeps back of a folder is not copied."""
    if source.is_dir():
        # Links as they are, and nothing left out of what a stage has made.
        ours = shutil.ignore_patterns("__pycache__", "*.md") if (source / "__init__.py").exists() else None
        shutil.copytree(source, target, symlinks=True, ignore=ours, dirs_exist_ok=True)
    else:
        target = target / source.name if target.is_dir() else target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    subprocess.run(["chown", "--recursive", "--no-dereference", "0:0", target], check=True)


def _needed(found: dict[str, Stage], target: str) -> list[Stage]:
    """The stages that a target rests on, and itself, in order."""
    names = {target}
    for stage in reversed(found.values()):
        if stage.name in names:
            copied = (
                re.findall(r"--from=(\S+)", rest) for word, rest in stage.instructions if word == "COPY"
            )
            names.update({stage.base, *(name for each in copied for name in each)})
    return [stage for stage in found.values() if stage.name in names]


def _chroot(path: Path, command: Sequence[str], environment: dict[str, str]) -> None:
    for name in ("/etc/resolv.conf", *_certificates()):
        if Path(name).is_file():
            (path / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, path / name.lstrip("/"))
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    script = f'mount -t proc proc {path}/proc && mount --rbind /dev {path}/dev && exec chroot {path} "$@"'
    home = {"HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", "PATH": PATH}
    _run([*namespaces, "sh", "-c", script, "sh", *command], home | environment)


def _own(root: Root) -> dict[str, str]:
    return {"HOME": "/", **root.image.environment}


def _handed_on() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _HANDED_ON.fullmatch(name)}


def _certificates() -> list[str]:
    return [value for value in _handed_on().values() if value.startswith("/")]


def _mirror(suite: str) -> str:
    """What apt is configured to ask for this release."""
    return _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {suite}"]).split()[0]


def _run(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> str:
    """Its output; RuntimeError with all of it where it fails."""
    done = subprocess.run(
        [*map(str, command)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=STEP_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout[-4000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    if "--install" in sys.argv[1:] and shutil.which("debootstrap") is None:
        packages.install("what makes a Debian", ["debootstrap"])
    sys.exit(missing())
