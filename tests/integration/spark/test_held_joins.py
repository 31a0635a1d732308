"""Joins that hold a side which turns out small: Spark's rows, and what was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet as pq

from spark_client import ShuffleClient
from spark_client.broadcast import Broadcast
from spark_client.pipeline import held_joins, side_tables
from tests.support.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_client.pipeline import Pipeline, RunStatistics

pytestmark = pytest.mark.spark
THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"
HOWS = ["inner", "left", "right", "full", "semi", "anti"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``large`` and ``small``, with keys that are null, there several times, and on one side only."""
    folder, random = tmp_path_factory.mktemp("sides"), np.random.default_rng(1)
    for name, rows, column in (("large", 3000, "a"), ("small", 80, "b")):
        keys = random.integers(0, 60, rows) + (30 if name == "large" else 0)
        nulls = random.random(rows) < 0.1
        texts = [f"{name}{number % 37}" for number in range(rows)]
        table = pa.table(
            {"k": pa.array(keys, mask=nulls), column: texts, f"{column}n": pa.array(range(rows))}
        )
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=500)
    return folder


@pytest.fixture
def joining(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.conf.unset(THRESHOLD)


def rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def statistics_of(pipeline: Pipeline) -> RunStatistics:
    return pipeline.statistics()


def scanned(client: ShuffleClient, files: Path, name: str) -> Pipeline:
    return client.scan(files / f"{name}.parquet")


def both(client: ShuffleClient, files: Path, how: Any, *, small_left: bool) -> Pipeline:
    large, small = (scanned(client, files, name) for name in ("large", "small"))
    small = small.select("b", "bn", j="k")
    if small_left:
        return small.join(large, on={"j": "k"}, how=how)
    return large.join(small, on={"k": "j"}, how=how)


def sparks(spark: SparkSession, files: Path, how: Any, *, small_left: bool) -> DataFrame:
    large, small = (spark.read.parquet(str(files / f"{name}.parquet")) for name in ("large", "small"))
    small = small.selectExpr("b", "bn", "k as j")
    equal = large["k"] == small["j"]
    return small.join(large, equal, how) if small_left else large.join(small, equal, how)


@pytest.mark.parametrize(("how", "small_left"), [(how, number % 2 == 0) for number, how in enumerate(HOWS)])
def test_rows_are_sparks_whether_a_side_is_held_or_not(
    joining: SparkSession,
    client: ShuffleClient,
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    how: Any,
    small_left: bool,
) -> None:
    sides = {"small_left": small_left}
    expected = rows_of(sparks(joining, files, how, **sides).toArrow())
    for threshold, carried_bytes in (("-1", 1 << 20), ("10MB", 1 << 20), ("10MB", 0)):
        joining.conf.set(THRESHOLD, threshold)
        monkeypatch.setattr(side_tables, "CARRIED_BYTES", carried_bytes)
        pipeline = both(client, files, how, **sides)
        assert rows_of(pipeline.toArrow()) == expected, threshold
        pipeline.explain()
        text = capsys.readouterr().out
        assert ("held by the join" in text) == (threshold != "-1" and how != "full"), text
        assert ("not written" in text) == ("held by the join" in text)
        assert len(statistics_of(pipeline).exchanges) == (2 if "held by the join" in text else 3)


@pytest.mark.parametrize("how", ["inner", "right", "anti"])
def test_rows_that_match_no_held_key_are_not_sent(
    joining: SparkSession,
    client: ShuffleClient,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    how: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(held_joins, "THINNED_BYTES", 0)
    expected = rows_of(
        sparks(joining, files, how, small_left=True)
        .filter("bn < 20")
        .groupBy("j")
        .agg({"*": "count"})
        .toArrow()
    )
    for threshold in ("-1", "10MB"):
        joining.conf.set(THRESHOLD, threshold)
        small = scanned(client, files, "small").select("b", "bn", j="k")
        if how != "right":
            small = small.filter(pc.field("bn") < 20)
        joined = small.join(scanned(client, files, "large"), on={"j": "k"}, how=how)
        # The groups are where the join has placed its rows.
        groups = joined.filter(pc.field("bn") < 20).groupBy("j", numPartitions=4).agg({"*": "count"})
        if how != "right":
            groups = joined.groupBy("j").agg({"*": "count"})
        assert rows_of(groups.toArrow()) == expected, threshold
        groups.explain()
        thinned = "without rows that match no key" in capsys.readouterr().out
        assert thinned == (threshold != "-1" and how != "right")


def test_a_side_larger_than_expected_is_sent_and_so_is_the_other(
    joining: SparkSession, client: ShuffleClient, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joining.conf.set(THRESHOLD, "2k")
    # Expected to be a tenth, and all of it is kept.
    small = client.scan(files / "small.parquet", filter=pc.field("bn") * 0 == 0).select("b", j="k")
    pipeline = scanned(client, files, "large").join(small, on={"k": "j"})
    assert pipeline.toArrow().num_rows == sparks(joining, files, "inner", small_left=False).count()
    pipeline.explain()
    assert "held" not in capsys.readouterr().out
    assert len(statistics_of(pipeline).exchanges) == 3


def test_groups_of_a_side_are_held_as_the_driver_has_finished_them(
    joining: SparkSession, client: ShuffleClient, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = scanned(client, files, "small").groupBy("k").agg(n=("*", "count"), most=("bn", "max"))
    pipeline = scanned(client, files, "large").join(groups, on="k").groupBy("a").agg(n=("n", "sum"))
    found = rows_of(pipeline.toArrow())
    pipeline.explain()
    assert "held by the join" in capsys.readouterr().out
    large, small = (joining.read.parquet(str(files / f"{name}.parquet")) for name in ("large", "small"))
    expected = large.join(small.groupBy("k").count(), "k").groupBy("a").sum("count")
    assert found == rows_of(expected.toArrow())


@pytest.fixture
def servers() -> Iterator[list[ServerProcess]]:
    started = [ServerProcess.start() for _ in range(3)]
    yield started
    for server in started:
        server.close()


@pytest.mark.long
@pytest.mark.parametrize("lost", ["side", "broadcast"])
def test_a_server_that_is_lost_with_a_held_side_costs_a_rerun(
    joining: SparkSession,
    servers: list[ServerProcess],
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
) -> None:
    expected = rows_of(sparks(joining, files, "left", small_left=False).toArrow())
    create, killed, made = Broadcast.create, list[int](), list[Broadcast]()

    def kill(location: str) -> None:
        if not killed:
            killed.append(next(each for each in servers if each.location == location).kill())

    def killing(owner: Any, data: Any, name: str | None = None) -> Broadcast:
        made.append(create(owner, data, name))
        if lost == "broadcast":
            kill(made[-1]._content.source.server.location)
        return made[-1]

    monkeypatch.setattr(side_tables, "CARRIED_BYTES", 0)
    monkeypatch.setattr(Broadcast, "create", killing)
    with ShuffleClient(",".join(server.location for server in servers)) as several:
        shuffles: Any = several._owned()
        write = shuffles.write

        def written(*arguments: Any, **how: Any) -> Any:
            sides = write(*arguments, **how)
            if lost == "side":
                kill(next(iter(sides[0].servers)))
            return sides

        monkeypatch.setattr(shuffles, "write", written)
        pipeline = both(several, files, "left", small_left=False)
        assert rows_of(pipeline.toArrow()) == expected
        assert killed
        assert statistics_of(pipeline).losses
        assert len(made) == (2 if lost == "broadcast" else 1)


def test_ctrl_c_while_a_held_side_is_made_leaves_nothing(
    joining: SparkSession, server: ServerProcess, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with ShuffleClient(server.location) as client:
        monkeypatch.setattr(side_tables, "CARRIED_BYTES", 0)
        monkeypatch.setattr(Broadcast, "_made", interrupted)
        joined = both(client, files, "inner", small_left=False)
        with pytest.raises(KeyboardInterrupt):
            joined.agg(n=("*", "count")).toArrow()
        assert client.datasets() == []
