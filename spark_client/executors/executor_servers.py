"""The servers of each executor, started by the first task that asks for them and found by all others.

Guarantee: for one :class:`ExecutorServers` an executor has at most one process of a server, or of a supervisor with its
workers, one for each four of the executor's cores. They listen on the address by which this host reaches the driver,
demand the token, and end with the executor's JVM. They survive the Python worker that started them: they have a session
of their own, and Spark's Python daemon signals its own group only.

Who finds whom
    Tasks of one executor share its block manager's directories (``SPARK_LOCAL_DIRS``). In the first of them is a folder
    for the application's servers: the file ``lock``, which a task holds while it looks and starts, ``server.json``
    (locations, process and the start of it), the servers' ``log``, and their temporary data directories.
    Spark removes the directories with the executor.

Who ends them before
    The close of the client ends the servers that its driver knows, from the reports of jobs. Those of a client whose
    jobs have all failed are unknown: they are ended before a later client of the same driver starts its own there.

What an executor needs
    The package with its server (``flight-shuffle[server]``), in the Python that runs the tasks; memory beyond the
    JVM's heap and the Python workers (``spark.executor.memoryOverhead``); no limit on the address space below 2 GiB.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import zipfile
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flight_server.host import machine
from flight_server.protocol import InvalidRequest, Unavailable
from spark_client.connection import RemoteServer, embedded, refuses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWER_SECONDS = 10.0
ADDRESS_SPACE_BYTES = 2 << 30
"""An idle server needs 0.45 GB of address space, a busy one what its threads and buffers map."""
_NEEDED = (
    "aiohttp",
    "grpc",
    "prometheus_client",
    "pydantic_settings",
    "structlog",
    "typer",
    "uvloop",
)
"""The modules of the extra ``server``."""
_CONFIG = "server.toml"
"""An empty file. Its path on the command line says whose server a process is."""
_CANNOT = "no server can run in this executor: "
_ANY_PORT = 9
_REASON = re.compile(f"{_CANNOT}[^\n]*")


def executor_process() -> int:
    """The JVM that this process descends from: its executor, or the driver in local mode.

    Raises:
        InvalidRequest: there is none.
    """
    pid = os.getpid()
    while (pid := int(_stat(pid)[2])) > 0:
        if _stat(pid)[0] == "java":
            return pid
    raise InvalidRequest(
        "no JVM is among the parents of this process: servers in executors are started by Spark's tasks"
    )


def cores_of(pid: int) -> int | None:
    """How many tasks an executor's JVM runs at once, which its command line says; None for the driver's in local
    mode.
    """
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    counts = [after for word, after in pairwise(words) if word == b"--cores" and after.isdigit()]
    return int(counts[-1]) if counts else None


def start_of(pid: int) -> int | None:
    """The clock tick of a process's start; None if it has ended, also while its parent has not waited for it."""
    try:
        fields = _stat(pid)
    except OSError:
        return None
    return None if fields[1] == "Z" else int(fields[20])


def _stat(pid: int) -> list[str]:
    """The name, state, parent and further fields of /proc/PID/stat; the start is the 21st."""
    text = Path(f"/proc/{pid}/stat").read_text()
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :]
    return [name, *rest.split()]


@dataclass(frozen=True)
class RunningServers:
    """An executor's servers: where they listen, and the process, of the only one or of their supervisor, with the clock
    tick of its start.
    """

    locations: tuple[str, ...]
    pid: int
    started: int

    @property
    def location(self) -> str:
        return self.locations[0]

    @property
    def alive(self) -> bool:
        return start_of(self.pid) == self.started


