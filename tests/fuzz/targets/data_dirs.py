"""Target: the start of a server over a data directory, one file of which was replaced.

A changed file never ends the start: what it belonged to is in the quarantine, is served, or is not there. A file of
another format version does end it, as documented.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa
from structlog.testing import capture_logs

from flight_server.concurrency import Background, Waits
from flight_server.datasets import Catalogue
from flight_server.kinds.changelog import Store
from flight_server.kinds.changelog.restoring import recover_changelogs
from flight_server.memory import Budget
from flight_server.protocol import ipc_framing
from flight_server.records import OtherFormat
from flight_server.storage import Disk
from flight_server.tiering import recover
from tests.support.changelog_store import Engine
from tests.support.run_rows import LATEST, SCHEMA

from .files import MANIFEST, content_of, sealed_log, sealed_manifest, sealed_run, sealed_state
from .files import TARGETS as FILES
from .target import Call, Target

OWNER = "test"
_ROWS = [(("k1", 1, [1]), 1), (("k2", 2, None), 1)]


@cache
def _template() -> dict[str, bytes]:
    """The files of a data directory with one changelog, by path."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        engine = Engine(directory, SCHEMA, LATEST)
        try:
            engine.commit(_ROWS)
            engine.commit(_ROWS[:1])
        finally:
            engine.close()
        return {
            str(path.relative_to(directory)): path.read_bytes()
            for path in directory.rglob("*")
            if path.is_file()
        }


def _start(directory: Path) -> None:
    budget = Budget(256 << 20, None)
    disk = Disk(budget.disk, directory)
    disk.use(directory, owner=OWNER, lasting=True)
    catalogue = Catalogue(budget, disk)
    loop = asyncio.new_event_loop()

    async def store_of() -> Store:
        background = Background(lambda *_, **__: None)
        return Store(
            catalogue,
            background,
            Waits(),
            deadline_seconds=1.0,
            max_lag_seconds=3600.0,
            max_message_bytes=1 << 20,
        )

    try:
        store = loop.run_until_complete(store_of())
        recover(catalogue)
        recover_changelogs(store)
        store.close()
    finally:
        catalogue.close()
        loop.close()


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
            changelog = next((directory / "changelogs").iterdir())
            if which == b"s":
                (changelog / "changelog").write_bytes(sealed_state(content))
            elif which == b"l":
                (changelog / "log-000001").write_bytes(sealed_log(content))
            elif which == b"r":
                (changelog / "run-000001").write_bytes(sealed_run(content))
            elif which == b"m":
                dataset = directory / "datasets" / "d"
                dataset.mkdir(parents=True)
                shutil.copy(changelog / "flight-server.json", dataset)
                (dataset / "segment-000001").write_bytes(bytes(100))
                (dataset / "segment-000002").write_bytes(bytes(10))
                (dataset / "manifest").write_bytes(sealed_manifest(content))
            with capture_logs():
                _start(directory)

        yield call


def _samples() -> list[bytes]:
    files = {target.name: target.samples() for target in FILES}
    state, log = b"", b""
    for path, content in _template().items():
        if path.endswith("/changelog"):
            state = b"s\0" + content[16:]
        elif path.endswith("/log-000001"):
            log = b"l\1" + content
    schema = ipc_framing.schema_header(pa.schema([("a", pa.int8())]).serialize().to_pybytes())
    whole = replace(
        MANIFEST, schema=base64.b64encode(schema).decode(), dictionaries=[], states=[[], []]
    ).encode()
    found = [b"-", state, log, b"s" + files["states"][0], b"m" + content_of(whole), b"m\1" + whole]
    return [*found, *(b"l" + each for each in files["logs"]), *(b"m" + each for each in files["manifests"])]


TARGETS = [Target("data_dirs", _opened, _samples, (OtherFormat,))]
