"""The demo gives the right answers and says so; were they wrong, it would fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_compares_three_answers_and_says_what_was_moved_and_how_fast(java_home: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo", "--years", "1", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    shown = " ".join(done.stdout.split())
    assert done.returncode == 0, shown + done.stderr[-4000:]
    assert shown.count("the answer is the same, row by row: 1,550 rows.") == 2
    assert "1 such years, 336,776 flights" in shown
    assert re.search(
        r"Python stages on this service \d+\.\d\d 1\.0 the same stages on Spark's shuffle \d", shown
    )
    assert re.search(
        r"flights to Honolulu .*: HA 342 flights, -6\.9 minutes; UA \d+ flights, \S+ minutes\. Median of 5 runs",
        shown,
    )
    assert "By Spark's own sums the answer is the same, row by row: 2 rows." in shown
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