@dataclass(frozen=True)
class ExecutorServers:
    """The servers of one application's executors; pickled into its tasks.

    Args:
        token: every call to these servers must carry it. It is random, and known to the application's tasks only.
        driver_host: a server listens on the address by which its host reaches it.
        options: of the servers, as for ``ShuffleClient.embedded``; ``workers`` says how many there are in an executor.
        scratch_dirs: where servers keep data that memory has no room for; empty for Spark's local directories.
    """

    token: str = field(repr=False)
    driver_host: str
    options: Mapping[str, Any] = field(default_factory=dict)
    scratch_dirs: tuple[str, ...] = ()
    closed: tuple[str, ...] = field(default_factory=lambda: tuple(_closed))
    """The applications of clients that this one's driver has closed before."""

    @property
    def application(self) -> str:
        """A name that is the token's, from which the token cannot be told."""
        return hashlib.sha256(self.token.encode()).hexdigest()[:32]

    def here(self, tries: int = 0) -> RunningServers:
        """The servers of the executor whose task calls; starts them if they do not run. Blocks for a second then.

        Args:
            tries: how often Spark has tried the task before. A new try ends the servers if one of them does not answer
                within ``ANSWER_SECONDS``, because it may be the reason; then others are started. One that has ended is
                the supervisor's to start again.

        Raises:
            InvalidRequest: no Spark executor runs this process; or its Python lacks packages, or its address space is
                limited too tightly: the message says what to change, also to :func:`reason_of`.
            Unavailable: they have ended, or do not serve within ``embedded.START_SECONDS``; likewise, with their last
                lines. Or the directories cannot be written, or the driver's host has no address.
        """
        known = _known.get(self.token)
        if known is not None and known.alive and not tries:
            return known
        local_dirs = _local_dirs()
        folder = _folder(self.application)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            with _locked(folder / "lock"):
                running = _read(folder / "server.json")
                if running is not None and tries and running.alive and not self._answer(running):
                    os.killpg(running.pid, signal.SIGKILL)
                    running = None
                if running is None or not running.alive:
                    _end_unknown([folder, *map(_folder, self.closed)])
                    running = self._start(folder, Path((self.scratch_dirs or local_dirs)[0]))
        except OSError as error:
            raise Unavailable(f"{_CANNOT}on {socket.gethostname()}: {error}") from error
        _known[self.token] = running
        return running

    @contextmanager
    def once(self, things: Collection[str]) -> Iterator[list[str]]:
        """Those of ``things`` that no block before has had in this executor, to one block at a time; not if it raises.
        After :meth:`here`.
        """
        with (_folder(self.application) / "once").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            had = file.read().splitlines()
            news = [each for each in things if each not in had]
            yield news
            if news:
                file.truncate(0)
                file.writelines(f"{each}\n" for each in things)

    def close(self) -> None:
        """Of the client in the driver: later ones end servers of it that still run."""
        _closed.append(self.application)

    def _answer(self, running: RunningServers) -> bool:
        """Whether a server answers, and each that accepts connections does."""
        answered = False
        for location in running.locations:
            with closing(RemoteServer(location, token=self.token, direct=True)) as remote:
                try:
                    remote.action("locations", timeout_seconds=ANSWER_SECONDS, once=True)
                    answered = True
                except Unavailable:
                    if not refuses([location]):
                        return False
        return answered

    def _start(self, folder: Path, scratch: Path) -> RunningServers:
        _check_address_space()
        _check_packages()
        config, process_of_executor = folder / _CONFIG, executor_process()
        config.touch()
        settings = {
            "host": address_towards(self.driver_host),
            "port": 0,
            "http_port": 0,
            "log_format": "json",
            "config": config,
            "exit_with_process": process_of_executor,
            "workers": 0,
            "cores": min(machine.cores(), cores_of(process_of_executor) or sys.maxsize),
            "copies_of": self.application,
            # Broadcasts pass from executor to executor. Only the application's tasks can ask for it.
            "source_flight": "*",
        }
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - our own module with the application's own options
                [sys.executable, "-m", "flight_server", *embedded.flags(settings | dict(self.options))],
                env={
                    **os.environ,
                    **embedded.PLAIN,
                    "FLIGHT_SERVER_TOKEN": self.token,
                    "PYTHONPATH": os.pathsep.join(_paths()),
                    "TMPDIR": str(scratch),
                },
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            locations = embedded.serving(
                process,
                lambda: log.read_text(errors="replace").splitlines(),
                f"{_CANNOT}that of the executor on {socket.gethostname()}",
            )
            running = RunningServers(locations, process.pid, start_of(process.pid) or 0)
            _write_private(folder / "server.json", json.dumps(vars(running)))
        except BaseException:
            process.kill()
            process.wait()
            raise
        _started.append(process)
        return running


