"""Target: the start of a server over a data directory, one file of which was replaced.

A changed file never ends the start: what it belonged to is in the quarantine, is served, or is not there. A database of
another format version does end it, as documented.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from structlog.testing import capture_logs

from flight_server.records import DATABASE_NAME, OtherFormat
from flight_server.records.tables import VERSION
from flight_server.storage import RECORDS_NAME, SEGMENTS_NAME
from tests.support.changelog_store import Engine
from tests.support.run_rows import LATEST, SCHEMA
from tests.support.stored_rows import opened

from .files import TARGETS as FILES
from .files import sealed_run
from .target import Call, Target

_ROWS = [(("k1", 1, [1]), 1), (("k2", 2, None), 1)]
_DATABASE = f"{RECORDS_NAME}/{DATABASE_NAME}"


@cache
def _template() -> dict[str, bytes]:
    """The files of a data directory with one changelog, by path: one version is in a run, one in a row."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        engine = Engine(directory, SCHEMA, LATEST)
        try:
            engine.commit(_ROWS)
            merge = engine.begin_merge(engine.changelog.runs, 1, to_file=True)
            while not merge.done:
                merge.step()
            engine.publish(merge)
            del merge
            engine.commit(_ROWS[:1])
        finally:
            engine.close()
        return {
            str(path.relative_to(directory)): path.read_bytes()
            for path in directory.rglob("*")
            if path.is_file()
        }


@contextmanager
def _opened() -> Iterator[Call]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)

        def call(data: bytes) -> None:
            shutil.rmtree(directory)
            for path, content in _template().items():
                (directory / path).parent.mkdir(parents=True, exist_ok=True)
                (directory / path).write_bytes(content)
            which, content = data[:1], data[1:]
            if which == b"d":
                (directory / _DATABASE).write_bytes(content)
            elif which == b"r":
                (run,) = (directory / SEGMENTS_NAME).iterdir()
                run.write_bytes(sealed_run(content))
            elif which == b"b":
                with opened(directory) as connection:
                    ((dataset, first, last, time, _),) = VERSION.rows(connection)
                    VERSION.put(connection, [(dataset, first, last, time, content)])
            with capture_logs():
                Engine(directory, SCHEMA, LATEST).close()

        yield call


def _samples() -> list[bytes]:
    (runs,) = (target.samples() for target in FILES if target.name == "runs")
    with tempfile.TemporaryDirectory() as name:
        for path, content in _template().items():
            (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(name) / path).write_bytes(content)
        with opened(Path(name)) as connection:
            ((_, _, _, _, block),) = VERSION.rows(connection)
    return [b"-", b"b" + block, b"d" + _template()[_DATABASE], *(b"r" + each for each in runs)]


TARGETS = [Target("data_dirs", _opened, _samples, (OtherFormat,))]
