"""Each object with states has one table of them in its module's docstring, and its code keeps to it."""

from __future__ import annotations

import ast
import re
from enum import EnumMeta
from types import ModuleType

import pytest

from flight_server.datasets import attempts, lifetime, partition
from flight_server.kinds.changelog import changelog
from flight_server.kinds.source import pulls
from tests.support.rooms import MODULES, parsed

TABLES = {
    attempts: attempts.AttemptState,
    changelog: changelog.ChangelogState,
    lifetime: lifetime.DatasetState,
    partition: partition.PartitionState,
    pulls: pulls.PullState,
}

for_each_table = pytest.mark.parametrize(
    ("module", "states"), TABLES.items(), ids=[module.__name__.rpartition(".")[2] for module in TABLES]
)


def written_table(module: ModuleType) -> tuple[set[str], dict[tuple[str, str], str]]:
    """The verbs of the docstring's table, and the state that each leads to; an absent pair is an error."""
    assert module.__doc__
    lines = module.__doc__.partition("States")[2].partition("\n\n")[2].partition("\n\n")[0].splitlines()
    head, *rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert head[0] == "state"
    verbs = head[1:]
    after = {
        (row[0], verb): state
        for row in rows
        for verb, state in zip(verbs, row[1:], strict=True)
        if state.isupper()
    }
    return set(verbs), after


@for_each_table
def test_the_table_that_is_written_is_the_table_that_is_kept(module: ModuleType, states: EnumMeta) -> None:
    verbs, after = written_table(module)
    kept = {(state.name, verb): to.name for (state, verb), to in module._AFTER.items()}
    assert kept == after
    assert {state for state, _ in after} | set(after.values()) <= set(states.__members__)
    assert verbs == {verb for _, verb in after}


@for_each_table
def test_a_state_changes_only_to_what_the_table_says(module: ModuleType, states: EnumMeta) -> None:
    changes = 0
    for function in ast.walk(parsed(MODULES[module.__name__])):
        if not isinstance(function, ast.FunctionDef) or function.name == "__init__":
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and any(_is_state(target) for target in node.targets):
                changes += 1
                assert isinstance(node.value, ast.Call)
                assert isinstance(node.value.func, ast.Attribute)
                assert node.value.func.attr.strip("_") == "check_step"
    assert changes


def test_no_other_module_changes_a_state() -> None:
    own = {module.__name__ for module in TABLES} | {POOL}
    for name in MODULES.keys() - own:
        for node in ast.walk(parsed(MODULES[name])):
            targets = node.targets if isinstance(node, ast.Assign) else []
            assert not any(map(_is_state, targets)), name


# The requests of a pool have states of their own, which only the pool changes.
POOL = "flight_server.memory.pool"


def _is_state(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "state"
