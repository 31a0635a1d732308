"""Every code block of the README that says so is run as it stands, against a real server on the ports it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"<!-- run: (\w+) -->\n```python\n(.*?)```", re.DOTALL)


def blocks() -> dict[str, str]:
    return dict(BLOCK.findall(README.read_text()))


def run(code: str, directory: Path) -> str:
    done = subprocess.run(  # noqa: PLW1510  # the assert below shows what was printed
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=directory,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def at(code: str, server: ServerProcess) -> str:
    """The block for a server whose ports were free, instead of the default ones."""
    assert server.http is not None
    return code.replace("grpc://127.0.0.1:8815", server.location).replace(
        "http://127.0.0.1:8816", server.http
    )


def test_the_blocks_for_any_client_run_one_after_the_other(
    flight_server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    server = flight_server_process()
    found = blocks()
    assert "grpc://127.0.0.1:8815" in found["flight"]
    run(at(found["flight"], server), tmp_path)
    checked = found["http"] + "\nassert countries.num_rows == frame.height == count[0][0] == 2\n"
    run(at(checked, server), tmp_path)
    run(at(found["changelogs"], server), tmp_path)
    again = '\nlist(client.do_get(flight.Ticket(b"twice")))\n'
    with pytest.raises(AssertionError, match="as many readers as its retention declares"):
        run(at(found["retention"] + again, server), tmp_path)
    assert server.http is not None
    url = f"{server.http}/v1/datasets/countries/partitions/0"
    subprocess.run(["curl", "-sf", url, "-o", tmp_path / "countries.arrows"], check=True, timeout=30)
    assert (tmp_path / "countries.arrows").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.spark
def test_the_example_of_the_data_source_reads_what_it_writes(
    flight_server_process: Callable[..., ServerProcess], java_home: str, tmp_path: Path
) -> None:
    server = flight_server_process()
    checked = (
        blocks()["source"]
        + '\nassert spark.read.format("flight").options(**at).load("copy").count() == 1500\n'
    )
    printed = run(at(checked, server), tmp_path)
    assert printed.splitlines()[3:6] == ["|   0|", "| 500|", "|1000|"]


@pytest.mark.spark
def test_the_spark_example_prints_what_it_computes(java_home: str, tmp_path: Path) -> None:
    code = blocks()["spark"]
    assert len([line for line in code.splitlines() if line.strip()]) == 12
    printed = run(code + blocks()["pipelines"], tmp_path)
    # User 1 has the amounts 1, 1001, 2001, … of which the first is filtered out.
    assert sum(range(1, 1_000_000, 1000)) - 1 == 499_500_999
    assert "|      1|4.99500999E8|" in printed
    revenues: dict[int, float] = {}
    for number in range(100_000):
        if number % 97 > 10:
            revenues[number % 5] = revenues.get(number % 5, 0.0) + number % 97
    best = sorted(revenues, key=lambda segment: -revenues[segment])[:3]
    found = re.findall(r"^\|\s*(\d)\|\s*([0-9.E]+)\|\s*\d+\|$", printed, re.MULTILINE)
    assert [(int(segment), float(revenue)) for segment, revenue in found] == [
        (segment, revenues[segment]) for segment in best
    ]
    assert "segments by revenue" in printed


@pytest.mark.spark
def test_the_orders_of_the_lookup_example_have_the_rates_of_their_time(
    flight_server_process: Callable[..., ServerProcess], java_home: str, tmp_path: Path
) -> None:
    printed = run(at(blocks()["lookups"], flight_server_process()), tmp_path)
    assert [
        (int(number), float(usd)) for number, usd in re.findall(r"(\d+)\s*\|\s*([0-9.]+)\s*\|", printed)
    ] == [
        (1, 108.0),
        (2, 110.0),
        (3, 7.0),
    ]
