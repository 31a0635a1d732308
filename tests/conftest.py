"""Fixtures that all tests share.

The server runs on uvloop, and so do its async tests. The client's async calls run on the loop of the user's program:
its tests, and those of both together, run on asyncio and on uvloop. After each test nothing may be left over: no task,
no thread, no child process, no reserved byte (see ``tests.support.leftovers``). No step of a server's event loop may
have taken long (see ``tests.support.loop_steps``).
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import text
from pyarrow import flight

from spark_client.connection import Timeouts, embedded
from spark_client.hosts import open_files
from tests.support import (
    collecting,
    durable,
    java,
    leftovers,
    loop_steps,
    rooms,
    server_fork,
    server_process,
    spark_session,
)
from tests.support.polling import eventually
from tests.support.server_process import WATCHED, ServerProcess
from tests.support.spark_cluster import ALL_EXECUTORS, SPECULATION, Cluster, standalone_cluster
from tests.support.spark_home import spark_home
from tests.support.spark_session import SharedSessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A slow machine is no defect: no example has a deadline, and none is too slow to be made. Every run makes the same
# examples, here as in CI: few of them in `make test`, many in `make long`; `--hypothesis-profile=exploring` makes
# new ones.
patient = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)
settings.register_profile("few", patient, max_examples=10)
settings.register_profile("many", patient, max_examples=400)
settings.register_profile("exploring", patient, max_examples=400, derandomize=False)
settings.load_profile("few")

# Hundreds of processes are started, and a fifth of the start of a server compiles: they keep the result.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

TESTS = Path(__file__).parent

TOGETHER = {
    "on the cluster": (
        "test_applications",
        "test_broadcast_hosts",
        "test_cluster",
        "test_deployments",
        "test_drivers",
        "test_in_executors",
        "test_silent_servers",
    ),
    # Each Spark context starts seven Python processes to plan with a source.
    "with the data source": (
        "test_changelog",
        "test_changelog_feedback",
        "test_pages",
        "test_settings",
        "test_source",
        "test_source_streams",
        "test_source_writes",
    ),
    # Their master tries tasks again, which takes a context of its own.
    "with tasks that are tried again": (
        "test_failures",
        "test_step_failures",
        "test_write",
    ),
}
"""Files of Spark's tests that one process runs, because they share what takes long to start."""


def together(path: Path) -> str:
    """What the tests of a file share; its own name if nothing."""
    return next((name for name, files in TOGETHER.items() if path.stem in files), path.name)


_failed = pytest.StashKey[bool]()


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run an async test of the client on asyncio's loop, in long runs on uvloop too; another as the server runs."""
    if not _of_client(item):
        return {"uvloop": uvloop.new_event_loop}
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.config.getoption("--long"):
        loops["uvloop"] = uvloop.new_event_loop
    return loops


def _of_client(item: pytest.Item) -> bool:
    return item.path.relative_to(TESTS).parts[0] in ("spark_client", "integration")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what lengthens a run by hand."""
    parser.addoption(
        "--torture-seconds",
        type=float,
        default=None,
        help="how long the torture kills one server after the other",
    )
    parser.addoption(
        "--servers",
        type=int,
        default=1,
        help="how many embedded clients, and the shared one of Spark's tests, have",
    )
    parser.addoption("--torture-seed", type=int, default=1, help="what the torture chooses")
    parser.addoption(
        "--fuzz-seconds",
        type=float,
        default=None,
        help="how long programs are compared with Spark; a few without",
    )
    parser.addoption("--fuzz-seed", type=int, default=1, help="where the numbers of these programs begin")
    parser.addoption("--fuzz-servers", type=int, default=1, help="over how many servers they run")
    parser.addoption("--long", action="store_true", help="run the tests marked as long, too")
    parser.addoption(
        "--simulated-schedules",
        type=int,
        default=5,
        help="how many schedules of each simulated cluster",
    )
    parser.addoption(
        "--schedules-seconds",
        type=float,
        default=None,
        help="how long schedules of simulated clusters that are drawn at random are run; a few without",
    )
    parser.addoption("--schedules-seed", type=int, default=1, help="where the numbers of these begin")
    parser.addoption(
        "--collect-in-executors",
        action="store_true",
        help="run the collector while work is handed to executors, here and in servers: finds finalizers that wait",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch the event loops of the servers that the tests start; install what the options ask for."""
    # Ignored in what a shell starts in the background, and in all that this starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--collect-in-executors"):
        collecting.install()
        server_process.COMMAND = collecting.SERVER
    loop_steps.begin()
    # The servers that clients start are watched, too.
    embedded.PROGRAM = WATCHED
    # A test ends when the threads have looked that forget files.
    open_files._POLL_SECONDS = 0.02
    # Else they would be as many as the machine's cores ask for.
    os.environ["FLIGHT_SERVER_WORKERS"] = str(config.getoption("--servers"))
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(_Workers(), "workers")
        if config.getoption("numprocesses"):
            server_fork.share()


