"""Wheel and sdist: what is in them, what they need, and that they work where nothing else is installed."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_client.version import __version__
from tests.support import smoke
from tests.support.server_process import ROOT
from tests.support.wheels import build_sdist, build_wheel, install, metadata_of, run

PACKAGES = {"flight_server", "spark_client"}
# Of the repository's root. What else lies there was put there by mistake, and would be in the sdist.
TOP = PACKAGES | {
    *("deploy", "tests", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"),
    *("Dockerfile", "Makefile", "pyproject.toml", "requirements-dev.lock"),
    *(".ci", ".dockerignore", ".github", ".gitignore"),
}
# Where Spark looks for data sources.
REGISTRATION = "pyspark_flight_shuffle.py"
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
LOCK = (ROOT / "requirements-dev.lock").read_text()
# One for each marker, where a package needs different versions for different Pythons.
LOCKED = [Requirement(line) for line in re.findall(r"^([a-z0-9].*?) *\\$", LOCK, re.MULTILINE)]


PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel without extras."""
    return install(wheel, tmp_path_factory.mktemp("core"))


def test_the_wheel_holds_the_two_packages_with_their_types_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    (information,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    assert {name.split("/")[0] for name in names} == PACKAGES | {information, REGISTRATION}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert f"{information}/licenses/LICENSE" in names
    in_source = {
        path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")
    }
    page = "flight_server/lanes/http/page"
    assert {f"{page}/{path.name}" for path in (ROOT / page).iterdir()} <= set(names)
    moved = {f"spark_client/datasource/{REGISTRATION}"}
    assert {name for name in names if name.endswith(".py")} == in_source - moved | {REGISTRATION}


def test_the_core_of_the_wheel_needs_only_arrow_numpy_and_a_checksum(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    requirements = metadata.requires_dist or []
    assert {requirement.name for requirement in requirements if requirement.marker is None} == {
        "google-crc32c",
        "numpy",
        "pyarrow",
    }
    assert set(metadata.provides_extra or []) == set(PROJECT["optional-dependencies"])
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.description == (ROOT / "README.md").read_text()


@pytest.mark.long
def test_the_sdist_has_what_the_repository_has_and_makes_the_same_wheel(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/")[1] for name in archive.getnames()}
    assert names - {"PKG-INFO"} <= TOP
    assert names >= {*PACKAGES, "tests", "CHANGELOG.md", "LICENSE", "Makefile", "requirements-dev.lock"}
    assert build_wheel(tmp_path, sdist).read_bytes() == wheel.read_bytes()


def test_the_changelog_has_the_version_and_its_sections_have_known_names() -> None:
    headings = re.findall(r"^(##+) (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [text for level, text in headings if level == "##"]
    dated = re.compile(r"\[(Unreleased|\d+\.\d+\.\d+)\]( - (\d{4}-\d\d-\d\d|Unreleased))?")
    assert all(dated.fullmatch(text) for text in versions), versions
    assert any(text.startswith(f"[{__version__}]") for text in versions)
    kinds = {text for level, text in headings if level == "###"}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_workflow_is_one_by_its_schema(tmp_path: Path) -> None:
    check = Path(sys.executable).with_name("check-jsonschema")
    run(check, "--builtin-schema", "vendor.github-workflows", WORKFLOW, directory=tmp_path)


def test_each_python_that_is_named_is_run() -> None:
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if ":: Python :: 3." in text}
    workflow = yaml.safe_load(WORKFLOW.read_text())
    assert set(workflow["jobs"]["test"]["strategy"]["matrix"]["python"]) == named
    assert f">={min(named)}" == PROJECT["requires-python"]


def test_the_client_imports_where_only_its_core_is_installed(core: Path, tmp_path: Path) -> None:
    # -I: neither the working directory nor the environment's PYTHONPATH may stand in for the installation.
    found = run(core, "-I", "-c", "import spark_client; print(spark_client.__file__)", directory=tmp_path)
    assert Path(found).is_relative_to(core.parents[1])
    server = subprocess.run([core.with_name("flight-server")], capture_output=True, text=True, check=False)
    assert server.stderr.startswith("flight-server: there is no package ")
    assert "install the wheel with its extra server" in server.stderr


@pytest.mark.long
def test_the_installed_client_writes_the_zip_for_executors(core: Path, tmp_path: Path) -> None:
    run(core.with_name("flight-shuffle"), "zip", "client.zip", directory=tmp_path)
    with zipfile.ZipFile(tmp_path / "client.zip") as archive:
        assert (
            archive.read(REGISTRATION) == (ROOT / "spark_client" / "datasource" / REGISTRATION).read_bytes()
        )
        assert archive.read("spark_client/client.py") == (ROOT / "spark_client" / "client.py").read_bytes()


@pytest.mark.long
def test_the_installed_server_serves_the_installed_client(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, tmp_path / "venv", "server")
    # -I: `flight_server` of the source tree must not be found.
    said = run(python, "-I", smoke.__file__, directory=tmp_path)
    assert f"flight-shuffle {__version__}" in said


def test_the_lock_names_no_index_and_has_a_hash_for_each_package() -> None:
    assert "://" not in LOCK
    assert not re.search(r"^ *(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b", LOCK, re.MULTILINE)
    blocks = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(LOCKED)
    for block in blocks:
        assert "--hash=sha256:" in block, block


def test_the_lock_holds_every_dependency_within_its_range() -> None:
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *(text for extra in extras.values() for text in extra)]
    for wanted in map(Requirement, texts):
        if canonicalize_name(wanted.name) == PROJECT["name"]:
            continue
        locked = [entry for entry in LOCKED if entry.name == canonicalize_name(wanted.name)]
        assert locked, f"{wanted.name} is not in requirements-dev.lock: run `make lock`"
        for entry in locked:
            (pin,) = entry.specifier
            assert wanted.specifier.contains(pin.version), f"{entry} is not within {wanted}: run `make lock`"
