"""The zip has all that the client needs, and is the same each time; without it the error says what to do."""

from __future__ import annotations

import io
import pickle
import subprocess
import zipfile
from collections.abc import Callable
from functools import cache, partial
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import pytest

from spark_client import __version__
from spark_client.arrow.own_memory import own
from spark_client.executors import shipping
from spark_client.executors.shipping import Portable, zipped
from tests.support.bare_python import bare_python
from tests.support.rooms import ROOT, room_of
from tests.test_layout import PURE, SHARED


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def sources() -> bytes:
    """The zip that the command writes; making one takes a second."""
    return zipped()


@pytest.fixture(scope="module")
def compiled_by(sources: bytes) -> Callable[[bytes], bytes]:
    """The zip that a driver ships whose Python has this magic number; to find the modules takes a second."""
    with zipfile.ZipFile(io.BytesIO(sources)) as archive:
        modules = {name: archive.read(name) for name in archive.namelist()}

    @cache
    def zip_of(magic: bytes) -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shipping, "_sources", lambda: modules)
            patch.setattr(shipping, "MAGIC_NUMBER", magic)
            return zipped(compiled=True)

    return zip_of


def run(python: Path, code: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-c", code, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)


def dumped(value: object) -> bytes:
    """As Spark sends functions."""
    from pyspark import serializers

    spark: Any = serializers
    return bytes(spark.CloudPickleSerializer().dumps(value))


def test_the_zip_has_the_client_and_what_it_imports_of_the_server(sources: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(sources)) as archive:
        names = set(archive.namelist())
        contents = {name: archive.read(name) for name in names}
    files = (ROOT / "spark_client").rglob("*.py")
    client = {path.relative_to(ROOT).as_posix() for path in files if path.parent.name != "commands"}
    assert client <= names
    assert not any(name.startswith("spark_client/commands/") for name in names)
    registration = "pyspark_flight_shuffle.py"
    names.remove(registration)
    assert contents[registration] == contents[f"spark_client/datasource/{registration}"]
    server = {name.removesuffix(".py").replace("/", ".") for name in names - client}
    assert "flight_server.protocol.errors" in server
    assert {room_of(name.removesuffix(".__init__")) for name in server} <= {"", *SHARED, *PURE}
    assert all(contents[name] == (ROOT / name).read_bytes() for name in names)


def test_every_module_of_the_client_can_be_imported_from_the_zip(
    python: Path, sources: bytes, tmp_path: Path
) -> None:
    (tmp_path / "client.zip").write_bytes(sources)
    code = """
import importlib, sys, zipfile
sys.path.insert(0, "client.zip")
# What executors need not have.
for name in ("aiohttp", "duckdb", "grpc", "polars", "pydantic", "rich", "structlog", "typer", "uvloop"):
    sys.modules[name] = None
for name in zipfile.ZipFile("client.zip").namelist():
    module = importlib.import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    assert "client.zip" in module.__file__, module.__file__
"""
    done = run(python, code, tmp_path)
    assert done.returncode == 0, done.stderr


LOADED = """
import sys, traceback
sys.path.insert(0, "client.zip")
from spark_client import jobs
print(jobs.tasks.__file__)
try:
    jobs.Shares.equal(None, 1)
except TypeError:
    print(traceback.format_exc())
"""


@pytest.mark.parametrize("magic", [MAGIC_NUMBER, pytest.param(b"\0\0\r\n", marks=pytest.mark.long)])
def test_shipped_modules_are_compiled_for_this_python_and_sources_for_others(
    python: Path, compiled_by: Callable[[bytes], bytes], tmp_path: Path, magic: bytes
) -> None:
    (tmp_path / "client.zip").write_bytes(compiled_by(magic))
    done = run(python, LOADED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0].endswith(".pyc" if magic == MAGIC_NUMBER else ".py")
    # Errors show the source's lines.
    assert "sizes += partition_bytes[done:]" in done.stdout


@pytest.mark.long
def test_a_program_that_runs_from_the_shipped_zip_ships_the_same_modules(
    python: Path, sources: bytes, compiled_by: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / "client.zip").write_bytes(compiled_by(MAGIC_NUMBER))
    code = """
import sys
sys.path.insert(0, "client.zip")
from spark_client.executors.shipping import zipped
open("again.zip", "wb").write(zipped())
open("compiled.zip", "wb").write(zipped(compiled=True))
"""
    done = run(python, code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.zip").read_bytes() == sources
    names = [zipfile.ZipFile(tmp_path / each).namelist() for each in ("compiled.zip", "client.zip")]
    assert names[0] == names[1]


def test_a_function_travels_and_is_itself_again() -> None:
    function = partial(map, str)
    assert list(Portable(function)(iter([1]))) == ["1"]
    loaded = pickle.loads(dumped(Portable(function)))
    assert isinstance(loaded, partial)
    assert list(loaded([1, 2])) == ["1", "2"]


@pytest.mark.parametrize(
    ("missing", "what"),
    [
        ("spark_client", "call ship(spark) of the ShuffleClient before the pipeline, "),
        ("pyarrow", "install it there, or let PYSPARK_PYTHON name an interpreter that has it"),
    ],
)
def test_a_package_that_is_missing_is_named_with_what_to_do(
    python: Path, tmp_path: Path, missing: str, what: str
) -> None:

    (tmp_path / "task").write_bytes(dumped(Portable(own)))
    code = f"""
import pickle, sys
if {missing!r} != "spark_client":
    sys.path.insert(0, {str(ROOT)!r})
    sys.modules[{missing!r}] = None
pickle.load(open("task", "rb"))
"""
    done = run(python, code, tmp_path)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: the Python of this executor ({python} on "), done.stderr
    assert f"has no package '{missing}': {what}" in last


def test_another_version_is_named_before_it_can_do_harm(python: Path, tmp_path: Path) -> None:
    (tmp_path / "task").write_bytes(dumped(Portable(own)))
    (tmp_path / "spark_client").mkdir()
    for version, found in (('"0.0.1"', "0.0.1"), ("None", "None"), (None, "of an unknown version")):
        source = "" if version is None else f"__version__ = {version}"
        (tmp_path / "spark_client" / "__init__.py").write_text(source)
        code = 'import pickle, sys; sys.path.insert(0, "."); pickle.load(open("task", "rb"))'
        last = run(python, code, tmp_path).stderr.splitlines()[-1]
        assert last.startswith(f"ImportError: the Python of this executor ({python} on "), last
        assert f"has flight-shuffle {found} in " in last
        assert f"and the driver has {__version__}: install the driver's there, or call ship(spark)" in last


def test_an_import_of_the_users_own_that_fails_stays_the_users_own(tmp_path: Path) -> None:
    def load() -> None:
        raise ModuleNotFoundError("No module named 'mine'", name="mine")

    class Fails:
        def __call__(self) -> None: ...

        def __reduce__(self) -> tuple[object, ...]:
            return load, ()

    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'mine'$"):
        pickle.loads(dumped(Portable(Fails())))
