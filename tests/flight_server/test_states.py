"""Each object with states has one table of them."""

from __future__ import annotations

from enum import EnumMeta
from types import ModuleType

import pytest

from flight_server.datasets import attempts, lifetime, partition
from flight_server.kinds.changelog import changelog
from flight_server.protocol import transitions
from spark_client.servers import dataset_machine, server_table

TABLES = {
    attempts: attempts.AttemptState,
    changelog: changelog.ChangelogState,
    dataset_machine: dataset_machine.HeldState,
    lifetime: lifetime.DatasetState,
    partition: partition.PartitionState,
    server_table: server_table.Presence,
}

for_each_table = pytest.mark.parametrize(
    ("module", "states"), TABLES.items(), ids=[module.__name__.rpartition(".")[2] for module in TABLES]
)


@for_each_table
def test_each_state_stands_in_the_table_and_each_pair_is_of_that_objects_states(
    module: ModuleType, states: EnumMeta
) -> None:
    assert {state for state, _ in module._AFTER} | {*module._AFTER.values()} == set(states)


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
