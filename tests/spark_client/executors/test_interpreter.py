"""Which daemon forks the Python workers of a local master."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_client.executors.interpreter import FORKING, use_own_interpreter
from tests.support.rooms import ROOT

DAEMON = "spark.python.daemon.module"


class Settings(dict[str, str]):
    """Those of Spark in the JVM, as far as they are used here."""

    def contains(self, name: str) -> bool:
        return name in self

    def setIfMissing(self, name: str, value: str) -> None:  # noqa: N802 - Spark's name
        self.setdefault(name, value)


class Context:
    """Spark's, whose JVM runs in the ``directory``."""

    def __init__(self, directory: Path, master: str = "local[2]", python: str = sys.executable) -> None:
        self.master, self.pythonExec = master, python
        self.environment: dict[str, str] = {}
        self.settings = Settings()
        system = SimpleNamespace(getenv=lambda _: None, getProperty=lambda _: str(directory))
        self._jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(conf=lambda: self.settings))


def daemon_of(context: Context) -> str | None:
    session: Any = SimpleNamespace(sparkContext=context)
    use_own_interpreter(session)
    return context.settings.get(DAEMON)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*, 3]"])
def test_the_workers_of_a_local_master_are_forked_from_ours(master: str) -> None:
    assert daemon_of(Context(ROOT, master)) == FORKING


def test_a_daemon_that_the_user_names_stays() -> None:
    context = Context(ROOT)
    context.settings[DAEMON] = "pyspark.daemon"
    assert daemon_of(context) == "pyspark.daemon"


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://here:7077", "yarn"])
def test_other_processes_than_the_drivers_keep_pysparks(master: str) -> None:
    assert daemon_of(Context(ROOT, master)) is None


def test_pysparks_stays_where_another_package_has_the_name(tmp_path: Path) -> None:
    (tmp_path / "spark_client").mkdir()
    (tmp_path / "spark_client" / "__init__.py").touch()
    assert daemon_of(Context(tmp_path)) is None


def test_pysparks_stays_where_the_interpreter_cannot_be_asked() -> None:
    assert daemon_of(Context(ROOT, python="/nowhere/python3")) is None


def test_it_is_chosen_once_for_an_application() -> None:
    context = Context(ROOT)
    assert daemon_of(context) == FORKING
    context.settings.clear()
    assert daemon_of(context) is None
