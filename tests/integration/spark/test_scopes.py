"""Scopes of two clients in one another and in tasks: a result ends with the innermost one of its client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_client import ShuffleClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class NamedResults:
    """Results by name, of any client, and which of them are there."""

    def __init__(self, spark: SparkSession, client: ShuffleClient) -> None:
        self._spark = spark
        self._client = client

    def make(self, client: ShuffleClient, name: str) -> DataFrame:
        df: DataFrame = client.pipeline(self._spark.range(1)).repartition(1, name=name).toDF()
        return df

    @property
    def names(self) -> set[str]:
        return {each.name.split("/")[1] for each in self._client.datasets("exchange/")}


@pytest.fixture
def results(spark: SparkSession, client: ShuffleClient) -> NamedResults:
    return NamedResults(spark, client)


@pytest.fixture
def other(client: ShuffleClient) -> Iterator[ShuffleClient]:
    """A second client of the server and the session, such as that of a library in the same program."""
    with ShuffleClient(client.location) as found:
        yield found


def test_a_result_belongs_to_the_innermost_scope_of_its_own_client(
    client: ShuffleClient, other: ShuffleClient, results: NamedResults
) -> None:
    with client.scope():
        with other.scope():
            kept = results.make(client, "outer")
            results.make(other, "middle")
            with client.scope():
                results.make(client, "inner")
                client.release(results.make(client, "released"))
                results.make(other, "middle-too")
                assert results.names == {"outer", "middle", "inner", "middle-too"}
            assert results.names == {"outer", "middle", "middle-too"}
            results.make(client, "outer-too")
        assert results.names == {"outer", "outer-too"}
        assert kept.count() == 1
        results.make(other, "of-no-scope")
    assert results.names == {"of-no-scope"}


def test_scopes_of_two_clients_may_end_in_any_order_and_with_an_error(
    client: ShuffleClient, other: ShuffleClient, results: NamedResults
) -> None:
    outer, inner = contextlib.ExitStack(), contextlib.ExitStack()
    outer.enter_context(client.scope())
    results.make(client, "of-outer")
    inner.enter_context(other.scope())
    results.make(other, "of-inner")
    outer.close()
    assert results.names == {"of-inner"}
    results.make(client, "of-no-scope")
    results.make(other, "of-inner-too")
    with pytest.raises(RuntimeError, match="of the block"), inner:
        raise RuntimeError("of the block")
    assert results.names == {"of-no-scope"}
    with client.scope():
        results.make(client, "of-a-later-scope")
    assert results.names == {"of-no-scope"}


async def test_scopes_of_two_clients_in_a_task_have_what_its_threads_make_and_nothing_of_another_task(
    client: ShuffleClient, other: ShuffleClient, results: NamedResults
) -> None:
    both, first_is_over = asyncio.Barrier(2), asyncio.Event()

    async def run(number: int) -> set[str]:
        with client.scope():
            with other.scope():
                await asyncio.to_thread(results.make, client, f"outer-{number}")
                await asyncio.to_thread(results.make, other, f"inner-{number}")
                await both.wait()
                if number == 2:
                    await first_is_over.wait()
                    return results.names
            assert {f"outer-{number}", "outer-2", "inner-2"} == results.names
        first_is_over.set()
        return set()

    assert [*await asyncio.gather(run(1), run(2))] == [set(), {"outer-2", "inner-2"}]
    assert results.names == set()
