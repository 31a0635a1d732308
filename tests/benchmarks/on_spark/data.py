"""The files that the jobs read, made once for each size and kept under ``build/benchmarks``."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.support.rooms import ROOT
from tests.tpch.data import generate

HOME = ROOT / "build" / "benchmarks"
FILES = 8


def named_parquet(rows: int) -> Path:
    """A directory of ``FILES`` Parquet files: id (each once, in no order), quantity, amount, name of 16 bytes."""
    ids = np.random.default_rng(3)

    def part(number: int) -> Any:
        # Each file has every ``FILES``th id.
        id_ = ids.permutation(np.arange(number, rows, FILES))
        return pa.table(
            {
                "id": id_,
                "quantity": ids.integers(0, 100, len(id_)),
                "amount": ids.random(len(id_)) * 1000,
                "name": names(pa.array(id_)),
            }
        )

    return _parquet(f"named-{rows}", rows, part)


def grouped_parquet(rows: int, groups: int) -> Path:
    """A directory of ``FILES`` Parquet files: key, one of so many at random, and amount."""
    chance = np.random.default_rng(7)

    def part(number: int) -> Any:
        count = len(range(number, rows, FILES))
        return pa.table({"key": chance.integers(0, groups, count), "amount": chance.random(count) * 1000})

    return _parquet(f"grouped-{rows}-{groups}", rows, part)


def skewed_parquet(rows: int) -> Path:
    """As :func:`grouped_parquet`, with a text of 16 bytes; half of the rows, spread over all files, have the key -1."""
    chance = np.random.default_rng(8)

    def part(number: int) -> Any:
        count = len(range(number, rows, FILES))
        key = chance.integers(0, 1 << 30, count)
        key[chance.random(count) < 0.5] = -1
        return pa.table({"key": key, "amount": chance.random(count) * 1000, "name": names(pa.array(key))})

    return _parquet(f"skewed-{rows}", rows, part)


def tpch_parquet(scale: float) -> Path:
    """The tables of TPC-H."""
    return _made(f"tpch-{scale:g}", lambda path: generate(path, scale))


def names(ids: Any) -> Any:
    """``user-`` and eleven digits for each."""
    digits = pc.utf8_lpad(pc.cast(ids, pa.string()), 11, "0")
    return pc.binary_join_element_wise("user-", digits, "")


def _parquet(name: str, rows: int, part: Callable[[int], Any]) -> Path:
    def write(path: Path) -> None:
        path.mkdir()
        for number in range(FILES):
            pq.write_table(part(number), path / f"part-{number}.parquet")

    return _made(name, write)


def _made(name: str, write: Callable[[Path], object]) -> Path:
    path, unfinished = HOME / name, HOME / f"{name}.unfinished"
    if not path.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        write(unfinished)
        unfinished.rename(path)
    return path
