"""Columns of every type that a changelog keeps, updates made of rows, and a folder for their files."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flight_server.keys import Hashes, key_hashes
from flight_server.kinds.changelog.runs import Layout, MemoryRun, RunFolder, Updates, layout
from flight_server.memory import MemoryPool, Reservation
from flight_server.protocol import KeepRule
from flight_server.storage import FileHeader, Folder

LATEST = {"rule": "latest", "key": ["key"], "order_by": ["time"]}
SCHEMA = pa.schema([("key", pa.string()), ("time", pa.int64()), ("value", pa.list_(pa.int8()))])

Row = tuple[Any, ...]

UUIDS = pa.ExtensionArray.from_storage(
    pa.uuid(), pa.array([b"0123456789abcdef", None, b"\0" * 16], pa.binary(16))
)


def columns() -> dict[str, pa.Array]:
    """Values of each type, ascending, the first one null; by a name of the type."""
    nan, inf = float("nan"), float("inf")
    points = pa.struct([("x", pa.float32()), ("name", pa.string())])
    whole: list[tuple[pa.DataType, list[Any]]] = [
        *((kind, [-(2 ** (kind.bit_width - 1)), -1, 0, 5]) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        *((kind, [0, 1, 2**kind.bit_width - 1]) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
        *((kind, [-inf, -1.5, 0.0, 0.5, inf, nan]) for kind in (pa.float16(), pa.float32(), pa.float64())),
        (pa.bool_(), [False, True]),
        *((kind, [0, 1, 86_399]) for kind in (pa.time32("s"), pa.time64("us"), pa.date32())),
        *((kind, [-5, 0, 5]) for kind in (pa.timestamp("s"), pa.timestamp("ns", "Europe/Berlin"), pa.duration("ms"))),
        *((kind, ["", "a", "ab", "ß" * 300]) for kind in (pa.string(), pa.large_string())),
        *((kind, [b"", b"\0", b"a", b"b" * 300]) for kind in (pa.binary(), pa.large_binary())),
        (pa.binary(2), [b"ab", b"b\0"]),
        *(
            (kind, [Decimal("-1.25"), Decimal(0), Decimal("1.25")])
            for kind in (pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(20, 2), pa.decimal256(50, 2))
        ),
        (pa.list_(pa.int64()), [[], [None], [-(2**63)], [1], [1, 1], [2]]),
        (pa.large_list(pa.string()), [[], [None], ["a"], ["a", "b"], ["b"]]),
        (pa.list_(pa.int32(), 2), [[None, 3], [1, 1], [1, 2]]),
        (pa.list_(pa.list_(pa.float16())), [[], [None], [[]], [[1.0]], [[nan]]]),
        (points, [{"x": None, "name": None}, {"x": None, "name": "a"}, {"x": 1, "name": "a"}, {"x": nan, "name": ""}]),
        (pa.list_(points), [[], [None], [{"x": 1, "name": "a"}], [{"x": 1, "name": "b"}]]),
        (pa.map_(pa.string(), pa.list_(pa.int8())), [[], [("a", None)], [("a", [1])], [("a", [1]), ("b", [])]]),
        (pa.struct([]), [{}]),
    ]  # fmt: skip
    found = {str(kind): pa.array([None, *values], type=kind) for kind, values in whole}
    found["extension"] = UUIDS.take(pa.array([1, 2, 0]))
    found["extension in a list"] = pa.ListArray.from_arrays(
        pa.array([None, 0, 0, 1, 2], pa.int32()), UUIDS.take(pa.array([1, 2]))
    )
    return found


def updates_of(layout: Layout, rows: list[tuple[Row, int, int]]) -> Updates:
    """Sorted updates of rows, versions and diffs."""
    arrays = [
        pa.array([row[number] for row, _, _ in rows], type=field.type)
        for number, field in enumerate(layout.schema)
    ]
    versions, diffs = (np.array([each[place] for each in rows], np.int64) for place in (1, 2))
    return Updates.of(layout, pa.RecordBatch.from_arrays(arrays, schema=layout.schema), versions, diffs)


def listed(updates: Updates) -> list[tuple[Row, int, int]]:
    """What :func:`updates_of` takes, in the order of the updates."""
    rows = zip(*(column.to_pylist() for column in updates.rows.columns), strict=True)
    plain = (tuple(tuple(value) if isinstance(value, list) else value for value in row) for row in rows)
    return list(zip(plain, updates.versions.tolist(), updates.diffs.tolist(), strict=True))


def latest() -> Layout:
    return Layout(SCHEMA, KeepRule.parse(LATEST))


def memory_run(updates: Updates) -> MemoryRun:
    return MemoryRun(updates, MemoryPool(None).reserve(0))


def run_folder(directory: Path, disk: MemoryPool) -> RunFolder:
    """One that deletes files at once."""

    def delete(path: Path, room: Reservation) -> None:
        path.unlink(missing_ok=True)  # hypothesis may hold it for longer than there is its directory
        room.free()

    owner = "0" * 16
    header = FileHeader(owner, "d", "g", "changelog", durable=True)
    return RunFolder(Folder(directory, owner), header, disk, delete)


def fewer_bits(patch: pytest.MonkeyPatch, mask: int) -> None:
    """Let different keys share a hash: only these bits of it are left."""

    def masked(keys: list[pa.Array], rows: int) -> Hashes:
        return key_hashes(keys, rows) & np.uint64(mask)

    patch.setattr(layout, "key_hashes", masked)
