"""A node without a server, and partitions of durable datasets, for tests of what a seal does on disk."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_server import config
from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.frames import SchemaMessage
from flight_server.frames.message import NO_DICTIONARIES, DictionaryState, Frame
from flight_server.memory.accounts import Budget
from flight_server.node import Node
from flight_server.protocol import Commit, CreateRequest, Kind, SealRequest, WriteMode
from flight_server.records import DATABASE_NAME
from flight_server.storage import Disk
from flight_server.storage.folder import SEGMENTS_NAME
from flight_server.storage.opened_records import RECORDS_NAME
from flight_server.tiering.loading import Loading
from flight_server.tiering.recovery import delete_garbage, recover
from tests.support import frames
from tests.support.catalogues import new_catalogue

SCHEMA = SchemaMessage.of(pa.schema([("number", pa.int64())]))
LIMIT_BYTES = 16 << 20


@asynccontextmanager
async def durable_node(directory: Path, *, patience_seconds: float = 0.3) -> AsyncIterator[Node]:
    """A node whose durable datasets are below ``directory``; a seal waits so long for the disk."""
    settings = config.load({"memory_limit": LIMIT_BYTES, "budget_deadline_seconds": patience_seconds})
    budget = Budget(LIMIT_BYTES, None)
    node = Node(settings, Catalogue(budget, Disk(budget.disk, directory)))
    yield node
    node.catalogue.close()


class Held:
    """Holds the calls of a method, each in its thread, until the test lets them go on."""

    def __init__(self, owner: object, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()
        original = getattr(owner, method)

        def held(*arguments: Any, **options: Any) -> Any:
            self._reached.set()
            self._opened.wait(30)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, method, held)

    async def reached(self) -> None:
        """Return when the first call is held."""
        await asyncio.to_thread(self._reached.wait, 30)

    def go_on(self) -> None:
        self._opened.set()


def create(node: Node, **options: Any) -> Dataset:
    return node.catalogue.create(CreateRequest("d", durable=True, **options), SCHEMA)[0]


def publish(node: Node, dataset: Dataset, index: int, messages: list[bytes]) -> None:
    partition = dataset.begin_stream(index)
    for message in messages:
        partition.publish(frame(node, message))


def frame(node: Node, message: bytes, dictionaries: DictionaryState = NO_DICTIONARIES) -> Frame:
    return frames.frame(message, pool=node.budget.frames, dictionaries=dictionaries)


def staged(node: Node, mode: WriteMode, write: str = "w") -> tuple[Dataset, SealRequest]:
    """A durable write of one frame, and what seals it."""
    request = CreateRequest("d", Kind.SHUFFLE, durable=True, mode=mode, write=write)
    dataset = node.catalogue.stage(request, SCHEMA)[0]
    attempt = dataset.begin_attempt(0, "a")
    attempt.publish(0, frame(node, write.encode()))
    dataset.commit(attempt, Commit(1, 1))
    return dataset, SealRequest("d", dataset.generation, {0: "a"})


def seal(dataset: Dataset, index: int) -> None:
    dataset.end_stream(dataset.partition(index))


def committed(tmp_path: Path) -> list[str]:
    """The generations of name ``d`` in the records."""
    with closing(sqlite3.connect(tmp_path / RECORDS_NAME / DATABASE_NAME)) as connection:
        return [each for (each,) in connection.execute("SELECT generation FROM dataset WHERE name = 'd'")]


def files(tmp_path: Path) -> list[Path]:
    """Those of frames."""
    return sorted((tmp_path / SEGMENTS_NAME).iterdir())


def restarted(tmp_path: Path, **options: Any) -> Catalogue:
    """What the next server finds."""
    catalogue = new_catalogue(tmp_path, LIMIT_BYTES, **options)
    recover(catalogue)
    delete_garbage(catalogue)
    return catalogue


async def frames_of(catalogue: Catalogue, dataset: Dataset, index: int) -> list[Frame]:
    """The frames of a partition, loaded if need be."""
    partition = dataset.partition(index)
    await Loading(catalogue.disk, catalogue.budget.metadata).load(dataset, partition)
    return list(partition.frames())


async def bytes_of(catalogue: Catalogue, dataset: Dataset, index: int) -> list[bytes]:
    return [each.read_back() for each in await frames_of(catalogue, dataset, index)]


async def bytes_after_restart(tmp_path: Path, index: int = 0) -> list[bytes] | None:
    """The frames of a partition of ``d`` that the next server finds; None if it finds no such dataset."""
    with closing(restarted(tmp_path)) as catalogue:
        dataset = catalogue.get("d")
        return None if dataset is None else await bytes_of(catalogue, dataset, index)


def hold_commit(node: Node, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Holds the next transaction of the records, and those after it."""
    return Held(node.catalogue.records, "_before_commit", monkeypatch)


@contextmanager
def refused_commits(node: Node) -> Iterator[None]:
    """Within it the disk refuses every transaction of the records."""

    def refuse() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.catalogue.records, "_before_commit", refuse)
        yield
