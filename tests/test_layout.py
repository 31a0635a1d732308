"""The rules that keep the code's parts apart, checked on the source and, where it matters, in a new process.

Imports inside functions and under ``TYPE_CHECKING`` count like all others: what a module knows of, it
depends on.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 400

# The server's modules, lowest layer first. A module imports only from layers below its own. Packages stand
# here under their own name, and their modules belong to the same layer.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "addresses",
        "allocator",
        "background",
        "changes",
        "checksums",
        "disk_files",
        "errors",
        "flight_locations",
        "generations",
        "items",
        "lean",
        "machine",
        "memory",
        "passes",
        "put_framing",
        "reflection",
        "runs",
        "schema_text",
        "slices",
        "turns",
        "waits",
    ),
    (
        "auth",
        "broadcast",
        "browsers",
        "dataset_names",
        "flight_sql",
        "host_directory",
        "http_errors",
        "metadata",
        "ownership",
        "running",
        "source_roots",
        "source_s3",
        "strict_json",
        "wire",
    ),
    (
        "budget",
        "data_dir",
        "places",
        "protocol",
        "quarantine",
        "schema_size",
        "spill",
    ),
    (
        "acknowledgements",
        "chunks",
        "config",
        "decoder",
        "durable_files",
        "frames",
        "lifetime",
        "manifest",
    ),
    (
        "counters",
        "disposal",
        "frame_builder",
        "options",
        "readback",
        "records",
        "schemas",
    ),
    (
        "disk",
        "encoder",
        "frame_table",
    ),
    (
        "partition",
        "source_formats",
    ),
    (
        "attempts",
        "delivery",
        "source_contract",
    ),
    (
        "dataset",
        "eviction",
        "relay",
        "repetition",
        "source_files",
    ),
    (
        "infos",
        "lost_frames",
        "repeated_creation",
        "victims",
    ),
    ("catalogue",),
    (
        "gets",
        "recovery",
        "spiller",
    ),
    (
        "admission",
        "durability",
        "grpc_get",
        "outlet",
        "reports",
    ),
    (
        "bulk",
        "control",
        "metrics",
        "producers",
        "pulls",
        "sinks",
    ),
    (
        "puts",
        "sources",
    ),
    (
        "actions",
        "grpc_put",
        "intake",
    ),
    (
        "http",
        "service",
    ),
    ("node",),
    ("server",),
    ("__main__",),
)
LAYER_OF = {module: number for number, layer in enumerate(LAYERS) for module in layer}

# Shared with the client, or so central that they must be testable with nothing installed.
PURE = frozenset(
    {
        "acknowledgements",
        "broadcast",
        "dataset_names",
        "errors",
        "flight_sql",
        "items",
        "memory",
        "passes",
        "protocol",
        "put_framing",
        "strict_json",
        "waits",
        "wire",
    }
)
FILE_MODULES = frozenset({"io", "mmap", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile"})
# What the client may know of the server.
SHARED = frozenset(
    {
        "flight_server",
        "flight_server.acknowledgements",
        "flight_server.checksums",
        "flight_server.dataset_names",
        "flight_server.errors",
        "flight_server.host_directory",
        "flight_server.flight_sql",
        "flight_server.memory",
        "flight_server.protocol",
        "flight_server.put_framing",
        "flight_server.strict_json",
        "flight_server.wire",
    }
)
GRPC = frozenset({"grpc", "grpc_health", "grpc_reflection", "grpc_status"})
# A relay is a client of another server, and takes its messages as bytes, which pyarrow's client cannot do.
GRPC_ALLOWED = frozenset({"grpc_put", "reflection", "relay", "server", "service"})
# The embedded server's process is handed its parent's environment; nothing is read from it there. Which
# interpreter Spark starts is said in Spark's own variable.
ENVIRONMENT_ALLOWED = frozenset(
    {"flight_server/config.py", "spark_client/embedded.py", "spark_client/interpreter.py"}
)
# An executor has these and the standard library. PySpark brings pandas.
CLIENT_LIBRARIES = frozenset(
    {"flight_server", "google_crc32c", "numpy", "pandas", "pyarrow", "pyspark", "spark_client"}
)
# Used where it is installed, and done without where it is not.
OPTIONAL_LIBRARIES = {"spark_client/progress.py": {"IPython", "rich"}}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


SERVER, CLIENT, TESTS = sources("flight_server"), sources("spark_client"), sources("tests")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


for_each_server_module = pytest.mark.parametrize("path", SERVER, ids=named)
for_each_client_module = pytest.mark.parametrize("path", CLIENT, ids=named)
for_each_file = pytest.mark.parametrize("path", SERVER + CLIENT + TESTS, ids=named)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), named(path))


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in SERVER + CLIENT}


def server_module(name: str) -> str:
    """Return the name in LAYERS of a dotted name under flight_server; empty for the package itself."""
    return name.split(".")[1] if "." in name else ""


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the dotted names of all modules that a file imports, wherever in the file it does so."""
    own = dotted(path).split(".")
    package = own if path.name == "__init__.py" else own[:-1]
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from package import name`: the name may be a module or something that the package defines.
            names = {f"{base}.{alias.name}" for alias in node.names}
            modules = {name for name in names if name in MODULES}
            found.update(modules)
            if modules != names:
                found.add(base)
    return frozenset(found)


def top_level(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def run_python(code: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@for_each_server_module
def test_a_server_module_imports_only_from_lower_layers(path: Path) -> None:
    module = server_module(dotted(path))
    if module == "":
        assert not imports(path) - {"__future__"}, f"{named(path)} is imported by the client: keep it empty"
        return
    assert module in LAYER_OF, (
        f"flight_server/{module} has no layer yet: add it to LAYERS in tests/test_layout.py, "
        "above everything that it imports"
    )
    for name in imports(path):
        other = server_module(name) if name.startswith("flight_server.") else module
        if other != module:
            assert other in LAYER_OF, (
                f"{named(path)} imports {name}, which has no layer in tests/test_layout.py"
            )
            assert LAYER_OF[other] < LAYER_OF[module], (
                f"{named(path)} (layer {LAYER_OF[module]}) imports {name} (layer {LAYER_OF[other]})"
            )


def test_every_module_in_the_table_of_layers_exists() -> None:
    assert set(LAYER_OF) == {server_module(dotted(path)) for path in SERVER} - {""}


def test_the_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {name: imports(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()


@for_each_server_module
def test_the_server_imports_neither_the_client_nor_spark(path: Path) -> None:
    assert not top_level(path) & {"pandas", "py4j", "pyspark", "spark_client"}


@for_each_client_module
def test_the_client_knows_only_the_shared_modules_of_the_server(path: Path) -> None:
    assert {name for name in imports(path) if name.split(".")[0] == "flight_server"} <= SHARED


@for_each_client_module
def test_the_client_needs_only_what_every_executor_has(path: Path) -> None:
    optional = OPTIONAL_LIBRARIES.get(named(path), set())
    assert top_level(path) <= CLIENT_LIBRARIES | sys.stdlib_module_names | optional


@pytest.mark.parametrize("module", sorted(PURE))
def test_a_pure_module_imports_only_the_standard_library_and_opens_no_file(module: str) -> None:
    path = ROOT / "flight_server" / f"{module}.py"
    for name in imports(path):
        if name.startswith("flight_server."):
            assert server_module(name) in PURE
        else:
            assert name.partition(".")[0] in sys.stdlib_module_names - FILE_MODULES
    calls = [node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    assert "open" not in {function.id for function in calls if isinstance(function, ast.Name)}


@for_each_server_module
def test_grpc_stays_in_the_service_and_the_server(path: Path) -> None:
    module = server_module(dotted(path))
    if module not in GRPC_ALLOWED and not module.startswith("service_"):
        assert not top_level(path) & GRPC


@pytest.mark.parametrize("path", SERVER + CLIENT, ids=named)
def test_the_environment_is_read_only_by_the_configuration(path: Path) -> None:
    if named(path) in ENVIRONMENT_ALLOWED:
        return
    words = {node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)}
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            words |= {alias.name for alias in node.names}
    assert not words & {"environ", "environb", "getenv", "putenv"}


@pytest.mark.parametrize("module", sorted(PURE))
def test_a_pure_module_loads_nothing_but_the_standard_library(module: str) -> None:
    loaded = run_python(
        f"import sys; before = set(sys.modules); import flight_server.{module}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    ).split()
    assert set(loaded) - sys.stdlib_module_names <= {"flight_server"}


def test_importing_the_client_imports_neither_grpc_nor_the_server_nor_spark() -> None:
    loaded = set(run_python("import sys, spark_client; print(*sys.modules)").split())
    assert "spark_client" in loaded
    server = {name for name in loaded if name.split(".")[0] == "flight_server"}
    assert server <= SHARED
    assert not {name.partition(".")[0] for name in loaded} & (GRPC | {"aiohttp", "pyspark", "rich", "uvloop"})


@for_each_file
def test_a_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(parsed(path))


@for_each_file
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from .errors import NotFound", {"flight_server.errors"}),
        ("from . import errors, nothing", {"flight_server.errors", "flight_server"}),
        ("from flight_server import memory", {"flight_server.memory"}),
        ("def f():\n    import flight_server.catalogue, grpc.aio", {"flight_server.catalogue", "grpc.aio"}),
    ],
)
def test_imports_are_found_in_each_of_their_forms(
    source: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "flight_server" / "imagined.py"
    monkeypatch.setattr(sys.modules[__name__], "parsed", lambda _: ast.parse(source))
    assert imports.__wrapped__(path) == expected
