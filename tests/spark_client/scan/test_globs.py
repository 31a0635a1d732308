"""Patterns of paths; ``tests/integration/spark/test_scan.py`` compares them with Spark's."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import fs

from flight_server.protocol.errors import InvalidRequest
from spark_client.scan.globs import escaped, is_pattern, matching

NAMES = ["x1", "x2", "x[1]", "a,b", "a{b", ".h", "k=1/x", "k=2/x", "k=2/y/x", "é1", "x\\"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def found(base: Path, pattern: str) -> list[str]:
    infos = matching(fs.LocalFileSystem(), f"{escaped(str(base))}/{pattern}")
    return [str(Path(info.path).relative_to(base)) for info in infos]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("x?", ["x1", "x2", "x\\"]),
        ("*1", ["x1", "é1", "k=1"]),
        ("x[1-2]", ["x1", "x2"]),
        ("x[!1]", ["x2", "x\\"]),
        ("x[^1]", ["x2", "x\\"]),
        (r"x\[1\]", ["x[1]"]),
        (r"a\{b", ["a{b"]),
        ("a,*", ["a,b"]),
        (".*", [".h"]),
        ("{x1,k=*/x,k=2/{y,z}/x,x?}", ["x1", "x2", "x\\", "k=1/x", "k=2/x", "k=2/y/x"]),
        ("k=*/x", ["k=1/x", "k=2/x"]),
        ("**/x", ["k=1/x", "k=2/x"]),
        ("x1/*", []),
        ("nowhere/*", []),
        ("[é]1", ["é1"]),
    ],
)
def test_a_pattern_names_the_paths_that_it_names_in_spark(base: Path, pattern: str, names: list[str]) -> None:
    assert found(base, pattern) == sorted(names)


@pytest.mark.parametrize("name", NAMES)
def test_an_escaped_path_names_itself(base: Path, name: str) -> None:
    assert found(base, escaped(name)) == [name]
    assert is_pattern(name) == (name in ("x[1]", "a{b", "x\\"))


@pytest.mark.parametrize("pattern", ["[x", "[]", "{x", "{x,{y}"])
def test_what_is_not_closed_is_refused(base: Path, pattern: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is not closed.*a backslash before it"):
        found(base, pattern)
