"""Schemas are counted, shared and limited."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flight_server.frames import SchemaMessage
from flight_server.frames.schemas import Schemas
from flight_server.memory.accounts import Budget
from flight_server.node import Node
from flight_server.protocol import CreateRequest
from flight_server.protocol.errors import InvalidRequest, OutOfBudget

MIB = 1 << 20


def schema_of(size_bytes: int, name: str = "n") -> SchemaMessage:
    return SchemaMessage.of(pa.schema([pa.field(name, pa.int64())], {"x": "y" * size_bytes}))


def counted_bytes(budget: Budget) -> int:
    return budget.metadata.pool.used_bytes


def test_equal_schemas_are_held_and_counted_once_for_as_long_as_one_is_needed() -> None:
    budget = Budget(16 * MIB, None)
    schemas = Schemas(budget)
    first, again = (schemas.hold(schema_of(100_000), name) for name in "ab")
    assert first is again
    assert counted_bytes(budget) == len(first.header)
    other = schemas.hold(schema_of(100_000, "m"), "c")
    assert counted_bytes(budget) == len(first.header) + len(other.header)
    del first, again
    assert counted_bytes(budget) == len(other.header)
    assert other.schema.names == ["m"]


def test_a_small_schema_is_not_counted() -> None:
    budget = Budget(16 * MIB, None)
    held = Schemas(budget).hold(schema_of(10), "d")
    assert counted_bytes(budget) == 0
    assert held == schema_of(10)


def test_schemas_are_refused_when_their_account_is_full_and_a_recovered_one_never_is() -> None:
    budget = Budget(16 * MIB, None)
    schemas = Schemas(budget)
    held = [schemas.hold(schema_of(MIB - 1000, f"{number}"), "d") for number in range(4)]
    with pytest.raises(OutOfBudget, match="no room for the schema of dataset 'more'"):
        schemas.hold(schema_of(MIB - 1000, "more"), "more")
    held.append(schemas.recovered(schema_of(MIB - 1000, "more")))
    assert counted_bytes(budget) == sum(len(each.header) for each in held)


async def test_a_schema_that_is_refused_leaves_no_dataset_and_that_of_a_dropped_one_is_not_counted(
    node: Node,
) -> None:
    with pytest.raises(InvalidRequest, match="--max-schema"):
        node.catalogue.create(CreateRequest("large"), schema_of(node.max_schema_bytes))
    assert node.catalogue.get("large") is None
    before = node.budget.memory.used_bytes
    node.catalogue.create(CreateRequest("d"), schema_of(100_000))
    assert node.budget.memory.used_bytes >= before + 100_000
    node.catalogue.drop("d")
    assert node.budget.memory.used_bytes == before