def reason_of(error: BaseException) -> str | None:
    """Why a task could not start its server, by the error of its job; None if the job failed otherwise."""
    reason = _REASON.search(str(error))
    return None if reason is None else reason[0]


def address_towards(host: str) -> str:
    """The address of this host on the way to another one, or to itself; nothing is sent.

    Raises:
        OSError: the other one's name has no address, or there is no way to it.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def address_of_driver(spark: SparkSession | None = None) -> str:
    """The address of this host for a session's executors, those of the active one for None: that by which this host
    reaches ``spark.driver.host``, which on Spark Classic is this host.

    Raises:
        InvalidRequest: there is no session; or its driver's host is not known, or has no address here.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - not for clients without Spark
    from pyspark.sql import SparkSession as Session  # noqa: PLC0415 - as above

    try:
        host = (spark or Session.active()).conf.get("spark.driver.host")
        return address_towards(str(host))
    except (PySparkException, OSError) as error:
        raise InvalidRequest(
            "by which address do executors reach this host? Make the Spark session first, whose spark.driver.host says "
            f"it, or give host= and advertise_host= ({error})"
        ) from error


def _local_dirs() -> list[str]:
    local_dirs = [each for each in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if each]
    if not local_dirs:
        raise InvalidRequest(
            "this process is no Python worker of a Spark executor (SPARK_LOCAL_DIRS is not set): servers in "
            "executors are started by tasks"
        )
    return local_dirs


def _folder(application: str) -> Path:
    return Path(_local_dirs()[0], f"flight-shuffle-{application}")


_closed: deque[str] = deque(maxlen=16)
"""The applications of the last clients that this driver has closed."""
_known: dict[str, RunningServers] = {}
"""Those of this process's executor, by their token."""
_started: list[subprocess.Popen[bytes]] = []
"""Processes that this one has started: Python complains of a child that runs and has no object."""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> RunningServers | None:
    try:
        facts = json.loads(path.read_text())
        return RunningServers(tuple(facts["locations"]), facts["pid"], facts["started"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # none was started yet


def _end_unknown(folders: Iterable[Path]) -> None:
    """Kill servers whose client is closed; whose starter was killed before it could say where; and workers whose
    supervisor was killed: no task knows them, and their lines would be taken for those of the next ones.
    """
    ours = {os.fsencode(folder / _CONFIG) for folder in folders}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if ours.isdisjoint((process / "cmdline").read_bytes().split(b"\0")):
                continue
            ended = os.pidfd_open(int(process.name))
            try:
                signal.pidfd_send_signal(ended, signal.SIGKILL)
                waiting = select.poll()
                waiting.register(ended, select.POLLIN)
                waiting.poll(embedded.START_SECONDS * 1000)
            finally:
                os.close(ended)


def _write_private(path: Path, text: str) -> None:
    """Write a file for this user, whole or not at all."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    unfinished.rename(path)


def _check_address_space() -> None:
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[1]
    if limit_bytes != resource.RLIM_INFINITY and limit_bytes < ADDRESS_SPACE_BYTES:
        raise InvalidRequest(
            f"{_CANNOT}its Python workers have an address space of {limit_bytes >> 20} MiB "
            "(spark.executor.pyspark.memory), which a server that they start inherits, and it needs "
            f"{ADDRESS_SPACE_BYTES >> 20} MiB: leave spark.executor.pyspark.memory out, or raise it"
        )


def _check_packages() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if any(map(_is_client, sys.path)) and PathFinder.find_spec("flight_server", _paths()) is None:
        missing.append("flight_server")
    if missing:
        raise InvalidRequest(
            f"{_CANNOT}its Python ({sys.executable} on {socket.gethostname()}) has no {', '.join(missing)}. "
            "Install the wheel with its extra server in the executors' image, or send an environment that has it by "
            "spark.archives=env.tar.gz#env and PYSPARK_PYTHON=./env/bin/python (venv-pack makes it); or name a server "
            "that runs elsewhere"
        )


def _paths() -> list[str]:
    """Where this process finds modules, without the zip that ``ship`` sends, which has no server."""
    paths = [each for each in sys.path if each and not _is_client(each)]
    return [str(Path(each).resolve()) for each in paths]


def _is_client(path: str) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return "flight_server/__init__.py" in names and "flight_server/__main__.py" not in names
