"""Files of every format that a source reads, and a node that reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flight_server.datasets.dataset import Dataset
from flight_server.node import Node
from flight_server.protocol import CreateRequest, Kind
from tests.support.nodes import read_table

TABLE = pa.table(
    {
        "n": pa.array([1, None, 3, 4, 5], pa.int64()),
        "x": pa.array([0.5, 1.5, None, 3.5, 4.5]),
        "text": pa.array(["a", "", "ü", None, "e" * 40]),
    }
)


def _part_rows(table: pa.Table) -> int:
    """Several row groups or batches in each file, also in a small one."""
    return max(2, int(table.num_rows) // 4)


def write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=_part_rows(table))


def write_ipc(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=_part_rows(table))


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": write_parquet,
    "ipc": write_ipc,
}


class Served:
    """A node whose one root is ``root``."""

    def __init__(self, node: Node, root: Path) -> None:
        self.node = node
        self.root = root

    def write(self, written: str, table: pa.Table, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        WRITERS[written](table, path)
        return path

    async def create(self, written: str, path: str = ".", **source: Any) -> Dataset:
        request = CreateRequest("d", Kind.SOURCE, source={"format": written, "path": path, **source})
        dataset, _ = await self.node.kinds[Kind.SOURCE].create(request, None)
        return dataset

    async def read(self, dataset: Dataset) -> list[pa.Table]:
        return [await read_table(self.node, dataset, index) for index in range(dataset.partition_count)]
