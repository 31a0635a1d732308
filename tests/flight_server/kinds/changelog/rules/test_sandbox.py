"""What a user's query may read and use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.kinds.changelog.rules import QueryLimits
from flight_server.kinds.changelog.rules.sandbox import Sandbox
from flight_server.protocol import InvalidRequest
from tests.support.rooms import ROOT

ROWS = pa.record_batch({"n": pa.array(range(1000))})
sandbox = Sandbox(QueryLimits())


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("select 1; select 2", "not one statement"),
        ("", "not one statement"),
        ("select 'x", "Parser Error"),
        ("copy input to 'x.csv'", "not a SELECT"),
        ("attach 'other.db'", "not a SELECT"),
        ("install httpfs", "not a SELECT"),
        ("set threads = 4", "not a SELECT"),
        ("pragma version", "not a SELECT"),
        ("explain select * from input", "not a SELECT"),
        ("create table t as select * from input", "not a SELECT"),
        ("from 'x.csv'", "only the table 'input'"),
        ("from other", "only the table 'input'"),
        ("from main.input", "only the table 'input'"),
        ("from information_schema.tables", "only the table 'input'"),
        ("with t as (from duckdb_tables()) from t", "only the table 'input'"),
        ("select (select max(size) from read_blob('/etc/passwd')) from input", "only the table 'input'"),
        ("from read_csv('x.csv')", "only the table 'input'"),
        ("from query('select 1')", "only the table 'input'"),
        ("from duckdb_settings()", "only the table 'input'"),
        ("from ROWS", "only the table 'input'"),
        ("show tables", "describes tables"),
        ("summarize input", "describes tables"),
        ("select * from input where random() < 0.5", "does not give the same"),
        ("select now(), uuid() from input", "does not give the same"),
        ("select current_setting('threads') from input", "does not give the same"),
        ("select current_timestamp from input", "is the clock"),
        ("select Current_Date from input", "is the clock"),
        ("select * from input using sample 3", "a sample"),
        ("select * from input tablesample reservoir(3)", "a sample"),
    ],
)
def test_a_query_that_does_more_than_compute_from_its_input_is_refused(query: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"cannot be run: .*{why}"):
        sandbox.check(query)


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("select * from input -- all", 1000),
        ("FROM Input;", 1000),
        ("with big as (from input where n >= 500) from big", 500),
        ("with recursive r as (select 0 as n union all select n + 1 from r where n < 9) from r", 10),
        ("select unnest([n, n]) from input", 2000),
        ("from input, range(2), (values (1)) v, unnest([1])", 2000),
        ("from input semi join (from input where n < 3) using (n)", 3),
        ("select n as current_user from input union all select input.n from input", 2000),
    ],
)
def test_a_query_may_use_what_sql_has_over_its_input(query: str, rows: int) -> None:
    sandbox.check(query)
    assert sandbox.run(query, {"input": ROWS}).num_rows == rows


@pytest.mark.parametrize(
    "query",
    [
        "from '{file}'",
        "from read_text('{file}')",
        "from glob('{file}')",
        "copy input to '{file}'",
        "from ROWS",
    ],
)
def test_files_and_python_objects_are_out_of_reach_even_of_a_query_that_was_not_checked(
    query: str, tmp_path: Path
) -> None:
    file = tmp_path / "file.csv"
    file.write_text("a\n1\n")
    with pytest.raises(InvalidRequest):
        sandbox.run(query.format(file=file), {"input": ROWS})
    assert file.read_text() == "a\n1\n"


@pytest.mark.parametrize(
    "query", ["set memory_limit = '9GB'", "set enable_external_access = true", "load httpfs"]
)
def test_settings_and_extensions_are_locked(query: str) -> None:
    with pytest.raises(InvalidRequest):
        sandbox.run(query, {"input": ROWS})


def test_a_date_does_not_depend_on_the_hosts_time_zone() -> None:
    program = """
import pyarrow as pa
from flight_server.kinds.changelog.rules import QueryLimits
from flight_server.kinds.changelog.rules.sandbox import Sandbox
from tests.support.rooms import ROOT
moments = pa.record_batch({"moment": pa.array([0], pa.timestamp("us", "UTC"))})
print(Sandbox(QueryLimits()).run("select moment::varchar from input", {"input": moments}).column(0)[0])
"""
    shown = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "TZ": "Asia/Tokyo"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.stdout.strip() == "1970-01-01 00:00:00+00", shown.stderr
