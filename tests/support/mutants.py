"""Mutants of the driver's state machine: does a test find each small change of it?

``python -m tests.support.mutants`` prints those that no test finds. Each runs in a process of its own, forked after the
imports that take long: first the tests that take events one by one, then a few simulated schedules.

Of the state tables each cell is changed to each other state, and to an error, if a test asks for it. One for which none
asks must be an error, to which no event leads.
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


def of_changes(module: str, changes: Iterable[tuple[str, str]]) -> Iterator[Mutant]:
    """The module with one of these changes each, of a text that it has once."""
    text = (SERVERS / f"{module}.py").read_text()
    for before, after in changes:
        assert text.count(before) == 1, f"{module}: {before!r} stands there {text.count(before)} times"
        yield Mutant(module, f"{before.strip()} -> {after.strip()}", text.replace(before, after))


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


MACHINE_CHANGES = (
    # plan
    ("        if self._is_closed:\n", "        if False:\n"),
    ("if not self._datasets.keys().isdisjoint(datasets):", "if False:"),
    ("        self.servers.add(job.candidates)\n", ""),
    # looks
    (
        "            if portion.stored is None and not portion.is_lost\n",
        "            if not portion.is_lost\n",
    ),
    (
        "            if portion.stored is None and not portion.is_lost\n",
        "            if portion.stored is None\n",
    ),
    ("if each not in needed and not self.servers.is_quiet(each, now_seconds)", "if each not in needed"),
    (
        "Look(each, job.number, Patience.ANSWER) for each in needed",
        "Look(each, job.number) for each in needed",
    ),
    ("        if not failed:\n            looks", "        if True:\n            looks"),
    ("        if not failed:\n            looks", "        if False:\n            looks"),
    ("if source is not None and source.state is HeldState.LOST:", "if False:"),
    ("self._give_up(job, job.error or server_lost(", "self._give_up(job, server_lost("),
    ("            if not lost:\n", "            if False:\n"),
    ("self.servers.lost_since(job.losses_before)", "self.servers.lost_since(0)"),
    ("            job.error = None\n", ""),
    ("if job.run > RERUNS:", "if job.run >= RERUNS:"),
    ("if job.run > RERUNS:", "if job.run > RERUNS + 1:"),
    ("            if not job.has_insisted:\n", "            if False:\n"),
    ("Look(each, job.number, Patience.RESTART)", "Look(each, job.number)"),
    ("job.unreached or Unavailable(", "Unavailable("),
    (
        "job.has_insisted, job.losses_before, job.began_seconds = False,",
        "_, job.losses_before, job.began_seconds = False,",
    ),
    # the end of a run
    ("starts.setdefault(report.server.start, report.server)", "report.server"),
    ("if (report.dataset, report.producer) in producers:", "if False:"),
    ("            if not self.servers.is_lost(server, job.losses_before):\n", "            if True:\n"),
    ("self.servers.learn(server, now_seconds, job.began_seconds)", "self.servers.learn(server, now_seconds)"),
    ("portion.is_lost = self.servers.is_lost(server, job.losses_before)", "portion.is_lost = False"),
    (
        "portion.is_lost = self.servers.is_lost(server, job.losses_before)",
        "portion.is_lost = self.servers.is_lost(server)",
    ),
    ("return [*seals] if seals else self._sealed(job, now_seconds)", "return [*seals]"),
    ("if is_final or self._is_released(job):", "if self._is_released(job):"),
    ("if is_final or self._is_released(job):", "if is_final:"),
    (
        "return [*drops, *self._look(job, now_seconds, written)]",
        "return [*drops, *self._look(job, now_seconds)]",
    ),
    ("            drops += self._drops(dataset)\n", ""),
    ("            dataset.portions, dataset.totals = {}, None\n", ""),
    (
        "return not self._datasets.keys() >= {*job.datasets}",
        "return self._datasets.keys().isdisjoint(job.datasets)",
    ),
    (
        "                if portion.is_gone:\n                    return",
        "                if portion.is_lost:\n                    return",
    ),
    ("return self.is_lost and self.stored is None", "return self.is_lost"),
    ("            dataset.losses = tuple(job.losses)\n", ""),
    # what calls end with
    ("self._mark_lost(self.servers.learn(call.server, now_seconds, asked_seconds))", "pass"),
    ("self._mark_lost(self.servers.answered(call.location, start, now_seconds, asked_seconds))", "pass"),
    (
        "self.servers.answered(call.location, start, now_seconds, asked_seconds)",
        "self.servers.answered(call.location, start, now_seconds)",
    ),
    ("self._mark_lost(self._lost_by(", "(self._lost_by("),
    ("                    if not isinstance(error, _AWAY):\n", "                    if False:\n"),
    ("                    job.unreached = error\n", ""),
    (
        "        if isinstance(error, (NotFound, *_AWAY)):\n",
        "        if isinstance(error, NotFound):\n",
    ),
    (
        "        if isinstance(error, (NotFound, *_AWAY)):\n",
        "        if isinstance(error, _AWAY):\n",
    ),
    ("            self._lose_portion(call, call.server)\n", "            pass\n"),
    ("            case Renew() if isinstance(error, NotFound):", "            case Renew() if False:"),
    ("            case Renew() if isinstance(error, NotFound):", "            case Renew():"),
    ("                        if portion.stored == call.address:\n", "                        if True:\n"),
    ("                    self._lose(dataset)\n        return []", "        return []"),
    ("        if refused:\n", "        if False:\n"),
    ("if isinstance(call, Seal) and isinstance(error, ServerLost):", "if False:"),
    ("        if not isinstance(error, FlightShuffleError):\n", "        if False:\n"),
    (
        "        if not isinstance(error, _AWAY):\n            return self.servers",
        "        if False:\n            return self.servers",
    ),
    ("is_needed = isinstance(call, Seal) or (", "is_needed = ("),
    ("isinstance(call, Look | Renew) and call.patience is not Patience.BRIEF", "False"),
    (
        "isinstance(call, Look | Renew) and call.patience is not Patience.BRIEF",
        "isinstance(call, Look | Renew)",
    ),
    (
        "self.servers.unanswered(call.location, now_seconds, asked_seconds)",
        "self.servers.unanswered(call.location, now_seconds)",
    ),
    ("        self.servers.silent(call.location, now_seconds, asked_seconds)\n", ""),
    ("if job is None or call.location not in job.looks:", "if job is None:"),
    ("        if job.looks:\n            return []\n", ""),
    (
        "        if job.looks:\n            return []\n        if self._is_released(job):",
        "        if job.looks:\n            return []\n        if False:",
    ),
    ("return [] if job.seals else self._sealed(job, now_seconds)", "return self._sealed(job, now_seconds)"),
    ("next(jobs, None) if current in (None, call.generation) else None", "next(jobs, None)"),
    # losing
    ("dataset.generation != call.generation or server not in", "server not in"),
    ("if dataset.state in _SEALED and any(each.is_gone", "if dataset.state in _SEALED and all(each.is_gone"),
    ("if dataset is None or dataset.state not in _SEALED:", "if dataset is None:"),
    ("server.start, Patience.ANSWER)", "server.start)"),
    ("                elif portion.stored is not None:\n", "                elif False:\n"),
    # holding and releasing
    ("if each.is_lost and not each.is_gone]", "if False]"),
    (
        "Renew(each.location, dataset.name, dataset.generation, each.start)",
        "Renew(each.location, dataset.name, dataset.generation)",
    ),
    ("        known.holders.setdefault(holder, False)\n", "        known.holders[holder] = False\n"),
    ("if holder.kind is not HolderKind.RUN and not known.is_kept:", "if not known.is_kept:"),
    ("if holder.kind is not HolderKind.RUN and not known.is_kept:", "if holder.kind is not HolderKind.RUN:"),
    (
        "            if holder in known.holders:\n                known",
        "            if True:\n                known",
    ),
    (
        "known.state is HeldState.LOST and known.holders.get(holder) is False",
        "known.state is HeldState.LOST and not known.holders.get(holder)",
    ),
    (
        "known.state is HeldState.LOST and known.holders.get(holder) is False",
        "known.holders.get(holder) is False",
    ),
    (
        "known.holders.pop(holder, None) is not None and not known.holders:",
        "known.holders.pop(holder, None) is not None:",
    ),
    ("if HolderKind.PERSISTED not in self.holds(name):", "if True:"),
    ("for each in datasets if holder in self._holders(each)]", "for each in datasets]"),
    (
        "            del self._jobs[number]\n        return [call for name in names",
        "            pass\n        return [call for name in names",
    ),
    ("        self._is_closed = True\n", ""),
    (
        "            return []\n        if dataset.state is HeldState.WRITING:",
        "            return []\n        if False:",
    ),
    (
        "locations: Iterable[str] = dataset.locations or self.servers.locations",
        "locations: Iterable[str] = self.servers.locations",
    ),
    (
        "living = [each for each in locations if self.servers.presence(each) is not Presence.LOST]",
        "living = locations",
    ),
    (
        "for each, portion in dataset.portions.items() if not portion.is_lost]",
        "for each, portion in dataset.portions.items()]",
    ),
    ("places = [*self._places(dataset), *dataset.portions]", "places = self._places(dataset)"),
    ("if prefix is not None and dataset.state is not HeldState.PLANNED:", "if prefix is not None:"),
    ("if prefix is not None and dataset.state is not HeldState.PLANNED:", "if False:"),
)
TABLE_CHANGES = (
    ("            if self.presence(location) is Presence.ANSWERING:\n", "            if True:\n"),
    ("self.start(location) or location, location", "self.start(location) or '', location"),
    ("            and server.presence is Presence.ANSWERING\n", ""),
    ("server.asked_seconds < FRESH_SECONDS", "server.asked_seconds <= FRESH_SECONDS"),
    ("server.asked_seconds < QUIET_SECONDS", "server.asked_seconds <= QUIET_SECONDS"),
    ("in (Presence.UNKNOWN, Presence.ANSWERING):", "in (Presence.UNKNOWN,):"),
    ("in (Presence.UNKNOWN, Presence.ANSWERING):", "in (Presence.ANSWERING,):"),
    ("self._lost.get(server, -1) >= since", "self._lost.get(server, 0) >= since"),
    ("self._lost.get(server, -1) >= since", "self._lost.get(server, -1) > since"),
    ("if number >= losses]", "if number > losses]"),
    ("        if lost and self._is_learnt:\n", "        if False:\n"),
    ("        if lost and self._is_learnt:\n", "        if lost:\n"),
    (
        "if _is_late(server, asked_seconds) and not self._is_new(location, server, start):",
        "if _is_late(server, asked_seconds):",
    ),
    ("if _is_late(server, asked_seconds) and not self._is_new(location, server, start):", "if False:"),
    ("        if start is not None and server.start != start:\n", "        if start is not None:\n"),
    ("        elif start is None and server.presence is Presence.LOST:\n", "        elif False:\n"),
    ("        elif start is None and server.presence is Presence.LOST:\n", "        elif start is None:\n"),
    ("        server.heard_seconds = now_seconds\n        self._step(", "        self._step("),
    ("server.start is None or server.presence is Presence.LOST\n", "server.presence is Presence.LOST\n"),
    ("server.start is None or server.presence is Presence.LOST\n", "server.start is None\n"),
    (
        "is_open and start is not None and ServerStart(location, start) not in self._lost",
        "is_open and start is not None",
    ),
    ("if server is not None and not _is_late(server, asked_seconds):", "if server is not None:"),
    ("if server is None or _is_late(server, asked_seconds):", "if server is None:"),
    (
        "        server.heard_seconds = now_seconds\n        if self._is_learnt:",
        "        if self._is_learnt:",
    ),
    ("if known is None or known.start != server.start:", "if known is None:"),
    ("known.start, known.heard_seconds = None, now_seconds", "known.start = None"),
    ("known.start, known.heard_seconds = None, now_seconds", "known.heard_seconds = now_seconds"),
    ("if server.start is None or server.presence is Presence.LOST:", "if server.start is None:"),
    ("        self._lost.pop(lost, None)  # so that they are in the order of their losses\n", ""),
    ("        self._losses += 1\n", ""),
    ("asked_seconds < server.heard_seconds", "asked_seconds <= server.heard_seconds"),
    ("        server.asked_seconds = now_seconds\n", ""),
)


def main() -> None:
    mutants = [
        *of_changes("server_table", TABLE_CHANGES),
        *of_changes("dataset_machine", MACHINE_CHANGES),
        *of_table("server_table"),
        *of_table("dataset_machine"),
    ]
    print(f"{len(mutants)} mutants, of which tests find all but {len(survivors(mutants))}")


if __name__ == "__main__":
    # What takes long, once for all.
    for name in ("spark_client.lanes", "pytest"):
        importlib.import_module(name)
    assert "spark_client.servers" not in sys.modules
    main()
