"""Mutants of the driver's state tables: does a test find each change of a cell?

``python -m tests.support.mutants`` prints those that no test finds. Each runs in a process of its own, forked after the
imports that take long: first the tests that take events one by one, then a few simulated schedules.

Each cell is changed to each other state, and to an error, if a test asks for it. One for which none asks must be an
error, to which no event leads.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.abc
import importlib.util
import inspect
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ROOT / "spark_client" / "servers"
EVENT_TESTS = ("test_dataset_machine", "test_server_table")
SCHEDULES = 10
SECONDS = 300.0
AT_ONCE = 2
_TABLE = re.compile(r'"""\n( +state .*?)\n    """', re.DOTALL)

_NOTING = """

class _Noting(dict):
    def get(self, key, default=None):
        with open({path!r}, "a") as file:
            file.write(key[0].name + " " + key[1] + chr(10))
        return super().get(key, default)

    def __getitem__(self, key):
        self.get(key)
        return super().__getitem__(key)

_AFTER = _Noting(_AFTER)
"""


class Mutant(NamedTuple):
    """``text`` of the module, with one change, which ``name`` says."""

    module: str
    name: str
    text: str


def of_table(module: str) -> Iterator[Mutant]:
    """The module's state table, with one cell changed."""
    text = (SERVERS / f"{module}.py").read_text()
    match = _TABLE.search(text)
    assert match is not None
    head, *rows = match[1].splitlines()
    asked = _asked(module)
    states = dict.fromkeys(each for row in rows for each in row.split() if each.isupper())
    for number, row in enumerate(rows):
        state, *cells = row.split()
        for place, verb in enumerate(head.split()[1:]):
            if (state, verb) not in asked:
                assert cells[place] == "error", f"{module}: no test asks what {verb} makes of {state}"
                continue
            for other in (*states, "error"):
                if other == cells[place] or (verb == "release" and other != "error"):
                    continue  # what is released is forgotten at once
                changed = " ".join([state, *cells[:place], other, *cells[place + 1 :]])
                table = [head, *rows[:number], changed, *rows[number + 1 :]]
                lines = "\n".join("  ".join(each.split()) for each in table)
                mutant = text[: match.start(1)] + lines + text[match.end(1) :]
                yield Mutant(module, f"{state} {verb} {other}", mutant)


def _asked(module: str) -> set[tuple[str, str]]:
    """The states and verbs that tests ask the module's table for."""
    text = (SERVERS / f"{module}.py").read_text()
    with tempfile.NamedTemporaryFile("r") as file:
        noting = text + _NOTING.format(path=file.name)
        _, status = os.waitpid(_begun(Mutant(module, "as it is", noting)), 0)
        assert not status, f"{module}: the tests fail without a change"
        return {(state, verb) for state, verb in map(str.split, file)}


def survivors(mutants: Iterable[Mutant]) -> list[str]:
    """The names of those that no test finds."""
    names: dict[int, str] = {}
    survivors: list[str] = []

    def end() -> None:
        child, status = os.wait()
        name = names.pop(child)
        if not status:
            survivors.append(name)
            print(f"no test finds {name}", flush=True)

    for mutant in mutants:
        if len(names) == AT_ONCE:
            end()
        names[_begun(mutant)] = f"{mutant.module}: {mutant.name}"
    while names:
        end()
    return survivors


def _begun(mutant: Mutant) -> int:
    """The process that ends with 0 if no test finds the mutant."""
    child = os.fork()
    if child:
        return child
    is_found = False
    with contextlib.suppress(BaseException):
        is_found = _fails(mutant)
    os._exit(int(is_found))


def _fails(mutant: Mutant) -> bool:
    """Called in the child. Without pytest, whose beginning takes longer than the tests."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    faulthandler.dump_traceback_later(SECONDS, exit=True)  # for a mutant that goes on for ever
    sys.meta_path.insert(0, _Finder(mutant))
    try:
        for name in EVENT_TESTS:
            _run_plainly(importlib.import_module(f"tests.spark_client.servers.{name}"))
        simulated = importlib.import_module("tests.spark_client.servers.test_simulated")
        for seed, form in itertools.product(range(SCHEDULES), simulated.FORMS.values()):
            simulated.ran(seed, *form)
    except BaseException:  # noqa: BLE001 - pytest's own failures are none of Exception
        return True
    return False


def _run_plainly(module: ModuleType) -> None:
    """Call each test of the module with each of its cases, and with its fixtures, which take nothing."""
    for name, test in [*vars(module).items()]:
        if not name.startswith("test_"):
            continue
        marks = [each for each in getattr(test, "pytestmark", []) if each.name == "parametrize"]
        cases = [[_named(each.args[0], values) for values in each.args[1]] for each in marks]
        for case in itertools.product(*cases):
            values = {key: value for part in case for key, value in part.items()}
            for fixture in inspect.signature(test).parameters.keys() - values.keys():
                values[fixture] = getattr(module, fixture).__wrapped__()
            test(**values)


def _named(names: str | tuple[str, ...], values: Any) -> dict[str, Any]:
    return {names: values} if isinstance(names, str) else dict(zip(names, values, strict=True))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._module = f"spark_client.servers.{mutant.module}"

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        del path, target
        if name != self._module:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(SERVERS / f"{self._mutant.module}.py"))

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.text, f"<{self._mutant.name}>", "exec"), module.__dict__)


def main() -> None:
    mutants = [*of_table("server_table"), *of_table("dataset_machine")]
    print(f"{len(mutants)} mutants, of which tests find all but {len(survivors(mutants))}")


if __name__ == "__main__":
    # What takes long, once for all.
    for name in ("spark_client.lanes", "pytest"):
        importlib.import_module(name)
    assert "spark_client.servers" not in sys.modules
    main()
