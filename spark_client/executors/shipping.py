"""Brings the package to executors as a zip, explains the error where it is missing, and settles Python's workers.

Guarantee: :func:`ship`, or the file that ``flight-shuffle zip`` writes, has all that an executor needs but pyarrow,
numpy and google-crc32c: the modules of ``spark_client`` without ``commands``, and those of ``flight_server`` that they
import. The same sources give the same bytes of that file.

A zip, because Spark does not put wheels on the path of its tasks.

Compiled
    Python compiles the sources of a zip in each process again: 0.4 CPU seconds in every new Python worker. So the zip
    that :func:`ship` sends has each module compiled, too, by the driver's Python, of whose version those of the tasks
    are. Another Python compiles the sources.

A worker's garbage
    PySpark's worker collects garbage after every task. With pyarrow, numpy, PySpark and this package imported that
    takes 20 ms, more than half of the cost of a small task. :func:`settle` moves all live objects to the permanent
    generation, which a collection does not visit. Objects that are in it are still freed by their reference counts;
    only cycles among them never are. So a worker settles only when modules were imported since the last time, a few
    times in its life, and before a task's function is unpickled: nothing of a function or its data is alive then.

A worker's connection
    Spark's executor sends a task to its worker in several small pieces. TCP holds each back until the one before is
    acknowledged (Nagle's algorithm), and the worker's kernel delays that for 40 ms, because the worker answers nothing
    until it has all: four fifths of a small task. :func:`settle` lets the worker acknowledge at once. The kernel
    delays again when the worker has sent its results, so this is done for each task. Nor are the results held back.
    Where ``spark.python.unix.domain.socket.enabled`` is set, nothing is delayed, and nothing is done.

Errors of users' functions
    Spark shows them without the frames of PySpark that called the function
    (``spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled``). :func:`shown_from_users` leaves out ours, too,
    where Spark's setting, which it hands to its workers in their environment, is on. Of a mistake that no function
    raised, as of an expression that a value does not allow, the last line is shown; other errors of the stages or their
    input are shown whole.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import gc
import hashlib
import io
import marshal
import os
import shutil
import socket
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

from flight_server.protocol import InvalidRequest
from spark_client.connection import of_users
from spark_client.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Task = Callable[..., Iterator[Any]]

_REGISTRATION = "pyspark_flight_shuffle.py"
_OURS = ("spark_client/", "flight_server/", _REGISTRATION)
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold."""


def shown_from_users(function: Task) -> Task:
    """The function, whose errors begin with the first line that is not of the libraries between Spark and the user's
    function. Without such a line an :class:`InvalidRequest` has its last line alone, and another error is unchanged.
    """
    if not os.environ.get("SPARK_SIMPLIFIED_TRACEBACK"):
        return function
    import pyspark  # noqa: PLC0415 - only tasks come here

    def run(*arguments: Any) -> Iterator[Any]:
        try:
            yield from function(*arguments)
        except Exception as error:  # noqa: BLE001 - raised again
            raise error.with_traceback(of_users(error.__traceback__) or _of_ours(error))  # noqa: B904 - it is the same error

    # Raising adds the frame of this function. Spark leaves out the first frames that are of files beside PySpark's.
    beside = str(Path(pyspark.__file__).parent / "flight_shuffle.py")
    return FunctionType(
        run.__code__.replace(co_filename=beside), run.__globals__, "run", None, run.__closure__
    )


def _of_ours(error: Exception) -> TracebackType | None:
    trace = error.__traceback__
    while isinstance(error, InvalidRequest) and trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def zipped(*, compiled: bool = False) -> bytes:
    """The zip's bytes; with each module ``compiled``, too, which may be other bytes each time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sorted(_sources().items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), source, zipfile.ZIP_DEFLATED)
            if compiled:
                archive.writestr(
                    zipfile.ZipInfo(f"{name}c", _EPOCH), _compiled(name, source), zipfile.ZIP_DEFLATED
                )
    return out.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    """The module as Python loads it without a look at its source (PEP 552, unchecked)."""
    path, module = Path(__file__).parents[2] / name, name.removesuffix(".py").replace("/", ".")
    # The driver has most of them compiled.
    code = (
        SourceFileLoader(module, str(path)).get_code(module)
        if path.is_file()
        else compile(source, name, "exec", dont_inherit=True)
    )
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(source) + marshal.dumps(code)


def write_zip(path: Path) -> None:
    """Write the zip to a file. Raises InvalidRequest: Spark needs another name; OSError."""
    if path.suffix != ".zip":
        # Spark puts files of other names, wheels for example, on no path, and says nothing.
        raise InvalidRequest(f"Spark needs a name that ends with .zip, not {path.name!r}")
    try:
        path.write_bytes(zipped())
    except OSError as error:
        raise OSError(f"the zip cannot be written: {error}") from error


def ship(spark: SparkSession) -> None:
    """Make the package available to all later tasks of the session, Classic or Connect. Twice is fine."""
    spark.addArtifacts(str(_file()), pyfile=True)


@cache
def _file() -> Path:
    """The zip in a file that exists until this process ends: executors that start later fetch it, too."""
    data = zipped(compiled=True)
    # Spark refuses a file of the same name with other content.
    path = private_directory() / f"flight_shuffle-{hashlib.sha256(data).hexdigest()[:16]}.zip"
    path.write_bytes(data)
    return path


def private_directory() -> Path:
    """A new one, which exists until this process ends, not one that it forks."""
    directory, owner = Path(tempfile.mkdtemp(prefix="flight-shuffle-")), os.getpid()

    @atexit.register
    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)

    return directory


class Portable:
    """A function for Spark's tasks, sent as bytes with a loader that refers to nothing of the package.

    Unpickling gives the function itself, or what :func:`shown_from_users` makes of it.

    Raises:
        ImportError: on unpickling, a package is missing, or this package has another version than the driver's; the
            message names the remedy.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return portable(shown_from_users, self._function)


