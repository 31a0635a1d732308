"""A node without a server, and partitions of durable datasets, for tests of what a seal does on disk."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_server import config
from flight_server.datasets.catalogue import Catalogue
from flight_server.datasets.dataset import Dataset
from flight_server.frames import SchemaMessage
from flight_server.frames.message import NO_DICTIONARIES, DictionaryState, Frame, Payload
from flight_server.memory.accounts import Budget
from flight_server.node import Node
from flight_server.protocol import Commit, CreateRequest, Kind, SealRequest, WriteMode
from flight_server.protocol.checksums import crc32c
from flight_server.storage.disk import Disk
from flight_server.storage.durable_files import MANIFEST_NAME
from flight_server.tiering.recovery import recover
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

        def held(*arguments: Any) -> Any:
            self._reached.set()
            self._opened.wait(30)
            return original(*arguments)

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
    return Frame(
        rows=1,
        size_bytes=len(message),
        crc32c=crc32c(message),
        payload=Payload(message, node.budget.frames.reserve(len(message))),
        dictionaries=dictionaries,
    )


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


def manifests(tmp_path: Path) -> list[Path]:
    return [path for path in files(tmp_path) if path.name == MANIFEST_NAME]


def files(tmp_path: Path) -> list[Path]:
    # Unlike ``rglob``, ``walk`` passes over a directory that is just being deleted.
    return [Path(directory, name) for directory, _, names in os.walk(tmp_path) for name in names]


def restarted(tmp_path: Path, **options: Any) -> Catalogue:
    """What the next server finds."""
    catalogue = new_catalogue(tmp_path, LIMIT_BYTES, **options)
    recover(catalogue)
    return catalogue


def bytes_of(dataset: Dataset, index: int) -> list[bytes]:
    return [each.read_back() for each in dataset.partition(index).frames()]