def pytest_unconfigure() -> None:
    """Remove what the servers have written."""
    gc.unfreeze()
    server_fork.end()
    loop_steps.end()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this one, if one did, the longest step."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["longest_step"] = dict(loop_steps.longest)


class _Workers:
    """Hands tests to pytest-xdist's workers, and collects the longest steps of theirs."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """With ``--dist loadfile`` one process runs all tests of a file, and of those that are ``TOGETHER``."""
        from xdist.scheduler import LoadFileScheduling

        class Together(LoadFileScheduling):
            def _split_scope(self, nodeid: str) -> str:
                return together(Path(nodeid.partition("::")[0]))

        return Together(config, log) if config.getvalue("dist") == "loadfile" else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        step = getattr(node, "workeroutput", {}).get("longest_step")
        if step is not None:
            loop_steps.compare(step)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the longest step of the run."""
    longest = loop_steps.longest
    if "step" in longest:
        terminalreporter.write_line(
            f"longest step of a server's event loop: {loop_steps.described(longest)}; {longest['test']}"
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the modules that have no test of those that are asked for: to import all takes each process seconds."""
    asked = config.getoption("markexpr")
    if not asked or not collection_path.match("test_*.py"):
        return None
    source = collection_path.read_text()
    if asked.startswith("spark") and "mark.spark" not in source:
        return True
    of_all = re.search(r"^pytestmark = .*", source, re.MULTILINE)
    marks = re.findall(r"mark\.(\w+)", of_all[0]) if of_all else []
    left_out = {mark for mark in ("spark", "load") if f"not {mark}" in asked}
    left_out |= _not_asked(config)
    return not left_out.isdisjoint(marks) or None


def _not_asked(config: pytest.Config) -> set[str]:
    """The marks of tests that run only where they are asked for."""
    asked = {"long": config.getoption("--long"), "containers": config.getoption("markexpr") == "containers"}
    return {mark for mark, is_asked in asked.items() if not is_asked}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the client's async tests on the loop of the server as long: they repeat those on asyncio's."""
    parameters: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    if parameters.get("_asyncio_loop_factory") is uvloop.new_event_loop and _of_client(item):
        item.add_marker(pytest.mark.long)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for long runs, or for an engine of containers; then what is quick runs first and load tests
    last, else in random order.

    Of the tests of Spark those that are ``TOGETHER`` come first, and then the slow ones: the others would wait for a
    process that began with them last. Files that can share a Spark context follow each other. A worker begins with two
    load tests: a long one and one of the shortest.
    """
    for marker in _not_asked(config):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(marker)])
        items[:] = [item for item in items if not item.get_closest_marker(marker)]

    def rank(item: pytest.Item) -> tuple[bool, bool, int, bool, str]:
        load, spark, slow = (item.get_closest_marker(name) is not None for name in ("load", "spark", "slow"))
        shared = together(item.path)
        place = [*TOGETHER].index(shared) if spark and shared in TOGETHER else len(TOGETHER)
        return load, spark, place, slow != spark, spark_settings(item).get("master", "")

    def seconds(item: pytest.Item) -> int:
        marker = item.get_closest_marker("load")
        return marker.kwargs.get("seconds", 0) if marker else 0

    items.sort(key=rank)
    load = sorted((item for item in items if item.get_closest_marker("load")), key=seconds, reverse=True)
    if load:
        pairs = zip_longest(load[: (len(load) + 1) // 2], reversed(load[(len(load) + 1) // 2 :]))
        items[-len(load) :] = [item for pair in pairs for item in pair if item]


def pytest_collection() -> None:
    """Collect no garbage meanwhile: what is made stays, and would be visited again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave the modules out of later collections: with them one takes up to a second, and many tests end with one.

    Hypothesis begins before: it looks for referrers of its own random numbers, and does not find frozen ones. Of a text
    it makes tables, which take seconds, and keeps them in a file: the first collection writes it.
    """
    given(text())(lambda _: None)()
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let fixtures know whether the test itself has failed."""
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(autouse=True)
def nothing_left_over(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail when a thread, a child process or a reserved byte outlives the test and its fixtures."""
    before = leftovers.snapshot()
    yield
    found = leftovers.left_over(before, reservations=not request.node.stash.get(_failed, False))
    if found:
        pytest.fail("left over by the test: " + "; ".join(found), pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def syntax_trees_of_one_module() -> Iterator[None]:
    """Forget them after it: they are half a million objects, and many later tests end with a collection."""
    yield
    rooms.parsed.cache_clear()


@pytest.fixture(autouse=True)
def no_long_step(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail when a step of a server's event loop took too long, unless the marker ``copied_by_grpc`` says why."""
    yield
    found = loop_steps.long_steps(request.node.nodeid)
    if request.node.get_closest_marker("copied_by_grpc"):
        found = [each for each in found if not loop_steps.may_be_grpcs(each)]
    if found:
        pytest.fail("a server's event loop stood still: " + "; ".join(found), pytrace=False)


@pytest.fixture(autouse=True)
def no_task_left_over(request: pytest.FixtureRequest, nothing_left_over: None) -> None:
    """Fail when an async test leaves a task in its loop; other tests get no loop for it."""
    if pytest_asyncio.is_async_test(request.node):
        request.getfixturevalue("_no_task_left_over")


@pytest_asyncio.fixture
async def _no_task_left_over() -> AsyncIterator[None]:
    yield
    found = await leftovers.tasks_left_over()
    if found:
        pytest.fail("left over by the test: " + "; ".join(found), pytrace=False)


@pytest.fixture(scope="session")
def java_home() -> Iterator[str]:
    """Return the home of a Java that Spark can use; the environment names it, and this Python, for Spark."""
    home = java.find_java_home()
    if home is None:
        pytest.fail(java.MISSING, pytrace=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        patch.setenv("SPARK_HOME", str(spark_home()))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        # Spark otherwise picks the machine's first address, which may not be reachable from itself.
        patch.setenv("SPARK_LOCAL_IP", os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"))
        # JVMs of tests are short-lived: their second compiler would take more time than it saves, and so would the
        # verification of classes, a tenth of it all.
        flags = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions"
        flags += " -XX:-BytecodeVerificationRemote"
        patch.setenv("JDK_JAVA_OPTIONS", os.environ.get("JDK_JAVA_OPTIONS", flags))
        # A program as it stands on a page needs neither Spark's UI nor its many partitions.
        submit = "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=4"
        patch.setenv("PYSPARK_SUBMIT_ARGS", os.environ.get("PYSPARK_SUBMIT_ARGS", f"{submit} pyspark-shell"))
        patch.setitem(
            spark_session.SETTINGS_OF_ALL, "python__daemon__module", "spark_client.executors.forked_workers"
        )
        # The JVM of a process runs the queries of hundreds of tests, many alike, and compiles again what a cache of a
        # hundred classes has forgotten.
        patch.setitem(spark_session.SETTINGS_OF_ALL, "sql__codegen__cache__maxEntries", "5000")
        yield str(home)


def spark_settings(node: pytest.Item | pytest.FixtureRequest) -> dict[str, str]:
    """The arguments of ``local_session`` that a module wants, as its ``SPARK_SETTINGS`` say; ``cluster`` as the master
    stands for the cluster of all tests.
    """
    return getattr(getattr(node, "module", None), "SPARK_SETTINGS", {})


@pytest.fixture(scope="session")
def _spark_sessions(java_home: str) -> Iterator[SharedSessions]:
    with closing(SharedSessions()) as sessions:
        yield sessions


@pytest.fixture(scope="session")
def cluster(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of two workers with room for two applications, whose executors have one core each."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), cores=2) as found:
        yield found


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest, _spark_sessions: SharedSessions) -> SparkSession:
    """A session of this module, with the settings that it wants; see ``SharedSessions``."""
    settings = spark_settings(request)
    if settings.get("master") == "cluster":
        found: Cluster = request.getfixturevalue("cluster")
        settings = found.settings | ALL_EXECUTORS | SPECULATION | settings | {"master": found.master}
    return _spark_sessions.session(**settings)


@pytest.fixture
def flight_server_process() -> Iterator[Callable[..., ServerProcess]]:
    """Return a function that starts a real server process; its options are ``ServerProcess.start``'s.

    Servers that the test has not ended itself are terminated afterwards and must exit with 0.
    """
    servers: list[ServerProcess] = []

    def start(*arguments: str, **options: object) -> ServerProcess:
        server = ServerProcess.start(*arguments, **options)  # type: ignore[arg-type] # any option goes through
        servers.append(server)
        return server

    yield start
    try:
        for server in servers:
            if server.returncode is None:
                code = server.terminate()
                assert code == 0, f"SIGTERM ended the server with {code}:\n{server.tail()}"
    finally:
        for server in servers:
            server.close()


@pytest.fixture(scope="module")
def _process() -> Iterator[ServerProcess]:
    with ServerProcess.start() as server:
        yield server
        assert server.terminate() == 0, server.tail()


@pytest.fixture
def empty_server(_process: ServerProcess) -> Iterator[ServerProcess]:
    """Return a real server without datasets; tests of the same module have used it before."""
    with closing(flight.connect(_process.location)) as client:

        def datasets() -> list[str]:
            # Flights are listed without those whose producer has failed.
            return [*durable.action(client, "statistics")["datasets"]]

        assert datasets() == [], "left over by an earlier test of this module"
        yield _process
        eventually(lambda: durable.action(client, "why")["waits"], [])
        for name in datasets():
            durable.action(client, "drop", dataset=name)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again almost at once, and a merge's threads are waited for on a busy host, too."""
    for name, seconds in (
        ("backoff_seconds", 0.001),
        ("backoff_limit_seconds", 0.01),
        ("slot_seconds", 0.01),
        ("close_seconds", 30.0),
    ):
        monkeypatch.setattr(Timeouts, name, seconds)
