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

from tests.benchmarks.on_spark.functions import excerpts
from tests.support.rooms import ROOT
from tests.tpch.data import generate

HOME = ROOT / "build" / "benchmarks"
FILES = 8
VOCABULARY = 20_000
# Longer than any window of a compressor, so that an excerpt does not find itself again.
CORPUS_BYTES = 16_000_000


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


def skewed_parquet(rows: int, large: int, keys: int) -> Path:
    """As :func:`grouped_parquet`, with a text of 16 bytes; ``large`` of the rows, spread over all files, have the key
    -1.
    """
    chance = np.random.default_rng(8)

    def part(number: int) -> Any:
        count = len(range(number, rows, FILES))
        key = chance.integers(0, keys, count)
        key[chance.random(count) < large / rows] = -1
        return pa.table({"key": key, "amount": chance.random(count) * 1000, "name": names(pa.array(key))})

    return _parquet(f"skewed-{rows}-{large}-{keys}", rows, part)


def tpch_parquet(scale: float) -> Path:
    """The tables of TPC-H."""
    return _made(f"tpch-{scale:g}", lambda path: generate(path, scale))


def names(ids: Any) -> Any:
    """``user-`` and eleven digits for each."""
    digits = pc.utf8_lpad(pc.cast(ids, pa.string()), 11, "0")
    return pc.binary_join_element_wise("user-", digits, "")


def text_parquet(rows: int) -> Path:
    """A directory of ``FILES`` Parquet files: id, and an excerpt of :func:`prose`."""
    corpus = pa.memory_map(str(prose())).read_buffer()

    def part(number: int) -> Any:
        first, last = number * rows // FILES, (number + 1) * rows // FILES
        steps = range(first, last, 10_000)
        texts = [excerpts(corpus, start, min(10_000, last - start)) for start in steps]
        return pa.table({"id": np.arange(first, last), "text": pa.chunked_array(texts, pa.string())})

    return _parquet(f"text-{rows}", rows, part)


def prose() -> Path:
    """A text: words of a vocabulary, as often as Zipf's law says."""

    def write(path: Path) -> None:
        chance = np.random.default_rng(5)
        letters = chance.integers(ord("a"), ord("z") + 1, (VOCABULARY, 12), np.uint8)
        words = [letters[i, : 2 + i % 11].tobytes() for i in range(VOCABULARY)]
        weights = 1 / np.arange(1, VOCABULARY + 1)
        drawn = chance.choice(VOCABULARY, CORPUS_BYTES // 6, p=weights / weights.sum())
        path.write_bytes(b" ".join(words[i] for i in drawn.tolist())[:CORPUS_BYTES])

    return _made(f"prose-{CORPUS_BYTES}", write)


def log() -> Path:
    """A text of lines that differ in two numbers each: LZ4 makes it thirty times smaller."""

    def write(path: Path) -> None:
        numbers = np.random.default_rng(6).integers(10**7, 10**8, (CORPUS_BYTES // 480, 2))
        line = (
            '{"time": "2026-05-04T10:11:12.%03dZ", "level": "INFO", "host": "ip-10-0-0-1.compute.internal", '
            '"service": "checkout", "logger": "com.example.checkout.OrderController", "thread": "http-nio-8080-", '
            '"message": "order accepted", "request": "%d", "method": "POST", "path": "/api/v2/orders", "status": 201, '
            '"user_agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)", "region": "eu"'
        )
        lines = ((line % (pair[0] % 1000, pair[1])).ljust(478) + "}\n" for pair in numbers.tolist())
        path.write_text("".join(lines))

    return _made(f"log-{CORPUS_BYTES}", write)


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
