"""The rules that keep the code's parts apart, checked on the source and, where it matters, in a new process."""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support import rooms
from tests.support.python_program import output_of
from tests.support.rooms import MODULES, ROOMS, ROOT, dotted, imports, parsed, room_of, sources

# Shared with the client, or so central that they must be testable with nothing installed.
PURE = ("protocol", "memory", "concurrency")
# What loads more than its room may has a door of its own beside the face: pyarrow, which has the only buffers that the
# checksums' library takes beside bytes.
DOORS = frozenset(
    {
        "flight_server.protocol.checksums",
        "flight_server.protocol.enveloped",
    }
)
# What compares a dataset's kind: the requests, the attachments that datasets begin with, and the kinds.
KNOW_KINDS = (
    "flight_server/protocol/requests.py",
    "flight_server/datasets/attachment.py",
    "flight_server/kinds/",
)
# What a put, a get and an exchange need. Pipelines with their scans, changelogs with their lookups, broadcasts and the
# data source are add-ons.
CORE = frozenset(
    {
        "settings",
        "jobs",
        "steps",
        "joining",
        "reducing",
        "executors",
        "hosts",
        "merge",
        "lanes",
        "connection",
        "servers",
        "spill",
        "placement",
        "arrow",
        "pyspark_parts",
    }
)
# Modules at a package's root that import nothing.
LEAVES = frozenset({"spark_client.version"})
FILE_MODULES = frozenset({"io", "mmap", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile"})
# What the client may know of the server: its words, its accounting of memory, the directories of a host, and its
# hashes of keys.
SHARED = frozenset({"protocol", "memory", "host", "keys", "tracing"})
GRPC = frozenset({"grpc", "grpc_health", "grpc_status"})
# A relay is a client of another server, and takes its messages as bytes, which pyarrow's client cannot do.
GRPC_ALLOWED = ("flight_server/lanes/grpc/", "flight_server/server.py", "flight_server/kinds/source/relay.py")
# The embedded server's process is handed its parent's environment; nothing is read from it there. Which
# interpreter Spark starts, how its workers show errors, and where they keep files is said in Spark's own variables; how
# Arrow's allocator frees, in Arrow's; what gRPC logs beside a command's own line, in gRPC's.
ENVIRONMENT_ALLOWED = frozenset(
    {
        "flight_server/config.py",
        "flight_server/host/arrow_pages.py",
        "flight_server/tracing/spans.py",
        "spark_client/connection/embedded.py",
        "spark_client/commands/application.py",
        "spark_client/commands/doctor.py",
        "spark_client/executors/executor_servers.py",
        "spark_client/executors/interpreter.py",
        "spark_client/executors/shipping.py",
    }
)
# An executor has these and the standard library. PySpark brings pandas.
CLIENT_LIBRARIES = frozenset(
    {"flight_server", "google_crc32c", "numpy", "pandas", "pyarrow", "pyspark", "spark_client"}
)
# What PySpark's own pages show, in all versions that the package supports.
DOCUMENTED = frozenset(
    {
        "pyspark",
        "pyspark.errors",
        "pyspark.sql",
        "pyspark.sql.datasource",
        "pyspark.sql.functions",
        "pyspark.sql.types",
    }
)
# Used where it is installed, and done without where it is not; the commands need theirs.
OPTIONAL_LIBRARIES = {
    **{
        path.relative_to(ROOT).as_posix(): {"rich", "typer"}
        for path in (ROOT / "spark_client" / "commands").glob("*.py")
    },
    "spark_client/jobs/progress.py": {"IPython"},
    "spark_client/pipeline/looking.py": {"polars"},
}

SERVER, CLIENT = sources("flight_server"), sources("spark_client")
FACES = [(package, room) for package in ROOMS for room in ROOMS[package]]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def for_each(files: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Check all of these files in one test, which names each that is wrong: a test for each would take a minute."""

    def decorated(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            wrong = []
            for path in files:
                try:
                    check(path)
                except AssertionError as error:
                    wrong.append(f"{named(path)}: {error}")
            assert not wrong, "\n".join(wrong)

        return test

    return decorated


for_each_server_module, for_each_client_module = for_each(SERVER), for_each(CLIENT)
for_each_module = for_each(SERVER + CLIENT)
for_each_pure_module = for_each(
    [path for path in SERVER if room_of(dotted(path)) in PURE and dotted(path) not in DOORS]
)
for_each_room = pytest.mark.parametrize(("package", "room"), FACES, ids=[".".join(face) for face in FACES])


def top_level(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


@for_each_room
def test_a_room_is_a_folder_whose_face_says_what_it_is_for(package: str, room: str) -> None:
    face = MODULES[f"{package}.{room}"]
    assert face.name == "__init__.py"
    assert ast.get_docstring(parsed(face))


def test_a_rule_names_each_file_that_breaks_it() -> None:
    @for_each([ROOT / "a", ROOT / "b", ROOT / "c"])
    def rule(path: Path) -> None:
        assert path.name == "b", "no b"

    with pytest.raises(AssertionError, match=r"(?s)^a: no b.*\n +c: no b"):
        rule()


def test_every_folder_is_in_the_table_of_rooms() -> None:
    for package, known in ROOMS.items():
        folders = {path.parent.relative_to(ROOT / package) for path in sources(package)}
        found = {".".join(folder.parts) for folder in folders} - {""}
        assert found == {*known, *(room.partition(".")[0] for room in known)}


@for_each_module
def test_a_module_imports_only_from_rooms_below_and_only_what_their_faces_show(path: Path) -> None:
    module, package = dotted(path), dotted(path).partition(".")[0]
    floors = ("", *ROOMS[package])
    own = room_of(module)
    for name in imports(path):
        if not name.startswith(f"{package}.") or name in LEAVES:
            continue
        other = room_of(name)
        if other == own:
            continue
        assert floors.index(other) > floors.index(own), (
            f"{named(path)} imports {name}, and {own or package} lies below it"
        )
        modules_of_face = {f"{package}.{other}.{each}" for each in _modules_shown(package, other)}
        assert name == f"{package}.{other}" or name in modules_of_face | DOORS, (
            f"{named(path)} imports {name}: import it from the face, {package}.{other}"
        )


def _modules_shown(package: str, room: str) -> set[str]:
    """A room's modules that others import as a whole (`from room import module`)."""
    return {name.rpartition(".")[2] for name in MODULES if name.startswith(f"{package}.{room}.")} & WHOLE


# Modules whose functions read better behind the module's name.
WHOLE = frozenset(
    {
        "allocator",
        "bulk_get",
        "bulk_put",
        "directories",
        "embedded",
        "flight_infos",
        "flight_sql",
        "ipc_framing",
        "machine",
        "metrics",
        "reading",
    }
    | {"reports", "stages", "unused_libraries", "wire"}
)


def test_the_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {
        name: {other for other in imports(path) & MODULES.keys() if MODULES[other].name != "__init__.py"}
        - {name}
        for name, path in MODULES.items()
    }
    graphlib.TopologicalSorter(graph).prepare()


@for_each_client_module
def test_the_client_s_core_imports_neither_pipelines_nor_changelogs(path: Path) -> None:
    if room_of(dotted(path)) in CORE or dotted(path) == "spark_client.dataset_calls":
        ours = {name for name in imports(path) if name.startswith("spark_client.")} - LEAVES
        assert {room_of(name) for name in ours} <= CORE


def test_three_modules_outside_its_room_and_the_records_name_the_changelog() -> None:
    rooms = {ROOT / "flight_server" / "kinds" / "changelog", ROOT / "flight_server" / "records"}
    found = {
        named(path)
        for path in SERVER
        if not rooms & set(path.parents) and "changelog" in path.read_text().lower()
    }
    assert found == {f"flight_server/{each}.py" for each in ("config", "node", "protocol/requests")}


@for_each_server_module
def test_a_module_asks_a_kind_and_does_not_compare_it(path: Path) -> None:
    if named(path).startswith(KNOW_KINDS):
        return
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Compare):
            operands = [part for each in (node.left, *node.comparators) for part in ast.walk(each)]
            names = {
                part.value.id
                for part in operands
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
            }
            assert "Kind" not in names, f"line {node.lineno}"


@for_each_server_module
def test_the_server_imports_neither_the_client_nor_spark(path: Path) -> None:
    assert not top_level(path) & {"pandas", "py4j", "pyspark", "spark_client"}


@for_each_client_module
def test_the_client_knows_only_the_shared_rooms_of_the_server(path: Path) -> None:
    names = {name for name in imports(path) if name.split(".")[0] == "flight_server"}
    assert {room_of(name) for name in names} <= SHARED


@for_each_client_module
def test_one_room_imports_what_pyspark_does_not_document(path: Path) -> None:
    if room_of(dotted(path)) != "pyspark_parts":
        assert {name for name in imports(path) if name.split(".")[0] == "pyspark"} <= DOCUMENTED


@for_each_client_module
def test_the_client_needs_only_what_every_executor_has(path: Path) -> None:
    optional = OPTIONAL_LIBRARIES.get(named(path), set())
    assert top_level(path) <= CLIENT_LIBRARIES | sys.stdlib_module_names | optional


@for_each_pure_module
def test_a_pure_module_imports_only_the_standard_library_and_opens_no_file(path: Path) -> None:
    for name in imports(path):
        if name.startswith("flight_server."):
            assert room_of(name) in PURE
        else:
            library = name.partition(".")[0]
            allowed = named(path) in MAY_OPEN_FILES.get(library, ())
            assert allowed or library in sys.stdlib_module_names - FILE_MODULES
    calls = [node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    assert "open" not in {function.id for function in calls if isinstance(function, ast.Name)}


# The allocator asks the process for its resident size.
MAY_OPEN_FILES = {
    "os": ("flight_server/memory/allocator.py",),
    "pathlib": ("flight_server/memory/allocator.py",),
}


@for_each_server_module
def test_grpc_stays_in_its_lane_the_server_and_the_relay(path: Path) -> None:
    if not named(path).startswith(GRPC_ALLOWED):
        assert not top_level(path) & GRPC


@for_each_module
def test_the_environment_is_read_only_by_the_configuration(path: Path) -> None:
    if named(path) in ENVIRONMENT_ALLOWED:
        return
    words = {node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)}
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            words |= {alias.name for alias in node.names}
    assert not words & {"environ", "environb", "getenv", "putenv"}


@pytest.mark.parametrize("room", PURE)
def test_a_pure_room_loads_nothing_but_the_standard_library(room: str) -> None:
    loaded = output_of(
        f"import sys; before = set(sys.modules); import flight_server.{room}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    ).split()
    assert set(loaded) - sys.stdlib_module_names <= {"flight_server"}


def test_importing_the_client_starts_no_thread_and_imports_neither_grpc_nor_the_server_nor_spark() -> None:
    program = "import sys, threading, spark_client.client; assert threading.active_count() == 1; print(*sys.modules)"
    loaded = set(output_of(program).split())
    assert "spark_client" in loaded
    server = {name for name in loaded if name.startswith("flight_server.")}
    assert {room_of(name) for name in server} <= SHARED | set(PURE)
    assert not {name.partition(".")[0] for name in loaded} & (GRPC | {"aiohttp", "pyspark", "rich", "uvloop"})
    assert "pyarrow.compute" not in loaded


def test_a_task_that_looks_up_loads_nothing_that_only_drivers_need() -> None:
    # Each Python worker loads it in its first batch, while the query waits.
    program = (
        "import sys, spark_client.lookup.lookup_join, spark_client.lookup.lookup_content; print(*sys.modules)"
    )
    loaded = set(output_of(program).split())
    assert "spark_client.lookup.host_images" in loaded
    ours = {room_of(name) for name in loaded if name.startswith("spark_client.")}
    assert not ours & {"jobs", "steps", "datasource", "reducing", "pipeline", "scan", "settings"}
    assert not {"pandas", "spark_client.client", "spark_client.lookup.lookups"} & loaded


def test_a_server_loads_the_libraries_of_the_file_formats_only_for_a_source() -> None:
    loaded = set(
        output_of("import sys, flight_server.__main__, flight_server.node; print(*sys.modules)").split()
    )
    assert "flight_server.kinds.source.pulls" in loaded
    assert not loaded & {
        "pandas",
        "pyarrow.compute",
        "pyarrow.csv",
        "pyarrow.dataset",
        "pyarrow.fs",
        "pyarrow.parquet",
    }


def test_the_drawing_shows_every_room_and_no_arrow_back() -> None:
    drawn = rooms.drawing()
    for package, known in ROOMS.items():
        floor_of = rooms.floors(package)
        for room in known:
            assert f" {room} " in drawn or f" {room}\n" in drawn
            assert all(floor_of[other] < floor_of[room] for other in rooms.arrows(package)[room])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from .errors import NotFound", {"flight_server.protocol.errors"}),
        ("from . import errors, nothing", {"flight_server.protocol.errors", "flight_server.protocol"}),
        ("from flight_server import protocol", {"flight_server.protocol"}),
        ("def f():\n    import flight_server.datasets, grpc.aio", {"flight_server.datasets", "grpc.aio"}),
    ],
)
def test_imports_are_found_in_each_of_their_forms(
    source: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "flight_server" / "protocol" / "imagined.py"
    monkeypatch.setattr(rooms, "parsed", lambda _: ast.parse(source))
    assert imports.__wrapped__(path) == expected
