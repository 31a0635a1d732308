"""The project's wheel and sdist, and environments in which nothing but it and its requirements are installed."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import uv
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.server_process import ROOT


def run(*command: str | Path, directory: Path) -> str:
    answer = subprocess.run(
        command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def build_sdist(directory: Path) -> Path:
    return _build("--sdist", "*.tar.gz", directory, ROOT)


def build_wheel(directory: Path, sdist: Path | None = None) -> Path:
    """Build it from the source tree, or from what an sdist unpacks to."""
    if sdist is None:
        return _build("--wheel", "*.whl", directory, ROOT)
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    return _build("--wheel", "*.whl", directory, directory / sdist.name.removesuffix(".tar.gz"))


def _build(what: str, pattern: str, directory: Path, source: Path) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", what, "--outdir", directory, directory=source)
    (built,) = directory.glob(pattern)
    return built


def metadata_of(wheel: Path) -> Metadata:
    """The wheel's metadata; an error if a field of it is not as indices want it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Metadata.from_email(archive.read(name))


def distributions(requirements: Iterable[str], extras: Iterable[str] = ()) -> dict[str, Distribution]:
    """What the requirements lead to, as it is installed here."""
    found: dict[str, Distribution] = {}
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            found[canonicalize_name(requirement.name)] = each = distribution(requirement.name)
            assert requirement.specifier.contains(each.version), f"{requirement}: {each.version} is installed"
            found |= distributions(each.requires or (), requirement.extras)
    return found


def install(wheel: Path, directory: Path, *extras: str) -> Path:
    """Install the wheel in an environment that has only what its metadata asks for; return its interpreter.

    Links to the packages of this environment are there, so that nothing is downloaded, unpacked and compiled.
    """
    venv.create(directory)
    (packages,) = directory.glob("lib/python*/site-packages")
    for each in distributions(map(str, metadata_of(wheel).requires_dist or ()), extras).values():
        for file in each.files or ():
            if ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                (packages / file).symlink_to(file.locate())
    python = directory / "bin" / "python"
    pip = (uv.find_uv_bin(), "--quiet", "--no-cache", "--offline", "pip")
    run(*pip, "install", "--python", python, "--no-deps", wheel, directory=directory)
    run(*pip, "check", "--python", python, directory=directory)
    return python
