"""Which functions run in forked workers, and what Spark starts for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_client.executors import in_forked_workers, interpreter

MEMORY = "spark.executor.pyspark.memory"
DELAY = "MIMALLOC_PURGE_DELAY"


class Context:
    """Spark's, as far as it is used here."""

    def __init__(self, master: str = "local[2]", python: str = sys.executable) -> None:
        self.master, self.pythonExec = master, python
        self.settings: set[str] = set()
        self._conf = SimpleNamespace(contains=self.settings.__contains__)
        self._python_includes: list[str] = []


def python_of(context: Context) -> str:
    """The interpreter of a function that is made in the block."""
    session: Any = SimpleNamespace(sparkContext=context)
    before = context.pythonExec
    with in_forked_workers(session):
        python = context.pythonExec
    assert context.pythonExec == (sys.executable if before == "python3" else before)
    return python


def started(*arguments: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program that Spark starts for a function with these arguments, when it has ended."""
    environment = os.environ | {"PYTHONPATH": str(directory)} | environment
    command = [python_of(Context()), *arguments]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=True, timeout=60
    )


def ran(*arguments: str, directory: Path) -> list[str]:
    """What it prints."""
    return list(json.loads(started(*arguments, directory=directory).stdout))


def stand_in(directory: Path, code: str) -> None:
    """Put this code in the place of the daemon."""
    room = directory / "spark_client" / "executors"
    room.mkdir(parents=True)
    for package in (room.parent, room):
        (package / "__init__.py").touch()
    (room / "forked_workers.py").write_text(code)


@pytest.mark.parametrize("master", ["local", "local[*, 3]", "local-cluster[2,1,1024]"])
@pytest.mark.parametrize("python", ["python3", sys.executable])
def test_functions_of_a_local_master_have_a_program_for_their_interpreter(master: str, python: str) -> None:
    program = python_of(Context(master, python))
    assert os.access(program, os.X_OK)
    assert program == python_of(Context(master, python)) != sys.executable


def test_the_interpreter_stays_where_workers_may_be_other_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    limited, shipped = Context(), Context()
    limited.settings.add(MEMORY)
    shipped._python_includes.append("library.zip")
    cluster, other = Context("spark://here:7077"), Context(python=str(tmp_path / "python3"))
    for context in (limited, shipped, cluster, other):
        assert python_of(context) == context.pythonExec
    monkeypatch.setattr(os, "access", lambda *_: False)  # a directory in which nothing may be run
    assert python_of(Context()) == sys.executable


def test_the_program_is_the_interpreter_but_where_spark_starts_its_own_daemon(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    assert ran("-m", "other", "pyspark.worker", directory=tmp_path) == ["pyspark.worker"]
    # The path is that of a program which is started by its module's name.
    stand_in(tmp_path, "import json, sys; main = lambda: print(json.dumps([sys.argv[1], sys.path[0]]))")
    shown_by_daemon = ran("-m", "pyspark.daemon", "pyspark.worker", directory=tmp_path)
    assert shown_by_daemon == ["pyspark.worker", str(tmp_path)]


@pytest.mark.parametrize(("set_by_user", "kept"), [({}, "60000"), ({DELAY: "5"}, "5")])
def test_arrow_keeps_freed_memory_for_a_worker_s_next_task_unless_the_user_says_how_long(
    tmp_path: Path, set_by_user: dict[str, str], kept: str
) -> None:
    stand_in(tmp_path, f"import os; main = lambda: print(os.environ.get({DELAY!r}))")
    daemon = ("-m", "pyspark.daemon", "pyspark.worker")
    done = started(*daemon, directory=tmp_path, MIMALLOC_VERBOSE="1", **set_by_user)
    assert f"option 'purge_delay': {kept} " in done.stderr
    assert done.stdout.split() == [str(set_by_user.get(DELAY))], (
        "what a task starts inherits the user's value"
    )


def test_an_interpreter_that_no_program_can_name_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(folder / "python3"))
    interpreter._program.cache_clear()
    assert python_of(Context(python=sys.executable)) == sys.executable
