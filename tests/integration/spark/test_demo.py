"""The demo gives the right answers and says so; were they wrong, it would fail."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_client import ShuffleClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_the_demo_compares_three_answers_and_says_what_was_moved(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.demo.__main__ import answer

    with ShuffleClient.embedded(memory_limit="1GiB") as client:
        assert answer(spark, client, tmp_path) is not None
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("the answer is the same, row by row: 1,550 rows.") == 2
    moved = re.search(r"in (\S+) frames, (\d+) readers, (\S+) encodes", shown)
    assert moved is not None
    assert moved[1] == moved[3], "each frame is encoded once"


def test_a_single_different_row_is_found_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    from tests.demo.__main__ import _compare

    row = ("UA", "ORD", "Chicago Ohare Intl", "fog", 10, 2, 30, 4000)
    wrong = (*row[:-1], 4001)
    assert _compare([row, row], [row, row], "SQL")
    assert not _compare([row], [wrong], "SQL")
    assert not _compare([row, row], [row], "SQL")
    assert "4001" in capsys.readouterr().out
