"""Directories of small files, and texts for folders' values, for comparing scans with ``spark.read``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa
from pyarrow import parquet as pq

NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Layout:
    """Parquet files, each of one row; a name that ends with ``0`` is of an empty file. ``given`` is what is read."""

    files: tuple[str, ...]
    given: tuple[str, ...] = ("",)
    recursive: bool = False

    def __str__(self) -> str:
        read = "" if self.given == ("",) else f" {' and '.join(self.given)} of"
        return f"{'all of' if self.recursive else ''}{read} {' '.join(self.files)}".strip()

    def write(self, base: Path) -> list[str]:
        """Write the files, and return the paths to read."""
        write_files(base, self.files)
        return [f"{base}/{each}" for each in self.given]


def layout(files: str, *given: str, recursive: bool = False) -> Layout:
    """``files`` are divided by blanks."""
    return Layout(tuple(files.split()), given or ("",), recursive)


def write_files(base: Path, files: Iterable[str]) -> None:
    """Each file has its own number in column ``a``, and columns ``x`` and ``b``."""
    for number, name in enumerate(files):
        path = base / name.removesuffix("0")
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("0"):
            path.touch()
        else:
            pq.write_table(pa.table({"a": [number], "x": ["text"], "b": [True]}), path)


def write_values(base: Path, folders: Sequence[Sequence[str]]) -> str:
    """A file for each of ``folders``, whose values are of the columns ``c0``, ``c1``, …"""
    for number, values in enumerate(folders):
        path = base.joinpath(*(f"c{index}={value}" for index, value in enumerate(values)))
        path.mkdir(parents=True)
        pq.write_table(pa.table({"a": [number]}), path / "x.parquet")
    return str(base)


LAYOUTS = [
    # Given twice.
    layout("x", "x", "x", "x"),
    layout("x", "", "x", ""),
    layout("k=1/x k=2/x", "", ""),
    layout("x y", "x", "", recursive=True),
    # Plain folders, and all files.
    layout("x backup/x"),
    layout("x backup/x k_1/y/x", recursive=True),
    layout("k=1/x k=2/sub/x", recursive=True),
    layout("k=1/x k=2/sub/x x"),
    layout("sub/k=1/x"),
    layout("k=1/sub/j=2/x"),
    # Names that are passed over, and empty files.
    layout("x _x .x _d/x .d/x y._COPYING_ _metadata_d/x", recursive=True),
    layout("_k=1/x _k=2/_j=x _k=2/_x _SUCCESS"),
    layout("x _y", "x", "_y"),
    layout("_d/x", "_d"),
    layout("k=1/x k=text/x0 k=1.5/_x0"),
    layout("k=1/x b/_SUCCESS"),
    # Names of columns.
    layout("X=7/x X=8/y"),
    layout("k=a=b/x k=%41%C3%A9/x k=%4/x"),
    layout("a%20b=1/x"),
    layout(f"k={NULL}/j={NULL}/x k={NULL}/j=1/x"),
    # Patterns.
    layout("x1 x2 y1 k=1/x k=2/x k=3/y/x", "x?", "k=[!2]", "k={3/y,9}", "k=*/x"),
    layout("x[1] x1 x^ y b,c", r"x\[1\]", "[yz]", "?[^1-9,]", "{b,c}*", "b,?"),
    layout("_d/x .d/x e/x _f", "*/*", "*"),
    layout("d/x d/e/x e/y/x", "**", "*/**"),
    layout("é1 é2 e-f e.f", "é[12]", "e[a-]*"),
]

REFUSED = [
    layout("backup/x"),
    layout("k=1/x b/x"),
    layout("k=1/x b/x0"),
    layout("k=1/x b/k=2/x"),
    layout("k=1/x j=1/x"),
    layout("k=1/x k=1/j=1/x"),
    layout("k=1/j=1/x j=1/k=1/x"),
    layout("k=1/K=1/x"),
    layout("k=/x"),
    layout("=1/x"),
    layout("k=1/x k=2/x", "", "k=1"),
    layout("_x y0", "_x", "y"),
    layout("x y", "[x"),
    layout("x y", "{x"),
    layout("x y", "z*"),
    layout("x y", "*/x"),
]

_WORDS = f"""
1 -2 007 +5 -0 2147483647 2147483648 -2147483648 -2147483649 9223372036854775807 9223372036854775808
-9223372036854775808 12345678901234567890 {"9" * 38} 1{"0" * 38} 1e5 1E+5 1e37 1e38 1e-5 10e-1 1. .5 . 0e5 12e36 1e400
NaN nan +NaN -Infinity inf 1d 1.5F 1L 0x10 0x1p3 0x1.8P1d 1_000 ٣ true null x é a%20b %31 %2B5 -0.0
2024-05-31 2024-5-31 2024-02-30 1500-02-29 1582-10-10 0001-01-01 9999-12-31 2024-05 2024 20240531
02024-05-31 10000-01-01 2024-05-31T 2024-05-31Z 2024-05-31T10:00:00 2024%2D05%2D31
10:00:00 10%3A00%3A00.123456 10:00:00.1234567 10:00 1:0:0 24:00:00 T10:00:00
"""
TEXTS = [
    *_WORDS.split(),
    "2024-05-31 10:00:00",
    "2024-05-31 10%3A00%3A00.1",
    "2024-05-31 10%3A00%3A00.12",
    "2024-05-31 10%3A00",
    "2024-05-31 24%3A00%3A00",
    "2024-03-31 02%3A30%3A00",  # left out by clocks in Berlin
    "2024-10-27 02%3A30%3A00",  # shown twice
    "1850-01-01 00%3A00%3A00",
    "2024-05-31 10%3A00%3A00Z",
    " 1",
    "1.5 ",
    " 2024-05-31",
    "%201",
]

KINDS = [
    NULL,
    "5",
    "3000000000",
    "12345678901234567890",
    "1e5",
    "1.5",
    "2024-05-31",
    "2024-05-31 10%3A00%3A00",
    "10%3A00%3A00",
    "text",
]
"""One text of each type."""

_ATOMS = """
0 1 9 12 2147483648 9223372036854775808 99999999999999999999 . e E + - d f x 0x p NaN Infinity 2024-05-31 2023-02-29
1582-10-10 10%3A00%3A00 %20 %31 .5 :00 T Z ٣ é _ a %3A = %
"""
# Years that Python's dates do not have, which a scan refuses, and escapes that Spark refuses.
_BEYOND = re.compile(r"[+-]\d{4,}-|0000-|.*%[^ -~]")


def random_texts(random: Random, count: int) -> list[str]:
    """Texts of parts that numbers and times are made of."""
    found: list[str] = []
    while len(found) < count:
        text = "".join(
            random.choice([*_ATOMS.split(), " "]) for _ in range(random.choice((1, 1, 2, 2, 3, 4)))
        )
        if text not in (".", "..") and not _BEYOND.match(text):
            found.append(text)
    return found
