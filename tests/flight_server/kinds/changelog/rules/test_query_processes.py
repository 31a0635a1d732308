"""Processes for users' queries: their limits, and their ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flight_server.kinds.changelog.rules import (
    Groups,
    Query,
    QueryLimits,
    QueryProcesses,
    make_rule,
    query_processes,
)
from flight_server.kinds.changelog.rules.query_processes import IDLE_SECONDS
from flight_server.protocol import InvalidRequest, KeepRule, OutOfBudget, Unavailable
from tests.support.polling import eventually
from tests.support.rooms import ROOT

SCHEMA = pa.schema([("n", pa.int64())])
ROWS = pa.record_batch([pa.array(range(1000))], schema=SCHEMA)
ENDLESS = "select sum(range % 7)::bigint as n from range(100000000000000)"  # takes time, and no memory


def rule(processes: QueryProcesses, query: str) -> Query:
    made = make_rule(KeepRule.parse({"rule": "sql", "query": query}), SCHEMA, processes)
    assert isinstance(made, Query)
    return made


def check(processes: QueryProcesses, query: str = "from input") -> None:
    rule(processes, query).check_rows(ROWS, np.ones(ROWS.num_rows, np.int64))


@pytest.fixture
def processes() -> Iterator[QueryProcesses]:
    made = QueryProcesses(QueryLimits(memory_limit_bytes=64 << 20))
    yield made
    made.close()


def children() -> set[int]:
    found = (task / "children" for task in Path("/proc/self/task").iterdir())
    return {int(pid) for path in found if path.exists() for pid in path.read_text().split()}


def test_a_rule_starts_no_process_until_it_is_used_and_an_idle_process_ends(
    processes: QueryProcesses,
) -> None:
    before = children()
    made = rule(processes, "from input")
    assert len(processes) == 0
    made.check()
    made.check()
    assert len(processes) == len(children() - before) == 1
    processes.end_idle(time.monotonic() + IDLE_SECONDS / 2)
    assert len(processes) == 1
    processes.end_idle(time.monotonic() + 2 * IDLE_SECONDS)
    assert len(processes) == 0
    assert children() == before


def test_a_process_works_where_python_finds_its_program_and_shadows_no_library(
    processes: QueryProcesses,
) -> None:
    before = children()
    check(processes)
    (process,) = children() - before
    assert Path(f"/proc/{process}/cwd").resolve() == ROOT


def test_a_query_is_stopped_with_its_process_at_its_deadline() -> None:
    before = children()
    with closing(QueryProcesses(QueryLimits(deadline_seconds=0.5))) as processes:
        with pytest.raises(Unavailable, match=r"did not end within 0\.5 s"):
            rule(processes, ENDLESS).check()
        assert children() == before


def test_queries_that_need_too_much_memory_fail_alone(processes: QueryProcesses) -> None:
    for query in (
        # Of what functions hold DuckDB's own limit does not know.
        "select list_sum(list_transform(range(99), lambda x: length(repeat('x', 9000000 + x))))::bigint as n",
        "select sum(r)::bigint as n from (select row_number() over (order by hash(n)) as r from range(9000000) t(n))",
        "select a.n from input a, input b, input c",
    ):
        with pytest.raises(OutOfBudget, match="more memory than 64 MiB"):
            check(processes, query)
    check(processes)


def test_a_process_that_ends_by_itself_is_an_error_of_its_query_only_if_it_was_fresh(
    processes: QueryProcesses,
) -> None:
    before = children()
    check(processes)
    (pid,) = children() - before
    os.kill(pid, signal.SIGKILL)
    check(processes)
    assert pid not in children()


def test_queries_at_the_same_time_have_a_process_each_and_see_their_own_rows_only() -> None:
    processes = QueryProcesses()
    largest = rule(processes, "select max(n) + min(n) as n from input")

    def run(number: int) -> int:
        rows = pa.record_batch([pa.array([number] * 1000)], schema=SCHEMA)
        shown = largest.kept(Groups(rows, np.array([0]), np.ones(1000, np.int64)))
        return int(shown.rows.column(0)[0].as_py())

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(50))) == [2 * number for number in range(50)]
        assert len(processes) <= 2
        processes.close()


def test_a_closed_server_ends_the_queries_that_run(processes: QueryProcesses) -> None:
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(check, processes, ENDLESS)
        eventually(lambda: len(processes), 1)
        processes.close()
        with pytest.raises(Unavailable, match="goes down"):
            running.result(60)
    with pytest.raises(Unavailable, match="goes down"):
        check(processes)
    assert len(processes) == 0


@pytest.mark.parametrize("query", ["from input", ENDLESS], ids=["idle", "at work"])
def test_a_process_ends_with_its_server_that_is_killed(query: str) -> None:
    program = """
import os, sys, threading, time
from pathlib import Path
import pyarrow as pa
from flight_server.protocol import KeepRule
from flight_server.kinds.changelog.rules import QueryLimits, QueryProcesses, make_rule
processes = QueryProcesses(QueryLimits(deadline_seconds=3600))
spec = KeepRule.parse({"rule": "sql", "query": sys.argv[1]})
rule = make_rule(spec, pa.schema([("n", pa.int64())]), processes)
def tell():
    while not len(processes):
        time.sleep(0.01)
    print(Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)
threading.Thread(target=tell).start()
rule.check()
time.sleep(3600)
"""
    server = subprocess.Popen(
        [sys.executable, "-c", program, query], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    with server:
        pid = int(server.stdout.readline())
        server.kill()
    eventually(Path(f"/proc/{pid}").exists, expected=False)


def test_the_first_row_on_which_a_query_fails_is_named(processes: QueryProcesses) -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"Could not convert .*It fails on the row \{'n': 417\}, and nothing of the put was kept",
    ):
        check(processes, "select (case when n >= 417 then 'x' else '1' end)::bigint as n from input")
    with pytest.raises(InvalidRequest, match="It fails on these rows together"):
        check(processes, "select (case when count(*) > 500 then 'x' else '1' end)::bigint as n from input")


def test_a_process_that_cannot_be_started_is_an_error_that_says_what_to_do(
    processes: QueryProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(Unavailable, match=r"cannot start a process .* raise its limit of processes"):
        check(processes)
    monkeypatch.undo()
    monkeypatch.setattr(query_processes, "PROGRAM", "flight_server.kinds.changelog.rules.no_such_program")
    with pytest.raises(Unavailable, match="did not start within 60 s, or ended"):
        check(processes)
    assert len(processes) == 0