class _Made:
    """Unpickles as ``kind(*arguments)``."""

    def __init__(self, kind: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._made = (kind, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made


def portable(kind: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """The answer of ``__reduce__`` for an object that Spark sends to tasks, to be unpickled like a
    :class:`Portable`.
    """
    from spark_client.pyspark_parts import cloudpickle  # noqa: PLC0415 - making the zip needs no PySpark

    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    return _loader(), (dumps(_Made(kind, arguments)), __version__)


def _loader() -> Callable[[bytes, str], Any]:
    # cloudpickle sends a function inside a function as code, not as the name of a module to import.
    def load(data: bytes, version: str) -> Any:
        import pickle  # noqa: PLC0415 - this code stands alone; what Spark would unpickle itself
        import socket  # noqa: PLC0415 - as above
        import sys  # noqa: PLC0415 - as above

        here = f"the Python of this executor ({sys.executable} on {socket.gethostname()})"
        try:
            import spark_client  # noqa: PLC0415 - as above

            installed = getattr(spark_client, "__version__", "of an unknown version")
            if installed == version:
                from spark_client.executors import settle  # noqa: PLC0415 - as above

                settle()
                return pickle.loads(data)  # noqa: S301 - as Spark would
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing in ("spark_client", "flight_server"):
                remedy = (
                    "call ship(spark) of the ShuffleClient before the pipeline, give spark-submit --py-files the zip "
                    "that `flight-shuffle zip` writes, or install flight-shuffle there"
                )
            elif missing in ("pyarrow", "numpy", "google", "google_crc32c"):
                remedy = "install it there, or let PYSPARK_PYTHON name an interpreter that has it"
            else:
                raise
            raise ImportError(f"{here} has no package {missing!r}: {remedy}") from error
        place = next(iter(spark_client.__path__), "?")
        raise ImportError(
            f"{here} has flight-shuffle {installed} in {place}, and the driver has {version}: "
            "install the driver's there, or call ship(spark) of the ShuffleClient before the session's first job"
        )

    return load


def _sources() -> dict[str, bytes]:
    client = Path(__file__).parents[1]
    root = client.parent
    if root.is_file():
        # This process has the package from such a zip itself.
        with zipfile.ZipFile(root) as archive:
            ours = [name for name in archive.namelist() if name.startswith(_OURS) and name.endswith(".py")]
            return {name: archive.read(name) for name in ours}
    # The command is for people, and needs packages that executors lack.
    waiting = [each for each in client.rglob("*.py") if client / "commands" not in each.parents]
    # At the top, too: there Spark looks for data sources. An installed wheel has it only there.
    registration = client / "datasource" / _REGISTRATION
    files = {_REGISTRATION: (registration if registration.is_file() else root / _REGISTRATION).read_bytes()}
    while waiting:
        path = waiting.pop()
        name = path.relative_to(root)
        if name.as_posix() not in files:
            files[name.as_posix()] = path.read_bytes()
            waiting += _imports_of(root, name, path.read_bytes())
    return files


def _imports_of(root: Path, name: Path, source: bytes) -> Iterator[Path]:
    """The files of ``flight_server`` that the source of this name imports."""
    modules: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = name.parts[: len(name.parts) - node.level] if node.level else ()
            base = (*package, *(node.module.split(".") if node.module else ()))
            modules |= {base, *((*base, alias.name) for alias in node.names)}
    for module in modules:
        for count in range(1, len(module) + 1 if module[0] == "flight_server" else 0):
            place = root.joinpath(*module[:count])
            yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())


_modules = 0


def settle() -> None:
    """Call at the start of a task."""
    global _modules  # noqa: PLW0603  # of the process
    if len(sys.modules) != _modules:
        _modules = len(sys.modules)
        gc.freeze()
    _send_at_once()


def _send_at_once() -> None:
    from spark_client.pyspark_parts import worker_connection  # noqa: PLC0415 - making the zip needs no PySpark

    connection = worker_connection()
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # A worker works also without.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
