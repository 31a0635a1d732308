"""Random programs over all of Spark's types give Spark's rows, types and order, or a refusal that says what to do.

A short run in the long suite; ``make fuzz SECONDS=3600 SEED=1 SERVERS=3`` for the long form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import ServerProcess

from .examples import EXAMPLES
from .fuzzer import Fuzzer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]
SPARK_SETTINGS = {"sql__timeType__enabled": "true", "sql__shuffle__partitions": "3"}
CASES = 20


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest) -> Iterator[list[ServerProcess]]:
    with ExitStack() as stack:
        count = request.config.getoption("--fuzz-servers")
        started = [stack.enter_context(ServerProcess.start(http_port=0)) for _ in range(count)]
        yield started
        for each in started:
            assert each.terminate() == 0, each.tail()


@pytest.fixture
def fuzzer(spark: SparkSession, servers: list[ServerProcess], tmp_path: Path) -> Iterator[Fuzzer]:
    location = ",".join(each.location for each in servers)
    with closing(Fuzzer(spark, location, tmp_path)) as found:
        yield found


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_was_found_once_is_right(fuzzer: Fuzzer, name: str) -> None:
    assert fuzzer.found(EXAMPLES[name]) is None


@pytest.mark.timeout(0)  # each case has a deadline
def test_random_programs_give_sparks_rows(fuzzer: Fuzzer, request: pytest.FixtureRequest) -> None:
    seconds = request.config.getoption("--fuzz-seconds")
    seed = int(request.config.getoption("--fuzz-seed"))
    print(f"seed {seed}", flush=True)
    if seconds is None:
        fuzzer.fuzz(seed, cases=CASES)
    else:
        fuzzer.fuzz(seed, seconds=float(seconds))
    print(fuzzer.summary())
    assert fuzzer.comparisons > 0
    assert not fuzzer.findings, fuzzer.summary()
