"""Each object with states has one table of them, and its code keeps to it."""

from __future__ import annotations

import ast
import re
from enum import EnumMeta
from types import ModuleType

import pytest

from flight_server.datasets import attempts, lifetime, partition
from flight_server.kinds.changelog import changelog
from flight_server.kinds.source import pulls
from flight_server.protocol import transitions
from spark_client.servers import spread_write
from tests.support.rooms import MODULES, parsed

TABLES = {
    attempts: attempts.AttemptState,
    changelog: changelog.ChangelogState,
    lifetime: lifetime.DatasetState,
    partition: partition.PartitionState,
    pulls: pulls.PullState,
    spread_write: spread_write.WriteState,
}

for_each_table = pytest.mark.parametrize(
    ("module", "states"), TABLES.items(), ids=[module.__name__.rpartition(".")[2] for module in TABLES]
)


@for_each_table
def test_each_state_has_a_step_and_each_pair_is_of_that_objects_states(
    module: ModuleType, states: EnumMeta
) -> None:
    assert {state for state, _ in module._AFTER} == set(states)
    assert set(module._AFTER.values()) <= set(states)


def test_a_cell_in_small_letters_is_no_step_and_one_that_names_no_state_is_refused() -> None:
    table = """
        state      write      hand over
        WRITING    WRITING    error
        COMMITTED  error      DISCARDED
        """
    states = attempts.AttemptState
    assert transitions(states, table) == {
        (states.WRITING, "write"): states.WRITING,
        (states.COMMITTED, "hand over"): states.DISCARDED,
    }
    with pytest.raises(KeyError):
        transitions(states, table.replace("DISCARDED", "DISCARD"))


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
    changed = re.compile(r"^.*\.state = ", re.MULTILINE)
    assert not [name for name in MODULES.keys() - own if changed.search(MODULES[name].read_text())]


# The requests of a pool have states of their own, which only the pool changes.
POOL = "flight_server.memory.pool"


def _is_state(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "state"
