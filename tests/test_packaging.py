"""The wheel: what is in it, what it needs, and that it works where nothing but it is installed."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pyarrow import flight

from tests.support.server_process import ROOT, ServerProcess
from tests.support.wheels import build_wheel, install, metadata_of, run

PACKAGES = {"flight_server", "spark_client"}
# Where Spark looks for data sources.
REGISTRATION = "pyspark_flight_shuffle.py"
LOCK = (ROOT / "requirements-dev.lock").read_text()
# One for each marker, where a package needs different versions for different Pythons.
LOCKED = [Requirement(line) for line in re.findall(r"^([a-z0-9].*?) *\\$", LOCK, re.MULTILINE)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


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
    moved = {f"spark_client/datasource/{REGISTRATION}"}
    assert {name for name in names if name.endswith(".py")} == in_source - moved | {REGISTRATION}


def test_the_core_of_the_wheel_needs_only_arrow_numpy_and_a_checksum(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    requirements = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    assert {requirement.name for requirement in requirements if requirement.marker is None} == {
        "google-crc32c",
        "numpy",
        "pyarrow",
    }
    assert set(metadata.get_all("Provides-Extra", [])) == {"server", "spark", "sql", "dev"}
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_client_imports_where_only_its_core_is_installed(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, tmp_path / "venv")
    # -I: neither the working directory nor the environment's PYTHONPATH may stand in for the installation.
    found = run(python, "-I", "-c", "import spark_client; print(spark_client.__file__)", directory=tmp_path)
    assert found.startswith(str(tmp_path))


def test_the_installed_client_writes_the_zip_for_executors(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, tmp_path / "venv")
    run(python.with_name("flight-shuffle"), "zip", "client.zip", directory=tmp_path)
    with zipfile.ZipFile(tmp_path / "client.zip") as archive:
        assert (
            archive.read(REGISTRATION) == (ROOT / "spark_client" / "datasource" / REGISTRATION).read_bytes()
        )
        assert archive.read("spark_client/client.py") == (ROOT / "spark_client" / "client.py").read_bytes()


def test_the_installed_server_serves_a_table(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, tmp_path / "venv", "server")
    # A folder of its own: `flight_server` of the source tree must not be found there.
    (empty := tmp_path / "empty").mkdir()
    table = pa.table({"n": list(range(1000)), "word": ["one", None] * 500})
    descriptor = flight.FlightDescriptor.for_path("countries")
    with ServerProcess.start(command=[python.with_name("flight-server")], directory=empty) as server:
        with flight.connect(server.location) as client:
            writer, _ = client.do_put(descriptor, table.schema)
            with writer:
                writer.write_table(table)
            assert client.do_get(flight.Ticket(b"countries")).read_all().equals(table)
        assert server.terminate() == 0, server.tail()


def test_the_lock_names_no_index_and_has_a_hash_for_each_package() -> None:
    assert "://" not in LOCK
    assert not re.search(r"^ *(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b", LOCK, re.MULTILINE)
    blocks = re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(LOCKED)
    for block in blocks:
        assert "--hash=sha256:" in block, block


def test_the_lock_holds_every_dependency_within_its_range() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    texts = [*project["dependencies"], *(text for extra in extras.values() for text in extra)]
    for wanted in map(Requirement, texts):
        if canonicalize_name(wanted.name) == project["name"]:
            continue
        locked = [entry for entry in LOCKED if entry.name == canonicalize_name(wanted.name)]
        assert locked, f"{wanted.name} is not in requirements-dev.lock: run `make lock`"
        for entry in locked:
            (pin,) = entry.specifier
            assert wanted.specifier.contains(pin.version), f"{entry} is not within {wanted}: run `make lock`"
